import keras
import numpy as np
import pytest
import tensorflow as tf

from models import SimpleRNN, scan

X = tf.constant(np.random.default_rng(0).standard_normal((1, 3, 2)))


@pytest.mark.parametrize("graph", [False, True])
def test_a_captured_variable_that_is_differentiated_is_refused(graph):
    """Silence would be worse: the gradient would be None, or lack a term."""
    beta = tf.Variable(0.7, dtype="float64")
    layer = SimpleRNN(2, activation=lambda a: tf.tanh(beta * a), dtype="float64")

    def gradient():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(layer(X))
        return tape.gradient(y, beta)

    with pytest.raises(ValueError, match="hand it to scan as one of consts"):
        (tf.function(gradient) if graph else gradient)()


def test_a_captured_tensor_that_is_pushed_forward_is_refused():
    scale = tf.constant(0.5, "float64")

    def step(_, carry, x):
        return [carry[0] + scale * x[0]], []

    with tf.autodiff.ForwardAccumulator(scale, tf.ones_like(scale)), pytest.raises(ValueError, match="one of consts"):
        scan(step, [], [tf.zeros(2, "float64")], [X[0]])


def test_a_captured_constant_is_fine():
    scale = tf.constant(0.5, "float64")
    layer = SimpleRNN(2, activation=lambda a: tf.tanh(scale * a), dtype="float64")
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = tf.reduce_sum(layer(X))
    assert np.abs(tape.gradient(y, X)).min() > 0


def test_softsign_has_a_second_derivative():
    keras.utils.set_random_seed(0)
    layer = SimpleRNN(2, activation="softsign", dtype="float64")
    layer(X)

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(layer(x))
        return tape.gradient(y, x)

    v, step = tf.ones_like(X), 1e-5
    with tf.autodiff.ForwardAccumulator(X, v) as accumulator:
        found = slope(X)
    wanted = (slope(X + step * v) - slope(X - step * v)) / (2 * step)
    np.testing.assert_allclose(accumulator.jvp(found), wanted, rtol=1e-6, atol=1e-9)
