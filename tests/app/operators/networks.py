"""Networks that several tests make models of."""

import keras
import tensorflow as tf

L = keras.layers


class Cell(L.Layer):
    """A cell without a rule of its own."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), name="w")
        self.u = self.add_weight(shape=(self.units, self.units), name="u")

    def call(self, x, states):
        h = tf.tanh(x @ self.w + tf.nn.softmax(states[0]) @ self.u)
        return h, [h]

    def get_initial_state(self, batch_size=None):
        return [tf.zeros((batch_size, self.units), self.compute_dtype)]


def in_a_row(*layers, x=(None, 3), dtype=None):
    return keras.Sequential([keras.Input(x, dtype=dtype), *layers])
