"""One step of a cell, its derivatives by the step's own matrices: what linearises a model at given states.

Along all directions of a state at once, the tangent of the state after the step is the step's matrix as it stands. So
it is formed, at the cost of its elements, and only what comes after the cell is pushed through products.
"""

from collections.abc import Sequence

import tensorflow as tf

from models import _tf
from models.cells._cell import Cell, Maybe, Tensors, times
from models.matrices import input_matrix, state_matrix
from models.scan import present


@tf.autograph.experimental.do_not_convert
def step_by_matrices(cell: Cell, weights: Tensors, carry: Tensors, x: tf.Tensor, along: str) -> Tensors:
    """Advance the state of a cell by one step, with a tangent rule for stacked directions.

    Args:
        cell: the hand-written cell.
        weights: `cell.weights(...)`; they are constants of these derivatives.
        carry: the state before, `(rows, units)` per slot.
        x: the input, `(rows, features)`.
        along: what the caller knows of the directions: in `"state"` the tangents of all slots side by side, in
            `"input"` those of `x`, are the identity for each row; `""` if nothing is known.

    Returns:
        The state after the step, `(rows, units)` per slot.

    Differentiable with respect to `carry` and `x`, once, in forward mode.
    """
    inputs = [*carry, x]
    seen = _tf.watched(inputs)
    with _tf.stop_recording():
        consts, p = cell.consts(weights), cell.project(weights, x)
        q = times(carry[0], consts[0])
        new = cell.step(consts, carry, p, q)

    def forward(inputs: Tensors, outputs: Tensors, *tangents: tf.Tensor) -> Maybe:
        *ds, dx = (t if s else None for t, s in zip(tangents, seen, strict=True))
        inner, bulk = cell.linearise(consts, carry, p, q)
        found: Tensors = []
        if present(ds):
            matrix = state_matrix(cell, consts, inner)
            found.append(tf.transpose(matrix, [1, 0, 2]) if along == "state" else _times(_joined(ds, carry), matrix))
        if dx is not None:
            matrix = input_matrix(cell, consts, weights[0], inner + bulk, carry)
            found.append(tf.transpose(matrix, [1, 0, 2]) if along == "input" else _times(dx, matrix))
        return tf.split(tf.add_n(found), len(carry), -1)

    def backward(*_: object) -> Maybe:
        raise ValueError("a step by its matrices has no cotangents; run the layer as it is")

    return _tf.with_derivatives(new, inputs, backward, forward)


def _times(directions: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Multiply `(K, rows, from)` with `(rows, from, to)`."""
    return tf.transpose(tf.matmul(tf.transpose(directions, [1, 0, 2]), matrix), [1, 0, 2])


def _joined(parts: Maybe, like: Sequence[tf.Tensor]) -> tf.Tensor:
    count = tf.shape(present(parts)[0])[0]
    zeros = [tf.zeros(tf.concat([[count], tf.shape(t)], 0), t.dtype) for t in like]
    return tf.concat([z if p is None else p for p, z in zip(parts, zeros, strict=True)], -1)
