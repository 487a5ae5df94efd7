"""Chunks of every size, known zeros, and the steps that are really run."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from app.compiled import Recent
from app.operators import _links, _plan
from models import _tf
from models.model import Model

L = keras.layers
T, H = 4, 2


@pytest.fixture(scope="module")
def small():
    """One GRU, float64: quick to trace, and with everything there is."""
    keras.utils.set_random_seed(4)
    options = {"return_sequences": True, "dtype": "float64", "name": "gru"}
    return Model("small", keras.Sequential([keras.Input((None, 2), dtype="float64"), L.GRU(H, **options)]))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(8).normal(size=(3, T, 2))


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("of", "wrt", "row"),
    [
        ("y[1:]", "x[::2]", 4),
        pytest.param("y[::-1, 0]", "hidden.gru.h", 2 * T, marks=pytest.mark.slow),
        pytest.param("hidden.gru.h", "param.gru.kernel[1]", 3 * H, marks=pytest.mark.slow),
        pytest.param("state.gru.h", "x[::-1, 1]", T, marks=pytest.mark.slow),
    ],
)
def test_every_size_of_chunks_gives_the_same_numbers(solve, small, x, of, wrt, row, mode):
    whole = solve(small, {"x": x}, of, wrt, mode=mode)
    assert whole.chunks == (3 if mode == "reverse" and wrt.startswith("param") else 1)
    assert len(whole.blocks) == 1
    counts = [whole.chunks]
    for budget in (400, 1):
        parts = solve(small, {"x": x}, of, wrt, mode=mode, budget=budget)
        np.testing.assert_allclose(parts.array, whole.array, rtol=0, atol=1e-12 * np.abs(whole.array).max())
        assert max(block.nbytes for block in parts.blocks) <= max(budget, 8 * row)
        assert parts.job.info["chunks"] == parts.chunks
        counts.append(parts.chunks)
    assert counts == sorted(counts)
    assert counts[-1] > 3


@pytest.mark.parametrize("wrt", ["x[1:]", "state.gru.h"])
def test_chunks_that_are_only_cut_when_they_are_needed(solve, small, x, monkeypatch, wrt):
    whole = solve(small, {"x": x}, "y[1:]", wrt)
    monkeypatch.setattr(_plan, "_MOST_CUT", 0)
    parts = solve(small, {"x": x}, "y[1:]", wrt, budget=300)
    assert parts.chunks > 3
    np.testing.assert_allclose(parts.array, whole.array, rtol=0, atol=1e-14)


def test_chunks_of_a_batch_that_is_no_multiple(solve, small):
    x = np.random.default_rng(9).normal(size=(5, T, 2))
    whole = solve(small, {"x": x}, "y[-1]", "x")
    parts = solve(small, {"x": x}, "y[-1]", "x", budget=2 * 2 * T * 2 * 8)
    assert [len(block) for block in parts.blocks] == [2, 2, 1]
    np.testing.assert_allclose(parts.array, whole.array, rtol=0, atol=1e-14)


@pytest.mark.parametrize("wrt", ["x", pytest.param("hidden.gru.h", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_exact_zeros_above_the_diagonal(solve, small, x, mode, wrt):
    later = np.triu(np.ones((T, T), bool), 1)
    for budget in (None, 500):
        blocks = solve(small, {"x": x}, "y", wrt, mode=mode, budget=budget).array.transpose(1, 3, 0, 2, 4)
        assert np.all(blocks[later] == 0)
        assert np.all(np.abs(blocks[~later]).max((1, 2, 3)) > 0)


@pytest.mark.parametrize("model", [pytest.param("seed-gru", marks=pytest.mark.slow), "stacked-rnn"])
def test_exact_zeros_above_the_diagonal_of_built_in_models(solve, engine, model):
    served = engine.models[model]
    x = np.random.default_rng(8).normal(size=(2, T, served.signature.inputs[0].shape[-1]))
    blocks = solve(served, {"x": x}, "y", "x").array.transpose(1, 3, 0, 2, 4)
    later = np.triu(np.ones((T, T), bool), 1)
    assert np.all(blocks[later] == 0)
    assert np.any(blocks[~later] != 0)


def test_what_comes_after_is_not_even_computed(solve, small, x):
    found = solve(small, {"x": x}, "y[:2]", "x[2:]")
    assert found.array.shape == (3, 2, H, 2, 2)
    assert np.all(found.array == 0)
    assert not np.any(np.signbit(found.array))
    assert found.chunks == 0
    assert found.job.info["steps"] == found.job.info["passes"] == 0


@pytest.mark.parametrize("mode", [pytest.param("forward", marks=pytest.mark.slow), "reverse"])
def test_no_zeros_above_the_diagonal_of_a_bidirectional_model(solve, engine, mode):
    x = np.random.default_rng(8).normal(size=(1, T, 3)).astype("float32")
    found = solve(engine.models["bi-gru"], {"x": x}, "y", "x", mode=mode)
    assert np.all(np.abs(found.array).max((0, 2, 4)) > 0)
    assert found.job.info["steps"] == T * (3 * T if mode == "forward" else 2 * T)


@pytest.fixture
def count(monkeypatch, programs):
    """Count, as the programs run, the steps of loops that carry stacked directions, for each row and direction."""
    counted = []
    monkeypatch.setattr(programs, "_graphs", Recent(64))  # what is traced already does not count

    def wrap(run):
        def counting(step, consts, carry, xs, reverse):
            stacked = [c for c in carry if c.shape.rank == 3]
            if stacked:
                width = stacked[0].shape[1 if type(step).__name__ == "_PushByMatrix" else 2]
                with _tf.stop_recording():
                    size = [tf.shape(xs[0])[0], tf.size(stacked[0]) // width]
                    tf.numpy_function(lambda *size: counted.append(np.prod(size)), size, [])
            return run(step, consts, carry, xs, reverse)

        return counting

    for name in ("matrices", "recurrence", "scan"):
        # Not as an attribute of the package, which has a function `scan`.
        module = importlib.import_module(f"models.{name}")
        monkeypatch.setattr(module, "run", wrap(module.run))
    return counted


LONG = 12


@pytest.mark.parametrize(
    ("of", "wrt", "mode", "steps"),
    [
        ("y[-1]", "x", "forward", 2 * LONG * LONG),
        ("y[-1]", "x", "reverse", 2 * LONG),
        ("y[:3]", "x", "reverse", 6 * 3),
        ("y[:3]", "x[:3]", "forward", 6 * 3),
        ("y[5:8]", "x[4:8, 0]", "forward", 4 * 4),
        ("y[5:8]", "x[6:, 0]", "forward", 2 * 2),
        ("y[7:4:-1]", "x[10:3:-2, 0]", "forward", 2 * 4),
        ("y[7:4:-1]", "x[4:8]", "reverse", 6 * 4),
        ("y[-1]", "hidden.gru.h[-2:]", "forward", 4 * 2),
        ("y[3]", "state.gru.h", "reverse", 2 * 4),
        ("state.gru.h", "state.gru.h", "forward", 2 * LONG),
        ("state.gru.h[0]", "param.gru.bias[0]", "reverse", LONG),
    ],
)
def test_steps_really_run(solve, small, count, of, wrt, mode, steps):
    x = np.random.default_rng(8).normal(size=(1, LONG, 2))
    found = solve(small, {"x": x}, of, wrt, mode=mode)
    assert found.job.info["steps"] == steps
    assert sum(count) == steps


@pytest.fixture
def chains(monkeypatch):
    """Even small Jacobians are chains, of four links."""
    monkeypatch.setattr(_links, "_WORTH_CHAINING", 0)
    monkeypatch.setattr(_links, "_LINKS", 4)


def test_a_chain_really_runs_each_step_once_for_each_direction_of_a_link(solve, small, count, chains):
    x = np.random.default_rng(8).normal(size=(1, LONG, 2))
    found = solve(small, {"x": x}, "y", "x", mode="forward")
    links, size = 4, LONG // 4
    assert sum(count) == links * size * (2 * size + H)
    # What the products take is added.
    assert sum(count) < found.job.info["steps"] < 2 * LONG * LONG // 2
    assert found.job.info["passes"] == 2 * LONG


def test_steps_of_every_layer_and_of_many_directions(solve, engine, count):
    """So many that the matrices of the steps are formed."""
    model = engine.models["stacked-rnn"]
    x = np.random.default_rng(8).normal(size=(1, LONG, 4))
    found = solve(model, {"x": x}, "y[:6]", "x[2:]", mode="forward")
    assert found.job.info["passes"] == 4 * 4
    assert found.job.info["steps"] == 16 * 4
    assert sum(count) == 2 * 16 * 4
