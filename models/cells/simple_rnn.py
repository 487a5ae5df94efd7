"""The fully connected recurrence of Elman (doi:10.1207/s15516709cog1402_1): `h' = φ(p + h U)`."""

from dataclasses import dataclass

import keras
import tensorflow as tf

from models.cells._activation import Activation, is_elementwise, value_and_slope
from models.cells._cell import Cell, Maybe, Tensors, affine, keras_weights, outer, product_tangent, scaled, times, total


@dataclass(frozen=True)
class SimpleRnn:
    """An Elman cell with an elementwise activation."""

    activation: Activation
    slots = ("h",)

    def weights(self, cell: keras.layers.SimpleRNNCell) -> Tensors:
        return keras_weights(cell)

    def project(self, weights: Tensors, x: tf.Tensor) -> tf.Tensor:
        return affine(x, weights[0], *weights[2:])

    def consts(self, weights: Tensors) -> Tensors:
        return [weights[1]]

    def step(self, consts: Tensors, carry: Tensors, p: tf.Tensor, q: tf.Tensor) -> Tensors:
        return [self.activation(p + q)]

    def linearise(self, consts: Tensors, before: Tensors, p: tf.Tensor, q: tf.Tensor) -> tuple[Tensors, Tensors]:
        return [value_and_slope(self.activation, p + q)[1]], []

    def source(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, d_consts: Maybe, dp: tf.Tensor | None
    ) -> Maybe:
        return [scaled(coefficients[0], total(dp, product_tangent(before[0], d_consts[0])))]

    def push(self, consts: Tensors, coefficients: Tensors, tangents: Tensors, dq: tf.Tensor) -> Tensors:
        return [coefficients[0] * dq]

    def pull(self, consts: Tensors, coefficients: Tensors, cotangents: Tensors) -> Tensors:
        return [times(coefficients[0] * cotangents[0], consts[0], transpose=True)]

    def collect(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, cotangents: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        gp = coefficients[0] * cotangents[0]
        return [outer(before[0], gp)], gp


class _Kind:
    name = "simple_rnn"

    def match(self, cell: keras.layers.Layer) -> Cell | None:
        if type(cell) is not keras.layers.SimpleRNNCell or not is_elementwise(cell.activation, cell.units):
            return None
        return SimpleRnn(cell.activation)


CELL = _Kind()
