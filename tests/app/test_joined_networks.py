"""Networks whose rows or steps know of each other are joined where that changes nothing; numbers stay their own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from app.programs import Programs
from models.model import Model
from tests.app.joining import Kind, assert_same, key
from tests.app.operators.networks import Cell, in_a_row

L = keras.layers


class Centred(L.Layer):
    """Takes the mean over the batch away."""

    def call(self, x):
        return x - tf.reduce_mean(x, 0, keepdims=True)


class CentredCell(Cell):
    def call(self, x, states):
        h, states = super().call(x, states)
        return h - tf.reduce_mean(h, 0, keepdims=True), states


def functional(operate, x=(None, 3)):
    given = keras.Input(x)
    return keras.Model(given, operate(given))


def centred(x):
    return x - tf.reduce_mean(x, 0, keepdims=True)


MIXING = {
    "layer": lambda: in_a_row(L.GRU(4, return_sequences=True), Centred()),
    "lambda": lambda: in_a_row(L.SimpleRNN(4, return_sequences=True), L.Lambda(centred)),
    "cell": lambda: in_a_row(L.RNN(CentredCell(4), return_sequences=True)),
    "activation": lambda: in_a_row(L.SimpleRNN(4, activation=centred, return_sequences=True)),
    "within a TimeDistributed": lambda: in_a_row(L.TimeDistributed(Centred())),
    "operation": lambda: functional(lambda x: x - keras.ops.mean(x, 0, keepdims=True)),
    "flipped": lambda: functional(lambda x: keras.ops.flip(x, 0)),
    "softmax": lambda: in_a_row(L.GRU(4, return_sequences=True), L.Softmax(axis=0)),
    "softmax from the end": lambda: in_a_row(L.GRU(4, return_sequences=True), L.Softmax(axis=-3)),
    "unit norm": lambda: in_a_row(L.UnitNormalization(axis=0)),
    "joined rows": lambda: functional(lambda x: L.Concatenate(axis=0)([x, x])),
    "nested": lambda: functional(lambda x: in_a_row(L.GRU(3, return_sequences=True), Centred())(x)),
    "einsum": lambda: in_a_row(L.EinsumDense("abc,cd->bd", output_shape=(4,))),
    "rescaled": lambda: in_a_row(L.Rescaling(np.array([[[1.0]], [[2.0]]]))),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_joined_with_nothing(name):
    model = Model("mixing", MIXING[name]())
    assert model.signature.mixing
    kind = Kind(model, "evaluate", [], [], {}, None)
    work = kind.work(np.random.default_rng(0), 2, 5)
    assert work.layout is None
    programs = Programs(patience=1)
    for _ in range(2):  # By a compiled program, too, whose rows must not be filled up.
        found, _ = programs.run(model, "evaluate", work)
        expected = model.run(
            {n.partition(".")[2]: tf.constant(a) for n, a in work.feeds.items()}, list(_outputs(model))
        )
        for output, value in expected.items():
            np.testing.assert_allclose(found[f"outputs.{output}"], value, rtol=1e-5, atol=1e-6)


def _outputs(model):
    return [a.name for a in model.signature.outputs]


def masked(*layers):
    return in_a_row(L.Masking(0.0), *layers)


def tokens(*layers):
    return in_a_row(L.Embedding(9, 3, mask_zero=True), *layers, x=(None,), dtype="int32")


# Each with whether its lengths are joined.
ROWWISE = {
    "masked": (lambda: masked(L.GRU(4, return_sequences=True), L.Dense(2)), True),
    "masked, last step": (lambda: masked(L.LSTM(4), L.Dense(2)), False),
    "tokens": (lambda: tokens(L.GRU(4, return_sequences=True)), True),
    "tokens, last step": (lambda: tokens(L.GRU(4)), False),
    "batch norm": (lambda: in_a_row(L.GRU(4, return_sequences=True), L.BatchNormalization()), True),
    "batch norm over time": (lambda: in_a_row(L.BatchNormalization(axis=1), L.GRU(4), x=(10, 3)), False),
    "layer norm": (lambda: in_a_row(L.SimpleRNN(4, return_sequences=True), L.LayerNormalization()), True),
    "bidirectional": (lambda: in_a_row(L.Bidirectional(L.GRU(3, return_sequences=True))), False),
    "backwards": (lambda: in_a_row(L.GRU(3, return_sequences=True, go_backwards=True)), False),
    "convolution": (lambda: in_a_row(L.Conv1D(3, 3, padding="same"), L.GRU(3, return_sequences=True)), False),
    "pooled": (lambda: in_a_row(L.GRU(3, return_sequences=True), L.GlobalAveragePooling1D()), False),
    "softmax over time": (lambda: in_a_row(L.GRU(3, return_sequences=True), L.Softmax(axis=1)), False),
    "softmax": (lambda: in_a_row(L.GRU(3, return_sequences=True), L.Softmax()), True),
    "einsum": (lambda: in_a_row(L.EinsumDense("abc,cd->abd", (None, 4)), L.GRU(3, return_sequences=True)), False),
    "any cell": (
        lambda: in_a_row(L.RNN(L.StackedRNNCells([L.GRUCell(3), L.LSTMCell(2)]), return_sequences=True)),
        True,
    ),
}


def fill(rng, work):
    """Leave steps out, or choose tokens."""
    x = next(iter(work.feeds.values()))
    if x.dtype == np.int32:
        x[...] = rng.integers(0, 9, x.shape)
    else:
        x[rng.random(x.shape[:2]) < 0.4] = 0


@pytest.mark.parametrize("operator", [pytest.param("jvp", marks=pytest.mark.slow), "vjp"])
@pytest.mark.parametrize(
    "name", [n if i % 3 == 0 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(ROWWISE)]
)
def test_what_keeps_rows_apart_is_joined(name, operator):
    build, padded = ROWWISE[name]
    model, rng = Model("rowwise", build()), np.random.default_rng(list(map(ord, name + operator)))
    assert model.signature.mixing is None
    differentiable = all(a.differentiable for a in model.signature.inputs)
    places = [a.name for a in (model.signature.inputs if differentiable else model.signature.hidden)][:1]
    outputs = _outputs(model)
    options = {"wrt": places} if operator == "vjp" else {"outputs": outputs}
    kind = Kind(model, operator, [], places if operator == "jvp" else outputs, options, None)
    keys = [key(kind.work(rng, 1, time)) for time in (10, 12)] if "over time" not in name else [0, 1]
    assert (keys[0] == keys[1]) == padded
    works = [kind.work(rng, rows, 10 + 2 * padded * (rows % 2)) for rows in (1, 2, 3)]
    for work in works:
        fill(rng, work)
    programs = Programs(compiled=0)
    found, _ = programs.run_group(model, operator, works)
    for work, part in zip(works, found, strict=True):
        assert_same(part, programs.run(model, operator, work)[0], model.dtype)
