"""Chains of links: the same numbers as one window, whatever is sliced, given or padded."""

import keras
import numpy as np
import pytest

from app.operators import _blocks, _plan
from app.operators._operator import Work
from app.programs import Programs
from models.model import Model

L = keras.layers


@pytest.fixture(autouse=True)
def chains(monkeypatch):
    """Everything that can be a chain is one, of four links."""
    steps = _plan._steps
    monkeypatch.setattr(_plan, "_WORTH_CHAINING", 0)
    monkeypatch.setattr(_plan, "_LINKS", 4)
    monkeypatch.setattr(_plan, "_steps", lambda task, mode, chunk: 0 if chunk.chain else steps(task, mode, chunk))


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


def is_chain(job):
    return any(chunk.chain for chunk in job.steps.__self__.plan.kinds)


@pytest.mark.parametrize(
    ("kind", "time", "of", "wrt", "given"),
    [
        ("gru", 12, "y", "x", False),
        ("gru", 11, "y[1:]", "x[:, 1]", True),
        ("gru", 13, "y[::-2, 1]", "x[2:]", True),
        ("gru", 13, "hidden.rnn.h", "x[::-1]", False),
        ("gru", 12, "y[:9]", "hidden.rnn.h", True),
        ("two", 10, "y", "x", True),
        ("two", 9, "y[:, 0]", "hidden.rnn.c[1:]", False),
        ("stacked", 9, "y", "x", False),
        ("image", 12, "y", "x", False),
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
    if time == 12 and of == "y":
        later = np.triu(np.ones((time, time), bool), 1)
        assert np.all(found.array.transpose(1, 3, 0, 2, 4)[later] == 0)


@pytest.mark.parametrize("kind", ["gru"])
def test_compiled_programs_give_the_same_numbers(prepare, solve, model, monkeypatch):
    monkeypatch.setattr(_blocks, "_WORTH_COMPILING", -1)
    compiled = Programs(compiled_shapes=8)
    x = np.random.default_rng(2).normal(size=(1, 9, 2))
    for of, wrt, mode, kind in (
        ("y", "x", "forward", "chain"),
        ("y[6:]", "state.rnn.h", "forward", "forward"),
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
