"""Chains of links: the same numbers as one window, whatever is sliced, given or padded."""

import keras
import numpy as np
import pytest

from app.compiled import Recent
from app.operators import _links, jacobian
from app.operators._chained import Chained
from app.operators._operator import Work
from app.programs import Programs
from models.model import Model

L = keras.layers


@pytest.fixture(autouse=True)
def chains(monkeypatch):
    """Everything that can be a chain is one, of four links."""
    monkeypatch.setattr(_links, "_WORTH_CHAINING", 0)
    monkeypatch.setattr(_links, "_LINKS", 4)
    monkeypatch.setattr(_links, "_steps", lambda *_: 0)


def made(*layers):
    return keras.Sequential([keras.Input((None, 2)), *(make() for make in layers)])


MODELS = {
    "gru": lambda: made(lambda: L.GRU(2, return_sequences=True, name="rnn")),
    "two": lambda: made(
        lambda: L.LSTM(2, return_sequences=True, name="rnn"),
        lambda: L.SimpleRNN(3, return_sequences=True),
    ),
    "stacked": lambda: made(lambda: L.RNN([L.GRUCell(2), L.LSTMCell(2)], return_sequences=True, name="rnn")),
    "image": lambda: made(
        lambda: L.TimeDistributed(L.Reshape((2, 1))),
        lambda: L.ConvLSTM1D(1, 1, return_sequences=True),
        lambda: L.TimeDistributed(L.Flatten()),
        lambda: L.GRU(2, return_sequences=True, name="rnn"),
    ),
}


@pytest.fixture(scope="module")
def cache():
    return {}


@pytest.fixture
def model(cache, kind, in_float64):
    if kind not in cache:
        cache[kind] = Model(kind, in_float64(MODELS[kind]))
    return cache[kind]


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def is_chain(job):
    return isinstance(job.steps.__self__, Chained)


@pytest.mark.parametrize(
    ("kind", "time", "of", "wrt", "given"),
    [
        ("gru", 12, "y", "x", False),
        ("gru", 11, "y[1:]", "x[:, 1]", True),
        slow("gru", 13, "y[::2, 1]", "x[2:]", True),
        ("gru", 13, "hidden.rnn.h[3:]", "x[1:10:3, ::-1]", False),
        slow("gru", 13, "y[4:]", "state.rnn.h[::-1]", True),
        slow("two", 12, "y[1::3]", "state", False),
        ("two", 12, "y", "state.rnn.c[1]", True),
        slow("gru", 12, "y[:9]", "hidden.rnn.h", True),
        slow("two", 10, "y", "x", True),
        slow("two", 9, "y[:, 0]", "hidden.rnn.c[1:]", False),
        slow("stacked", 9, "y", "x", False),
        slow("image", 12, "y", "x", False),
    ],
)
def test_chains_against_reverse_mode(solve, model, kind, time, of, wrt, given):
    rng = np.random.default_rng(1)
    inputs = {"x": rng.normal(size=(2, time, 2))}
    if given:
        inputs |= {s.name: rng.normal(size=(2, s.shape[1])) for s in model.signature.states}
    found = solve(model, inputs, of, wrt, mode="forward")
    assert is_chain(found.job) == (kind != "image")  # whose states have more axes than one
    wanted = solve(model, inputs, of, wrt, mode="reverse").array
    np.testing.assert_allclose(found.array, wanted, rtol=0, atol=1e-13)
    if (of, wrt) == ("y", "x") and time == 12:
        later = np.triu(np.ones((time, time), bool), 1)
        assert np.all(found.array.transpose(1, 3, 0, 2, 4)[later] == 0)


@pytest.mark.parametrize("kind", ["gru"])
@pytest.mark.parametrize(
    ("of", "wrt"),
    [
        ("y", "x"),
        pytest.param("y[1::2]", "x[3:]", marks=pytest.mark.slow),
        pytest.param("y[2:, 1]", "state.rnn.h", marks=pytest.mark.slow),
        pytest.param("hidden.rnn.h[:9]", "x[5:, 0]", marks=pytest.mark.slow),
    ],
)
def test_runs_and_blocks_of_every_size_give_the_same_numbers(solve, model, of, wrt):
    inputs = {"x": np.random.default_rng(3).normal(size=(3, 13, 2))}
    wanted = solve(model, inputs, of, wrt, mode="reverse").array
    seen = set()
    for budget in (2**28, 5_000, 500):
        found = solve(model, inputs, of, wrt, mode="forward", budget=budget)
        assert is_chain(found.job)
        np.testing.assert_allclose(found.array, wanted, rtol=0, atol=1e-13)
        assert found.chunks == found.job.info["chunks"]
        assert max(block.nbytes for block in found.blocks) <= max(budget, wanted[0].nbytes // wanted[0, ..., 0].size)
        seen.add((found.chunks, len(found.blocks)))
    assert len(seen) == 3
    assert max(seen)[0] > 3 * 2


@pytest.mark.parametrize("kind", ["gru"])
def test_a_long_chain_is_traced_twice_and_runs_each_step_once(solve, programs, model, monkeypatch):
    monkeypatch.setattr(programs, "_graphs", Recent(64))  # what is traced already does not count
    x = np.random.default_rng(4).normal(size=(1, 61, 2))
    found = solve(model, {"x": x}, "y", "x", mode="forward", budget=20_000)
    links = found.job.steps.__self__.links
    assert found.chunks > 4
    assert (found.chunks - 1) * links.length < 61 <= found.chunks * links.length
    assert len(programs._graphs) == 2  # the first is not given the states that it begins with


@pytest.mark.parametrize(
    "dtypes", [slow(("mixed_float16", "float32")), ("mixed_float16",), slow(("float32", "float64"))]
)
def test_no_chain_of_states_without_fast_products(solve, dtypes):
    layers = [L.GRU(2, return_sequences=True, dtype=dtype) for dtype in dtypes]
    mixed = Model("mixed", keras.Sequential([keras.Input((None, 2)), *layers]))
    x = np.random.default_rng(5).normal(size=(1, 9, 2)).astype("float32")
    found = solve(mixed, {"x": x}, "y", "x", mode="forward")
    assert not is_chain(found.job)
    wanted = solve(mixed, {"x": x}, "y", "x", mode="reverse").array
    np.testing.assert_allclose(found.array, wanted, rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", ["gru"])
@pytest.mark.slow
def test_compiled_programs_give_the_same_numbers(prepare, solve, model, monkeypatch):
    monkeypatch.setattr(jacobian, "_WORTH_COMPILING", -1)
    compiled = Programs(compiled=8)
    x = np.random.default_rng(2).normal(size=(1, 9, 2))
    for of, wrt, mode, kind in (
        ("y", "x", "forward", "chain"),
        ("y[6:]", "param.rnn.bias[0]", "forward", "forward"),
        ("y[5:8]", "x[2:]", "reverse", "reverse"),
    ):
        steps = prepare(model, {"x": x}, of, wrt, mode=mode).steps()
        work, found = next(steps), {}
        while isinstance(work, Work):
            found, by_xla = compiled.run(model, "jacobian", work)
            last, work = work, steps.send(found)
        assert (last.key[0], by_xla) == (kind, True)
        wanted = solve(model, {"x": x}, of, wrt, mode=mode).array
        np.testing.assert_allclose(work.reshape(wanted.shape), wanted, rtol=0, atol=1e-13)
