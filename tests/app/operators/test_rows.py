"""Which works can be joined, and to what sizes they are padded."""

import numpy as np
import pytest

from app.calls import Call
from app.operators import evaluate, jvp, vjp
from app.operators._rows import Layout, bucket


def test_sizes_grow_by_a_third_at_most():
    sizes = [bucket(n) for n in range(1, 2001)]
    assert sizes[:17] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16, 24]
    assert all(n <= size and 3 * (size - n) <= size for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 22


LAYOUT = Layout(
    {"inputs.x": ("batch", "time", "feature"), "tangents.x": ("directions", "batch", "time", "feature")}, {}, True
)


def feeds(rows=2, time=8, directions=3, features=2, dtype="float64"):
    x = np.zeros((rows, time, features), dtype)
    return {"inputs.x": x, "tangents.x": np.zeros((directions, *x.shape), dtype)}


@pytest.mark.parametrize("change", [{"directions": 4}, {"features": 3}, {"dtype": "float32"}, {"time": 9}], ids=str)
def test_what_keeps_works_apart(change):
    assert LAYOUT.key(feeds()) != LAYOUT.key(feeds(**change))


@pytest.mark.parametrize("change", [{"rows": 5}, {"time": 7}], ids=str)
def test_what_does_not(change):
    assert LAYOUT.key(feeds()) == LAYOUT.key(feeds(**change))


X = np.ones((2, 5, 4))


def layout(engine, operator, name="stacked-rnn", **request):
    fields = {f: request.pop(f) for f in ("inputs", "tangents", "cotangents") if f in request}
    call = Call(name, operator.name, {"inputs": {"x": X}} | fields, request)
    return operator.prepare(engine.models[name], call).work.layout


def kernel(engine):
    (spec,) = (a for a in engine.models["stacked-rnn"].signature.parameters if a.name == "param.rnn_1.kernel")
    return np.ones(spec.shape)


def test_what_all_rows_share_is_not_joined(engine):
    weight = {"tangents": {"param.rnn_1.kernel": kernel(engine)}}
    assert layout(engine, jvp.OPERATOR, tangents={"x": X}) is not None
    assert layout(engine, jvp.OPERATOR, **weight) is None
    y = {"cotangents": {"y": np.ones((2, 5, 4))}}
    assert layout(engine, vjp.OPERATOR, **y) is not None
    assert layout(engine, vjp.OPERATOR, **y, wrt=["x", "state.rnn_1.h"]) is not None
    assert layout(engine, vjp.OPERATOR, **y, wrt=["x", "param.rnn_1.kernel"]) is None


def test_an_unrolled_loop_is_written_for_its_own_sizes(engine):
    assert layout(engine, evaluate.OPERATOR) is not None
    assert layout(engine, evaluate.OPERATOR, strategy="unrolled") is None


@pytest.mark.parametrize(
    ("outputs", "padded"), [(["y"], True), (["hidden.rnn_1.h", "y"], True), (["state.rnn_2.h"], False)]
)
def test_lengths_are_joined_for_outputs_of_steps(engine, outputs, padded):
    assert layout(engine, evaluate.OPERATOR, outputs=outputs).padded is padded
