"""Remembered kinds of requests: the same job as a full check makes, and what must be checked each time."""

import gc
import weakref

import numpy as np
import pytest

from app.calls import Call
from app.kinds import Kinds
from app.operators import evaluate, jvp, vjp
from pushforward.errors import InvalidArray

RNG = np.random.default_rng(7)
OPERATORS = {"jvp": jvp.OPERATOR, "vjp": vjp.OPERATOR, "evaluate": evaluate.OPERATOR}


@pytest.fixture
def model(engine):
    return engine.models["seed-gru"]


@pytest.fixture
def draw(model):
    """A function that makes a call with other numbers each time."""
    dtype = model.signature.inputs[0].dtype
    features, units = model.signature.inputs[0].shape[-1], model.signature.outputs[0].shape[-1]

    def make(operator, steps=5, dtype=dtype, **options):
        arrays = {"inputs": {"x": RNG.normal(size=(2, steps, features)).astype(dtype)}}
        if operator == "jvp":
            arrays["tangents"] = {"x": RNG.normal(size=(2, steps, features)).astype(dtype)}
        if operator == "vjp":
            shape = [n or size for n, size in zip(model.signature.outputs[0].shape, (2, steps, units), strict=False)]
            arrays["cotangents"] = {model.signature.outputs[0].name: RNG.normal(size=shape).astype(dtype)}
        return Call(model.name, operator, arrays, options)

    return make


def learned(operator, model, call):
    kinds = Kinds()
    kinds.learn(operator, model, call, operator.prepare(model, call))
    return kinds


@pytest.mark.parametrize("name", OPERATORS)
def test_the_next_of_a_kind_gets_the_same_job_on_its_own_numbers(model, draw, name):
    operator = OPERATORS[name]
    kinds, call = learned(operator, model, draw(name)), draw(name)
    found, checked = kinds.prepare(operator, model, call), operator.prepare(model, call)
    assert (found.rows, found.strategy, list(found.casts)) == (checked.rows, checked.strategy, list(checked.casts))
    assert next(found.steps()) is found.work
    for part in ("key", "shapes", "rows", "strategy", "layout", "compile", "alike"):
        assert getattr(found.work, part) == getattr(checked.work, part)
    assert found.work.feeds.keys() == checked.work.feeds.keys()
    assert all(found.work.feeds[path] is array for path, array in checked.work.feeds.items())


def test_another_kind_is_not_known(model, draw):
    kinds = learned(jvp.OPERATOR, model, draw("jvp", strategy="scan"))
    others = [
        draw("jvp"),
        draw("jvp", strategy="reverse"),
        draw("jvp", steps=6, strategy="scan"),
        draw("jvp", dtype=np.float16, strategy="scan"),
    ]
    assert [kinds.prepare(jvp.OPERATOR, model, other) for other in others] == [None] * len(others)
    assert kinds.prepare(vjp.OPERATOR, model, draw("jvp", strategy="scan")) is None


def test_values_that_could_be_confused_are_not(model, draw):
    kinds = learned(jvp.OPERATOR, model, draw("jvp", check=False))
    assert kinds.prepare(jvp.OPERATOR, model, draw("jvp", check=0)) is None


def test_what_is_converted_or_checked_is_not_remembered(model, draw):
    other = np.float64 if model.dtype == "float32" else np.float32
    for call in (draw("jvp", dtype=other), draw("jvp", check=True)):
        assert learned(jvp.OPERATOR, model, call).prepare(jvp.OPERATOR, model, call) is None


@pytest.mark.parametrize(("length", "kept"), [(10, True), (2000, False)])
def test_what_is_told_at_length_is_not_remembered(model, draw, length, kept):
    call, kinds = draw("jvp", told="x" * length), Kinds()
    kinds.learn(jvp.OPERATOR, model, call, jvp.OPERATOR.prepare(model, Call(model.name, "jvp", call.arrays)))
    assert (kinds.prepare(jvp.OPERATOR, model, call) is not None) == kept


def test_what_is_refused_is_refused_again(engine, model, draw):
    kinds = learned(jvp.OPERATOR, model, draw("jvp"))
    wrong = draw("jvp")
    wrong.arrays["tangents"]["x"] = wrong.arrays["tangents"]["x"][:, :-1]
    assert kinds.prepare(jvp.OPERATOR, model, wrong) is None
    with pytest.raises(InvalidArray, match="shape"):
        jvp.OPERATOR.prepare(model, wrong)


def test_no_arrays_are_kept(model, draw):
    call = draw("jvp")
    kept = weakref.ref(call.arrays["inputs"]["x"])
    kinds = learned(jvp.OPERATOR, model, call)
    again = kinds.prepare(jvp.OPERATOR, model, draw("jvp"))
    assert again is not None
    del call
    gc.collect()
    assert kept() is None
