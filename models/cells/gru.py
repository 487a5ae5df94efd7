"""The gated recurrent unit of Cho et al. (doi:10.3115/v1/D14-1179), in both of Keras's variants.

With `q = h U + b`, `z = σ(p_z + q_z)` and `r = σ(p_r + q_r)`, the state becomes `z h + (1 - z) n`, where
`n = φ(p_n + r q_n)` with `reset_after` and `n = φ(p_n + (r h) U_n)` without.
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
    bias_tangent,
    gates,
    keras_weights,
    maybe_gates,
    outer,
    over_rows,
    product_tangent,
    scaled,
    times,
    total,
)


@dataclass(frozen=True)
class _Gru:
    activation: Activation
    recurrent_activation: Activation
    slots = ("h",)

    def weights(self, cell: keras.layers.GRUCell) -> Tensors:
        return keras_weights(cell)


@dataclass(frozen=True)
class ResetAfter(_Gru):
    """The reset gate acts on the recurrent product (cuDNN's variant, Keras's default)."""

    def project(self, weights: Tensors, x: tf.Tensor) -> tf.Tensor:
        return affine(x, weights[0], *(bias[0] for bias in weights[2:]))

    def consts(self, weights: Tensors) -> Tensors:
        return [weights[1]] + ([weights[2][1]] if len(weights) > 2 else [])

    def step(self, consts: Tensors, carry: Tensors, p: tf.Tensor, q: tf.Tensor) -> Tensors:
        (h,) = carry
        (pz, pr, pn), (qz, qr, qn) = gates(p, 3), gates(_with_bias(q, consts), 3)
        z, r = self.recurrent_activation(pz + qz), self.recurrent_activation(pr + qr)
        n = self.activation(pn + r * qn)
        return [z * (h - n) + n]

    def linearise(self, consts: Tensors, before: Tensors, p: tf.Tensor, q: tf.Tensor) -> tuple[Tensors, Tensors]:
        (h,) = before
        (pz, pr, pn), (qz, qr, qn) = gates(p, 3), gates(_with_bias(q, consts), 3)
        z, slope_z = value_and_slope(self.recurrent_activation, pz + qz)
        r, slope_r = value_and_slope(self.recurrent_activation, pr + qr)
        n, slope_n = value_and_slope(self.activation, pn + r * qn)
        cn = (1 - z) * slope_n
        return [z, tf.concat([(h - n) * slope_z, cn * qn * slope_r, cn * r], -1)], [cn]

    def source(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, d_consts: Maybe, dp: tf.Tensor | None
    ) -> Maybe:
        _, cq, cn = coefficients
        dq = total(product_tangent(before[0], d_consts[0]), *(bias_tangent(d) for d in d_consts[1:]))
        cz, cr, _ = gates(cq, 3)
        parts = [scaled(c, d) for c, d in zip((cz, cr, cn), maybe_gates(dp, 3), strict=True)]
        return [total(*parts, *(maybe_gates(scaled(cq, dq), 3)))]

    def push(self, consts: Tensors, coefficients: Tensors, tangents: Tensors, dq: tf.Tensor) -> Tensors:
        z, cq = coefficients
        (dh,) = tangents
        return [z * dh + total(*gates(cq * dq, 3))]

    def pull(self, consts: Tensors, coefficients: Tensors, cotangents: Tensors) -> Tensors:
        z, cq = coefficients
        (g,) = cotangents
        return [z * g + times(cq * tf.concat([g, g, g], -1), consts[0], transpose=True)]

    def collect(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, cotangents: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        _, cq, cn = coefficients
        (g,) = cotangents
        gq = cq * tf.concat([g, g, g], -1)
        gz, gr, _ = gates(gq, 3)
        g_consts = [outer(before[0], gq), over_rows(gq)][: len(consts)]
        return g_consts, tf.concat([gz, gr, cn * g], -1)


@dataclass(frozen=True)
class ResetBefore(_Gru):
    """The reset gate acts on the state before the recurrent product (the paper's variant)."""

    def project(self, weights: Tensors, x: tf.Tensor) -> tf.Tensor:
        return affine(x, weights[0], *weights[2:])

    def consts(self, weights: Tensors) -> Tensors:
        units = weights[1].shape[0]
        return [weights[1][:, : 2 * units], weights[1][:, 2 * units :]]

    def step(self, consts: Tensors, carry: Tensors, p: tf.Tensor, q: tf.Tensor) -> Tensors:
        (h,) = carry
        (pz, pr, pn), (qz, qr) = gates(p, 3), gates(q, 2)
        z, r = self.recurrent_activation(pz + qz), self.recurrent_activation(pr + qr)
        n = self.activation(pn + times(r * h, consts[1]))
        return [z * (h - n) + n]

    def linearise(self, consts: Tensors, before: Tensors, p: tf.Tensor, q: tf.Tensor) -> tuple[Tensors, Tensors]:
        (h,) = before
        (pz, pr, pn), (qz, qr) = gates(p, 3), gates(q, 2)
        z, slope_z = value_and_slope(self.recurrent_activation, pz + qz)
        r, slope_r = value_and_slope(self.recurrent_activation, pr + qr)
        n, slope_n = value_and_slope(self.activation, pn + times(r * h, consts[1]))
        return [z, r, (h - n) * slope_z, h * slope_r, (1 - z) * slope_n], []

    def source(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, d_consts: Maybe, dp: tf.Tensor | None
    ) -> Maybe:
        _, r, cz, cr, cn = coefficients
        dq = product_tangent(before[0], d_consts[0])
        (dpz, dpr, dpn), (dqz, dqr) = maybe_gates(dp, 3), maybe_gates(dq, 2)
        d_reset = scaled(cr, total(dpr, dqr))
        reset = r if r.shape.rank == before[0].shape.rank else tf.squeeze(r, 1)
        d_new = total(
            dpn,
            None if d_reset is None else times(d_reset, consts[1]),
            product_tangent(reset * before[0], d_consts[1]),
        )
        return [total(scaled(cz, total(dpz, dqz)), scaled(cn, d_new))]

    def push(self, consts: Tensors, coefficients: Tensors, tangents: Tensors, dq: tf.Tensor) -> Tensors:
        z, r, cz, cr, cn = coefficients
        (dh,) = tangents
        dqz, dqr = gates(dq, 2)
        return [z * dh + cz * dqz + cn * times(r * dh + cr * dqr, consts[1])]

    def pull(self, consts: Tensors, coefficients: Tensors, cotangents: Tensors) -> Tensors:
        z, r, cz, cr, cn = coefficients
        (g,) = cotangents
        g_reset = times(cn * g, consts[1], transpose=True)
        return [z * g + r * g_reset + times(tf.concat([cz * g, cr * g_reset], -1), consts[0], transpose=True)]

    def collect(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, cotangents: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        _, r, cz, cr, cn = coefficients
        (g,), (h,) = cotangents, before
        gn = cn * g
        gq = tf.concat([cz * g, cr * times(gn, consts[1], transpose=True)], -1)
        return [outer(h, gq), outer(r * h, gn)], tf.concat([gq, gn], -1)


def _with_bias(q: tf.Tensor, consts: Tensors) -> tf.Tensor:
    return q + consts[1] if len(consts) > 1 else q


class _Kind:
    name = "gru"

    def match(self, cell: keras.layers.Layer) -> Cell | None:
        if type(cell) is not keras.layers.GRUCell:
            return None
        if not all(is_elementwise(f, cell.units) for f in (cell.activation, cell.recurrent_activation)):
            return None
        variant = ResetAfter if cell.reset_after else ResetBefore
        return variant(cell.activation, cell.recurrent_activation)


CELL = _Kind()
