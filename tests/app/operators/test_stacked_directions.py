"""Reverse and forward mode for stacked directions, in all sorts of models, against one direction at a time."""

from functools import cache, partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from app.operators import _programs as programs
from models.gradcheck import TOLERANCES, compare
from models.model import Model
from tests.app.operators.networks import Cell, in_a_row

L = keras.layers
BATCH, TIME, K = 2, 4, 3


def shared():
    x, layer = keras.Input((None, 3)), L.GRU(3, return_sequences=True, name="gru")
    return keras.Model(x, layer(layer(x)))


def nested():
    inner = in_a_row(L.SimpleRNN(3, return_sequences=True, name="rnn"), L.Dense(2, activation="softplus"))
    return in_a_row(inner, L.LSTM(2, name="lstm"))


MODELS = {
    "two": lambda: in_a_row(L.GRU(4, return_sequences=True), L.LSTM(3, return_sequences=True), L.Dense(2)),
    "stacked": lambda: in_a_row(L.RNN([L.GRUCell(2), L.LSTMCell(3)], return_sequences=True), L.Dense(2)),
    "custom": lambda: in_a_row(L.RNN(Cell(3), return_sequences=True), L.LSTM(2)),
    "image": lambda: in_a_row(
        L.ConvLSTM1D(2, 3, padding="same", return_sequences=True), L.TimeDistributed(L.Flatten()), x=(None, 4, 3)
    ),
    "masked": lambda: in_a_row(
        L.Masking(),
        L.GRU(3, return_sequences=True),
        L.LSTM(2, return_sequences=True, go_backwards=True),
        L.LayerNormalization(),
    ),
    "bidirectional": lambda: in_a_row(
        L.Masking(),
        L.Bidirectional(L.GRU(2, return_sequences=True, reset_after=False)),
        L.LSTM(2, activation="relu"),
    ),
    "tokens": lambda: in_a_row(
        L.Embedding(7, 3, mask_zero=True),
        L.SimpleRNN(3, return_sequences=True),
        L.BatchNormalization(),
        L.Dense(3, activation="softmax"),
        x=(None,),
        dtype="int32",
    ),
    "convolution": lambda: in_a_row(L.Conv1D(3, 2), L.SimpleRNN(2)),
    "dense": lambda: in_a_row(L.Dense(4, activation="tanh"), L.Dense(2), x=(3,)),
    "shared": shared,
    "nested": nested,
}


BY_DEFAULT = ("two", "tokens", "dense")
ALL = [n if n in BY_DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]


@pytest.fixture(scope="module")
def made(in_float64):
    return cache(partial(point, in_float64))


def point(in_float64, name):
    model = Model(name, in_float64(MODELS[name]))
    rng = np.random.default_rng(6)
    (spec,) = model.signature.inputs
    shape = [BATCH, *([TIME] if "time" in spec.axes else []), *(n for n in spec.shape[1:] if n)]
    x = rng.normal(size=shape) if spec.differentiable else rng.integers(0, 7, shape, spec.dtype)
    if name in ("masked", "bidirectional"):
        x[0, 2] = x[1, :2] = 0
    inputs = {"x": tf.constant(x)}
    outputs = [a.name for a in (*model.signature.outputs, *model.signature.states, *model.signature.hidden[-1:])]
    sources = ["x"] if spec.differentiable else []
    sources += [a.name for a in (*model.signature.states[:2], *model.signature.hidden[:1])]
    return model, inputs, outputs, sources


def numbered(found):
    return {name: t.numpy() for name, t in found.items()}


def draw(like, seed):
    rng = np.random.default_rng(seed)
    return {name: tf.constant(rng.normal(size=(K, *t.shape))) for name, t in like.items()}


def pull(model, inputs, outputs, wrt, cotangents, stacked, directions=0, jit=False):
    def run(cotangents):
        point = programs.point_of(model, inputs, wrt)
        more = {"directions": directions} if directions else {}
        return programs.pull(lambda p: model.run({**inputs, **p}, outputs, **more), point, cotangents, wrt, stacked)[1]

    return tf.function(run, autograph=False, jit_compile=jit)


def check_pull(made, name, wrt, directions=0, jit=False):
    model, inputs, outputs, _ = made(name)
    cotangents = draw(model.run(inputs, outputs), 1)
    arguments = (model, inputs, outputs, wrt, cotangents)
    found = numbered(pull(*arguments, stacked=True, directions=directions, jit=jit)(cotangents))
    single = pull(*arguments, stacked=False)
    rows = [numbered(single({n: c[k] for n, c in cotangents.items()})) for k in range(K)]
    wanted = {n: np.stack([row[n] for row in rows]) for n in wrt}
    assert compare(found, wanted, floor=1e-3) < TOLERANCES["float64"].equality
    assert any(np.any(a != 0) for a in found.values())


@pytest.mark.parametrize("name", ALL)
def test_reverse_by_inputs_states_and_parameters(made, name):
    model, _, _, sources = made(name)
    check_pull(made, name, [*sources, *(p.name for p in model.signature.parameters)])


@pytest.mark.parametrize("name", [name for name in ALL if name != "dense"])
def test_reverse_by_the_matrices_of_steps(made, name):
    check_pull(made, name, made(name)[3] or [p.name for p in made(name)[0].signature.parameters], directions=100)


@pytest.mark.parametrize(
    "name", ["two", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bidirectional", "tokens", "image"))]
)
def test_forward_by_the_matrices_of_steps(made, name):
    model, inputs, outputs, wrt = made(name)
    point = programs.point_of(model, inputs, wrt)
    tangents = draw(point, 2)

    def push(tangents, stacked, **more):
        point = programs.point_of(model, inputs, wrt)
        return programs.push(lambda p: model.run({**inputs, **p}, outputs, **more), point, tangents, stacked)[1]

    found = tf.function(lambda t: push(t, True, directions=100), autograph=False)(tangents)
    single = tf.function(lambda t: push(t, False), autograph=False)
    rows = [numbered(single({n: t[k] for n, t in tangents.items()})) for k in range(K)]
    wanted = {n: np.stack([row[n] for row in rows]) for n in outputs}
    assert compare(numbered(found), wanted, floor=1e-3) < TOLERANCES["float64"].equality


def test_reverse_under_xla(made):
    model, _, _, sources = made("two")
    check_pull(made, "two", [*sources, model.signature.parameters[0].name], jit=True)


def test_what_an_output_does_not_depend_on_is_zeros(made):
    model, inputs, _, _ = made("two")
    second = model.signature.parameters[-1].name
    outputs = [model.signature.states[0].name]
    cotangents = draw(model.run(inputs, outputs), 3)
    found = pull(model, inputs, outputs, ["x", second], cotangents, stacked=True)(cotangents)
    assert np.all(found[second].numpy() == 0)
    assert found[second].shape == (K, *model.signature.parameters[-1].shape)
    assert np.any(found["x"].numpy() != 0)


@pytest.mark.parametrize(
    "wrt",
    [
        pytest.param(["x"], marks=pytest.mark.slow),
        ["x", "state.gru_2.h", "hidden.gru_1.h", "param.gru_1.kernel", "param.dense.bias"],
    ],
)
def test_vjps_of_many_stacked_cotangents_over_http(ask, wrt):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 4, 1))
    stacks = {
        "cotangents.y": rng.normal(size=(12, 2, 4, 1)),
        "cotangents.hidden.gru_2.h": rng.normal(size=(12, 2, 4, 32)),
    }
    found = ask("vjp", "seed-gru", {"inputs.x": x} | stacks, wrt=wrt)
    for k in (0, 11):
        single = ask("vjp", "seed-gru", {"inputs.x": x} | {path: a[k] for path, a in stacks.items()}, wrt=wrt)
        for name in wrt:
            row, wanted = found.arrays[f"cotangents.{name}"][k], single.arrays[f"cotangents.{name}"]
            np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-12 * max(1, np.abs(wanted).max()))
