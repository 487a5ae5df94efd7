"""What is not finite in one request, or would be in the steps that are added to it, reaches no other number."""

from dataclasses import replace

import numpy as np
import pytest

from app.programs import Programs
from models.model import Model
from tests.app.joining import Kind, assert_same, key

SHORT, LONG = 9, 12


@pytest.fixture(scope="module")
def graphs():
    return Programs(compiled=0)


@pytest.fixture(scope="module")
def growing():
    """Its state grows by 5e3 a step: in float32 it is finite after nine steps and infinite after twelve.

    So are the derivatives of its gates, which zero cotangents would turn into NaN.
    """
    import keras

    layer = keras.layers.GRU(2, activation="relu", reset_after=False, return_sequences=True)
    network = keras.Sequential([keras.Input((None, 2)), layer])
    gates = np.zeros((2, 4))
    layer.set_weights([np.hstack([gates, np.eye(2)]), np.hstack([gates, 2e4 * np.eye(2)]), np.zeros(6)])
    return Model("growing", network)


def kinds(model, strategy):
    """A call of every operator."""
    (x,), (y,) = ([a.name for a in group] for group in (model.signature.inputs, model.signature.outputs))
    options = {"strategy": strategy}
    for count in (None, 2):
        yield Kind(model, "jvp", [], [x], {"outputs": [y], **options}, count)
        yield Kind(model, "vjp", [], [y], {"wrt": [x], **options}, count)
    yield Kind(model, "evaluate", [], [], {"outputs": [y], **options}, None)


def positive(work, scale=1.0):
    return replace(work, feeds={path: scale * np.abs(array) for path, array in work.feeds.items()})


@pytest.mark.parametrize("strategy", ["scan", pytest.param("reverse", marks=pytest.mark.slow)])
def test_overflow_in_steps_that_are_added(graphs, growing, strategy):
    rng = np.random.default_rng(0)
    for kind in kinds(growing, strategy):
        works = [positive(kind.work(rng, 1, SHORT)), positive(kind.work(rng, 2, LONG), 0.0)]
        assert key(works[0]) == key(works[1])
        alone = [graphs.run(growing, kind.operator, work)[0] for work in works]
        assert all(np.isfinite(array).all() for found in alone for array in found.values())
        together, _ = graphs.run_group(growing, kind.operator, works)
        for part, expected in zip(together, alone, strict=True):
            assert_same(part, expected, growing.dtype)


@pytest.mark.slow
def test_overflow_in_the_steps_of_a_compiled_program(graphs, growing):
    rng = np.random.default_rng(1)
    for kind in kinds(growing, "scan"):
        work, compiled = positive(kind.work(rng, 2, SHORT)), Programs(patience=10**9)
        compiled.warm(growing, kind.operator, work, [(2, LONG)])
        (found,), by_xla = compiled.run_group(growing, kind.operator, [work])
        assert by_xla
        assert_same(found, graphs.run(growing, kind.operator, work)[0], growing.dtype)


@pytest.mark.parametrize(
    "poison", [np.nan, *(pytest.param(p, marks=pytest.mark.slow) for p in (np.inf, -np.inf)), 1e300]
)
@pytest.mark.parametrize("name", ["stacked-rnn", pytest.param("seed-gru", marks=pytest.mark.slow)])
def test_what_is_not_finite_stays_with_its_request(graphs, engine, name, poison):
    """Even in the first of its steps, where it spoils all that come later."""
    rng, model = np.random.default_rng(2), engine.models[name]
    for kind in kinds(model, "scan"):
        works = [kind.work(rng, rows, time) for rows, time in ((1, 9), (2, 12), (1, 10), (2, 11))]
        for path in works[2].feeds:
            works[2].feeds[path][..., 0, 0, :] = poison
        alone = [graphs.run(model, kind.operator, work)[0] for work in works]
        together, _ = graphs.run_group(model, kind.operator, works)
        for i, (part, expected) in enumerate(zip(together, alone, strict=True)):
            assert_same(part, expected, model.dtype)
            assert i == 2 or all(np.isfinite(array).all() for array in part.values())
        spoiled = [np.isfinite(array).all() for array in together[2].values()]
        assert not all(spoiled) or np.isfinite(poison)
