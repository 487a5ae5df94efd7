"""Values and slopes of activations, which users choose freely."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from models import _tf

Activation = Callable[[tf.Tensor], tf.Tensor]


def value_and_slope(activation: Activation, a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Evaluate an elementwise activation and its derivative at `a`."""
    if activation in _TANH:
        y = tf.tanh(a)
        return y, 1 - y * y
    if activation in _SIGMOID:
        y = tf.sigmoid(a)
        return y, y * (1 - y)
    if activation in _RELU:
        return tf.nn.relu(a), tf.cast(a > 0, a.dtype)
    if activation is keras.activations.linear:
        return a, tf.ones_like(a)
    if activation in _SOFTSIGN:  # TensorFlow has no second derivative of it
        inverse = 1 / (1 + tf.abs(a))
        return a * inverse, inverse * inverse
    with _tf.fresh_forward_state(), tf.GradientTape() as tape:
        tape.watch(a)
        y = activation(a)
        return y, tape.gradient(y, a, unconnected_gradients="zero")


def is_elementwise(activation: Activation, units: int) -> bool:
    """Tell whether an activation acts on each unit alone (softmax does not) and has no weights of its own."""
    if activation in _KNOWN:
        return True
    if isinstance(activation, keras.layers.Layer):
        return False
    with tf.init_scope():
        point = np.random.default_rng(0).normal(size=(2, units + 1)).astype("float32")
        moved = point.copy()
        moved[:, 0] += 1
        try:
            here, there = (np.asarray(activation(tf.constant(p))) for p in (point, moved))
        except Exception:  # one with a dtype or a width of its own: autodiff will call it with what the cell has
            return False
    return here.shape == point.shape and bool(np.array_equal(here[:, 1:], there[:, 1:]))


_TANH = {keras.activations.tanh, tf.nn.tanh, keras.ops.tanh}
_SIGMOID = {keras.activations.sigmoid, tf.nn.sigmoid, keras.ops.sigmoid}
_RELU = {keras.activations.relu, tf.nn.relu, keras.ops.relu}
_SOFTSIGN = {keras.activations.softsign, tf.nn.softsign, keras.ops.softsign}
_KNOWN = _TANH | _SIGMOID | _RELU | _SOFTSIGN | {keras.activations.linear}
