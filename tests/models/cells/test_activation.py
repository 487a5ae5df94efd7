import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models.cells._activation import is_elementwise


@pytest.mark.parametrize(
    "activation",
    [
        keras.activations.softmax,
        lambda a: tf.cumsum(a, -1, reverse=True),
        lambda a: a * a[..., -1:],
        lambda a: tf.clip_by_norm(a, 3.0, axes=-1),
        lambda a: a - tf.reduce_mean(a, 0),
        lambda a: a * tf.constant([1.0, 2.0, 3.0]),
    ],
    ids=["softmax", "cumsum", "last", "norm", "mean", "vector"],
)
def test_what_mixes_units_or_rows_is_not_elementwise(activation):
    assert not is_elementwise(activation, 3)


@pytest.mark.parametrize("name", ["tanh", "relu", "sigmoid", "gelu", "silu", "elu", "selu", "softplus", "linear"])
def test_what_keras_calls_by_these_names_is_elementwise(name):
    assert is_elementwise(keras.activations.get(name), 3)


def test_an_elementwise_lambda_is_recognised():
    assert is_elementwise(lambda a: 0.5 * a + tf.sin(a), 3)


@pytest.mark.parametrize(
    "activation", ["sparsemax", lambda a: tf.cumsum(a, -1, reverse=True)], ids=["sparsemax", "sum"]
)
def test_activations_that_mix_units_have_the_right_tangent(activation):
    if isinstance(activation, str) and not hasattr(keras.activations, activation):
        pytest.skip("this Keras has no sparsemax")
    keras.utils.set_random_seed(3)
    layer = models.SimpleRNN(5, activation=activation, dtype="float64", return_sequences=True)
    x, v = (tf.constant(np.random.default_rng(i).standard_normal((2, 3, 2))) for i in (0, 1))
    layer(x)

    @tf.function
    def pushed(x, v):
        with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
            y = layer(x)
        return accumulator.jvp(y)

    step = 1e-6
    wanted = (layer(x + step * v) - layer(x - step * v)) / (2 * step)
    np.testing.assert_allclose(pushed(x, v), wanted, rtol=1e-6, atol=1e-8)


def test_an_eager_cell_is_asked_anew_each_time():
    """A drop-in must not freeze what a user's cell reads besides its weights."""

    class Cell(keras.layers.Layer):
        state_size, gain = 2, 1.0

        def call(self, x, states):
            h = states[0] + self.gain * x
            return h, [h]

    layer = models.RNN(Cell())
    x = tf.ones((1, 3, 2))
    before = layer(x)
    layer.cell.gain = 5.0
    np.testing.assert_allclose(layer(x), 5 * before)
