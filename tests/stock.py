"""The right answers for a model: stock Keras in float64, called eagerly, where TensorFlow's forward mode is right."""

import keras
import numpy as np
import tensorflow as tf


class Stock:
    """A model as stock Keras computes it.

    Args:
        network: the model in any precision; it is built again in float64 with the same weights.
        arrays: its inputs, by position.
    """

    def __init__(self, network, arrays):
        self.network = _wide(network)
        self.tensors = [tf.constant(a) for a in arrays]
        self.moving = [i for i, t in enumerate(self.tensors) if t.dtype.is_floating]

    def __call__(self):
        found = self.network(self.tensors if len(self.tensors) > 1 else self.tensors[0], training=False)
        return keras.tree.flatten(found)

    @property
    def primals(self):
        """The inputs that can move, then the weights."""
        return [self.tensors[i] for i in self.moving] + [v.value for v in self.weights]

    @property
    def weights(self):
        return [v for v in self.network.variables if v.dtype.startswith("float")]

    def outputs(self):
        return [t.numpy() for t in self()]

    def jvp(self, tangents):
        """Tangents of the outputs, given those of the inputs that can move."""
        primals = [self.tensors[i] for i in self.moving]
        with tf.autodiff.ForwardAccumulator(primals, [tf.constant(t) for t in tangents]) as accumulator:
            found = self()
        return [accumulator.jvp(t, "zero").numpy() for t in found]

    def vjp(self, cotangents):
        """Cotangents of the inputs that can move, then those of the weights."""
        inputs = [self.tensors[i] for i in self.moving]
        with tf.GradientTape() as tape:
            tape.watch([*inputs, *(v.value for v in self.weights)])
            found = self()
        sources = [*inputs, *(v.value for v in self.weights)]
        pulled = tape.gradient(found, sources, [tf.constant(c) for c in cotangents], tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(t).numpy() for t in pulled]

    def weight_like(self, values):
        """Find the position among the weights of the one that has these values: random numbers are no two alike."""
        (found,) = [
            i
            for i, v in enumerate(self.weights)
            if v.shape == values.shape and np.allclose(v.numpy(), values, rtol=1e-6, atol=0)
        ]
        return found


def _wide(network):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        found = type(network).from_config(_in_float64(network.get_config()))
    finally:
        keras.config.set_dtype_policy(before)
    found.set_weights(network.get_weights())
    return found


def _in_float64(config):
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy":
            return {**config, "config": {"name": "float64"}}
        # A state that is left from the call before is none of the model's own.
        return {k: k != "stateful" and _in_float64(v) for k, v in config.items()}
    if isinstance(config, list | tuple):
        return type(config)(_in_float64(v) for v in config)
    return "float64" if config in ("float32", "mixed_float16") else config
