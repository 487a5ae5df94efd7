"""What a cell is: a step, and the step's linearisation at all times at once, applied forwards and backwards.

Given the states before every step, the derivative of each step is a linear map whose coefficients are computed for the
whole sequence in a few large products. What is left inside the loop is one small product per step and direction. The
same code, given one step without a time axis, is that step's own linearisation. The
tangent (`source`, `push`) and the cotangent (`pull`, `collect`) use the same coefficients, transposed; this is the
tangent linear and adjoint model of Griewank and Walther, Evaluating Derivatives (doi:10.1137/1.9780898717761), ch. 3.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

Tensors = list[tf.Tensor]
Maybe = Sequence[tf.Tensor | None]


class Cell(Protocol):
    """A hand-written cell; `B` rows, `G` projected features, `H` units, `T` steps, `K` optional stacked directions.

    The first slot of the state is the cell's output. Coefficients come in two lists: those the loop needs at each step
    and those only the products over all steps need, every one with a leading time axis.

    `consts[0]` multiplies the first slot. That product, `q = h @ consts[0]`, is most of a step's work; whoever calls
    the cell computes it, so that a state and its tangents can share one.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state's parts."""
        ...

    def weights(self, cell: keras.layers.Layer) -> Tensors:
        """Read the Keras cell's weights, once, in its compute dtype."""
        ...

    def project(self, weights: Tensors, x: tf.Tensor) -> tf.Tensor:
        """Compute the part of all steps that depends on the input only: `(..., features)` to `(..., G)`."""
        ...

    def consts(self, weights: Tensors) -> Tensors:
        """Select the weights that the steps use."""
        ...

    def step(self, consts: Tensors, carry: Tensors, p: tf.Tensor, q: tf.Tensor) -> Tensors:
        """Advance the state, `(B, H)` per slot, by one step with projected input `(B, G)`."""
        ...

    def linearise(self, consts: Tensors, before: Tensors, p: tf.Tensor, q: tf.Tensor) -> tuple[Tensors, Tensors]:
        """Compute the coefficients of all steps: (for the loop, for the products over all steps)."""
        ...

    def source(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, d_consts: Maybe, dp: tf.Tensor | None
    ) -> Maybe:
        """Compute the tangent due to `d_consts` and `dp`, `([T,] [K,] B, H)` per slot, None for zero.

        It is called for all steps at once, where coefficients have an axis of size 1 in place of K, and for one step.
        """
        ...

    def push(self, consts: Tensors, coefficients: Tensors, tangents: Tensors, dq: tf.Tensor) -> Tensors:
        """Map tangents of the state, `([K,] B, H)`, through one step."""
        ...

    def pull(self, consts: Tensors, coefficients: Tensors, cotangents: Tensors) -> Tensors:
        """Map cotangents of the state back through one step: the transpose of `push`."""
        ...

    def collect(
        self, consts: Tensors, coefficients: Tensors, before: Tensors, cotangents: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        """Compute the cotangents of `consts` and `p`: the transpose of `source`, given those of all states.

        With K stacked cotangents, `(T, K, B, H)`, coefficients and `before` have an axis of size 1 in place of K.
        """
        ...


def keras_weights(cell: Any) -> Tensors:
    """Read a Keras cell's weights: `[kernel, recurrent kernel]`, and the bias if there is one.

    As tensors: if a variable were read inside a loop's body, reverse mode would keep a copy of it per step.
    """
    found = [cell.kernel, cell.recurrent_kernel] + ([cell.bias] if cell.use_bias else [])
    return [tf.cast(tf.convert_to_tensor(w), cell.compute_dtype) for w in found]


def affine(x: tf.Tensor, kernel: tf.Tensor, *bias: tf.Tensor) -> tf.Tensor:
    """Compute `x @ kernel`, plus the bias if there is one."""
    return total(times(x, kernel), *bias)


def times(a: tf.Tensor, b: tf.Tensor, *, transpose: bool = False) -> tf.Tensor:
    """Multiply the last axis of `a` with a matrix, as one product over all its leading axes."""
    if a.shape.rank == 2:
        return tf.matmul(a, b, transpose_b=transpose)
    flat = tf.matmul(tf.reshape(a, [-1, a.shape[-1]]), b, transpose_b=transpose)
    return tf.reshape(flat, tf.concat([tf.shape(a)[:-1], [flat.shape[-1]]], 0))


def product_tangent(a: tf.Tensor, d_matrix: tf.Tensor | None) -> tf.Tensor | None:
    """Compute `a @ d_matrix`, `([T,] B, H)` with `(H, G)` or `(K, H, G)`, to `([T,] [K,] B, G)`."""
    if d_matrix is None:
        return None
    return times(a, d_matrix) if d_matrix.shape.rank == 2 else tf.einsum("...bh,khg->...kbg", a, d_matrix)


def bias_tangent(d_bias: tf.Tensor | None) -> tf.Tensor | None:
    """Shape a bias's tangent, `(G,)` or `(K, G)`, so that it broadcasts over `(T, [K,] B, G)`."""
    return d_bias if d_bias is None or d_bias.shape.rank == 1 else d_bias[:, tf.newaxis]


def outer(a: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    """Compute the cotangent of a matrix from `a @ matrix` and the product's cotangent, summed over steps and rows.

    `(T, B, H)` and `(T, B, G)` to `(H, G)`, or `(T, 1, B, H)` and `(T, K, B, G)` to `(K, H, G)`.
    """
    if g.shape.rank == 4:
        return tf.einsum("tbh,tkbg->khg", tf.squeeze(a, 1), g)
    return tf.matmul(tf.reshape(a, [-1, a.shape[-1]]), tf.reshape(g, [-1, g.shape[-1]]), transpose_a=True)


def over_rows(g: tf.Tensor) -> tf.Tensor:
    """Sum the cotangents of a bias over steps and rows: `(T, [K,] B, G)` to `([K,] G)`."""
    return tf.reduce_sum(g, [0, -2])


def total(*terms: tf.Tensor | None) -> tf.Tensor | None:
    """Add the terms that are present."""
    present = [t for t in terms if t is not None]
    return sum(present[1:], present[0]) if present else None


def scaled(coefficient: tf.Tensor, term: tf.Tensor | None) -> tf.Tensor | None:
    """Multiply, where None is zero."""
    return None if term is None else coefficient * term


def gates(tensor: tf.Tensor, count: int) -> Tensors:
    """Split the last axis into gates."""
    return tf.split(tensor, count, -1)


def maybe_gates(tensor: tf.Tensor | None, count: int) -> Maybe:
    """Split the last axis into gates; None stays None."""
    return [None] * count if tensor is None else gates(tensor, count)
