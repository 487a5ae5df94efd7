"""Masks that are held: what was hidden stays hidden, though inputs move; elsewhere and later nothing changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.model import Model

L = keras.layers


def nested():
    inner = keras.Sequential([keras.Input((None, 2)), L.Masking(), L.GRU(3, return_sequences=True)])
    x = keras.Input((None, 2))
    return keras.Model(x, L.Dense(1)(inner(x)))


def functional():
    x = keras.Input((None, 2))
    return keras.Model(x, L.GRU(3, return_sequences=True)(L.Masking()(x)))


def subclassed():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.masking, self.rnn = L.Masking(), L.LSTM(3, return_sequences=True)

        def call(self, x):
            return self.rnn(self.masking(x))

    model = Own()
    model(np.ones((1, 4, 2), "float32"))
    return model


def sequential_built_late():
    model = keras.Sequential([L.Masking(), L.SimpleRNN(3, return_sequences=True)])
    model(np.ones((1, 4, 2), "float32"))
    return model


@pytest.mark.parametrize("make", [nested, functional, subclassed, sequential_built_late])
@pytest.mark.parametrize("graph", [False, True])
def test_a_hidden_step_stays_hidden_within_the_context_only(make, graph):
    keras.utils.set_random_seed(1)
    model = Model("made", make())
    x = np.random.default_rng(0).normal(size=(2, 4, 2)).astype("float32")
    x[0, 1] = x[1, 3] = 0
    moved = x + np.float32(0.01)
    shown = np.where((x == 0).all(-1, keepdims=True), 0, moved)

    def run(x):
        return model.run({"x": tf.convert_to_tensor(x)}, ["y"])["y"]

    def held(x, moved):
        with model.holding_masks():
            return run(x), run(moved), run(x)

    first, second, third = (tf.function(held, autograph=False) if graph else held)(tf.constant(x), tf.constant(moved))
    np.testing.assert_allclose(first, run(x), rtol=1e-6)
    np.testing.assert_allclose(third, first, rtol=1e-6)
    np.testing.assert_allclose(second, run(shown), rtol=1e-6)
    assert np.abs(second - run(moved)).max() > 1e-3


def test_a_layer_that_is_called_twice_has_two_masks():
    keras.utils.set_random_seed(1)
    masking, rnn = L.Masking(), L.SimpleRNN(3)
    a, b = keras.Input((None, 2), name="a"), keras.Input((None, 2), name="b")
    model = Model("made", keras.Model([a, b], rnn(masking(a)) - 2 * rnn(masking(b))))
    x = np.random.default_rng(0).normal(size=(2, 1, 4, 2)).astype("float32")
    x[0, :, 1] = x[1, :, 3] = 0
    point = {"a": tf.constant(x[0]), "b": tf.constant(x[1])}
    with model.holding_masks():
        first = model.run(point, ["y"])["y"]
        moved = model.run({n: tf.where(t == 0, 0.01, t) for n, t in point.items()}, ["y"])["y"]
    np.testing.assert_allclose(moved, first, rtol=1e-6)
