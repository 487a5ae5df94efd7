"""The long short-term memory of Hochreiter and Schmidhuber (doi:10.1162/neco.1997.9.8.1735), as Keras has it.

With gates `i, f, g, o` from `a = p + h U`: `c' = f c + i g`, `h' = o φ(c')`. The state is the pair (h, c): a Jacobian
with respect to h alone is not the state's Jacobian.
"""

from dataclasses import dataclass

import keras
import tensorflow as tf

from models.cells._activation import Activation, is_elementwise, value_and_slope
from models.cells._cell import (
    Cell,
    Maybe,
    Tensors,
    affine,
    gates,
    keras_weights,
    maybe_gates,
    outer,
    product_tangent,
    scaled,
    times,
    total,
)


@dataclass(frozen=True)
class Lstm:
    """An LSTM cell with elementwise activations."""

    activation: Activation
    recurrent_activation: Activation
    slots = ("h", "c")

    def weights(self, cell: keras.layers.LSTMCell) -> Tensors:
        return keras_weights(cell)

    def project(self, weights: Tensors, x: tf.Tensor) -> tf.Tensor:
        return affine(x, weights[0], *weights[2:])

    def consts(self, weights: Tensors) -> Tensors:
        return [weights[1]]

    def step(self, consts: Tensors, carry: Tensors, p: tf.Tensor, q: tf.Tensor) -> Tensors:
        _, c = carry
        ai, af, ag, ao = gates(p + q, 4)
        gate = self.recurrent_activation
        c = gate(af) * c + gate(ai) * self.activation(ag)
        return [gate(ao) * self.activation(c), c]

    def linearise(self, consts: Tensors, before: Tensors, p: tf.Tensor, q: tf.Tensor) -> tuple[Tensors, Tensors]:
        _, c = before
        ai, af, ag, ao = gates(p + q, 4)
        i, slope_i = value_and_slope(self.recurrent_activation, ai)
        f, slope_f = value_and_slope(self.recurrent_activation, af)
        g, slope_g = value_and_slope(self.activation, ag)
        o, slope_o = value_and_slope(self.recurrent_activation, ao)
        out, slope_out = value_and_slope(self.activation, f * c + i * g)
        to_cell = tf.concat([g * slope_i, c * slope_f, i * slope_g], -1)
        return [f, o * slope_out, to_cell, out * slope_o], []

    def source(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, d_consts: Maybe, dp: tf.Tensor | None
    ) -> Maybe:
        _, through, to_cell, to_out = coefficients
        di, df, dg, do = maybe_gates(total(dp, product_tangent(before[0], d_consts[0])), 4)
        dc = total(*(scaled(c, d) for c, d in zip(gates(to_cell, 3), (di, df, dg), strict=True)))
        return [total(scaled(through, dc), scaled(to_out, do)), dc]

    def push(self, consts: Tensors, coefficients: Tensors, tangents: Tensors, dq: tf.Tensor) -> Tensors:
        f, through, to_cell, to_out = coefficients
        _, dc = tangents
        da_i, da_f, da_g, da_o = gates(dq, 4)
        ci, cf, cg = gates(to_cell, 3)
        dc = f * dc + ci * da_i + cf * da_f + cg * da_g
        return [through * dc + to_out * da_o, dc]

    def pull(self, consts: Tensors, coefficients: Tensors, cotangents: Tensors) -> Tensors:
        gc, ga = self._gates(coefficients, cotangents)
        return [times(ga, consts[0], transpose=True), coefficients[0] * gc]

    def collect(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, cotangents: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        _, ga = self._gates(coefficients, cotangents)
        return [outer(before[0], ga)], ga

    def _gates(self, coefficients: Tensors, cotangents: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        _, through, to_cell, to_out = coefficients
        gh, gc = cotangents
        gc = gc + through * gh
        return gc, tf.concat([to_cell * tf.concat([gc, gc, gc], -1), to_out * gh], -1)


class _Kind:
    name = "lstm"

    def match(self, cell: keras.layers.Layer) -> Cell | None:
        if type(cell) is not keras.layers.LSTMCell:
            return None
        if not all(is_elementwise(f, cell.units) for f in (cell.activation, cell.recurrent_activation)):
            return None
        return Lstm(cell.activation, cell.recurrent_activation)


CELL = _Kind()
