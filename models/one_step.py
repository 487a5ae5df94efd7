"""One step of a cell, its derivatives by the step's own matrices: what linearises a model at given states.

Along all directions of a state at once, the tangent of the state after the step is the step's matrix as it stands. So
it is formed, at the cost of its elements, and only what comes after the cell is pushed through products.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from models import _tf
from models.cells._cell import Cell, Maybe, Tensors, times
from models.matrices import input_matrix, state_matrix
from models.scan import present


@tf.autograph.experimental.do_not_convert
def step_by_matrices(
    cell: Cell, weights: Tensors, carry: Tensors, sequence: tf.Tensor, along: str
) -> tuple[tf.Tensor, Tensors]:
    """Advance the state of a cell by one step, with a tangent rule for stacked directions.

    Args:
        cell: the hand-written cell.
        weights: `cell.weights(...)`; they are constants of these derivatives.
        carry: the state before, `(rows, units)` per slot.
        sequence: the input, `(rows, 1, features)`.
        along: what the caller knows of the directions: in `"state"` the tangents of all slots side by side, in
            `"input"` those of `sequence`, are the identity for each row; `""` if nothing is known.

    Returns:
        The output, `(rows, 1, units)`, and the state after the step, `(rows, units)` per slot.

    Differentiable with respect to `carry` and `sequence`, once, in forward mode.
    """
    inputs = [*carry, sequence]
    seen = _tf.watched(inputs)
    with _tf.stop_recording():
        consts, p = cell.consts(weights), cell.project(weights, sequence[:, 0])
        q = times(carry[0], consts[0])
        new = cell.step(consts, carry, p, q)
        # Among what has a rule, since operations that come after it take long to differentiate when they are traced.
        output = new[0][:, tf.newaxis]

    def forward(inputs: Tensors, outputs: Tensors, *tangents: tf.Tensor) -> Maybe:
        *ds, dx = (t if s else None for t, s in zip(tangents, seen, strict=True))
        local = _Local(cell, consts, weights[0], carry, *cell.linearise(consts, carry, p, q))
        found: Tensors = []
        if present(ds):
            found.append(tf.transpose(local.by_state, [2, 0, 1]) if along == "state" else local.of_state(ds))
        if dx is not None:
            found.append(tf.transpose(local.by_input, [2, 0, 1]) if along == "input" else local.of_input(dx[:, :, 0]))
        parts = tf.split(tf.add_n(found), len(carry), -1)
        return [parts[0][:, :, tf.newaxis], *parts]

    def backward(*_: object) -> Maybe:
        raise ValueError("a step by its matrices has no cotangents; run the layer as it is")

    output, *new = _tf.with_derivatives([output, *new], inputs, backward, forward)
    return output, new


@dataclass(frozen=True)
class _Local:
    """The linearisation of a step: coefficients, and the matrices `(rows, to, from)` that are formed from them."""

    cell: Cell
    consts: Tensors
    kernel: tf.Tensor
    before: Tensors
    inner: Tensors
    bulk: Tensors

    @property
    def by_state(self) -> tf.Tensor:
        """The state after the step by the state before it."""
        if not self._by_gates:
            return tf.linalg.matrix_transpose(state_matrix(self.cell, self.consts, self.inner))
        slots, units = len(self.cell.slots), self.consts[0].shape[0]
        some, none = self._probes, tf.zeros([self._gates, 1, units], self.kernel.dtype)
        found = self._sum(self._push([none] * slots, some), self.consts[0], slots * units)
        ones = [tf.repeat(row, units, 1)[:, tf.newaxis] for row in tf.split(tf.eye(slots, dtype=some.dtype), slots, 1)]
        straight = self._push(ones, tf.zeros([slots, 1, some.shape[-1]], some.dtype))
        for i, along in enumerate(tf.unstack(straight, slots)):
            here = np.tile(np.eye(units, slots * units, i * units, dtype=bool), [slots, 1])
            found += tf.where(here, along[..., tf.newaxis], 0)
        return found

    @property
    def by_input(self) -> tf.Tensor:
        """The state after the step by the input."""
        cell, all_ = self.cell, self.inner + self.bulk
        if not self._by_gates:
            return tf.linalg.matrix_transpose(input_matrix(cell, self.consts, self.kernel, all_, self.before))
        spread, before = [t[tf.newaxis] for t in all_], [t[tf.newaxis] for t in self.before]
        parts = cell.source(self.consts, spread, before, [None] * len(self.consts), self._probes)
        like = next(t for t in parts if t is not None)
        through = tf.concat([tf.zeros_like(like) if t is None else t for t in parts], -1)
        return self._sum(through, self.kernel, self.kernel.shape[0])

    def of_state(self, tangents: Maybe) -> tf.Tensor:
        """Map tangents of the state, `(K, rows, units)` per slot, to `(K, rows, to)`."""
        count = tf.shape(present(tangents)[0])[0]
        zeros = [tf.zeros(tf.concat([[count], tf.shape(t)], 0), t.dtype) for t in self.before]
        joined = tf.concat([z if t is None else t for t, z in zip(tangents, zeros, strict=True)], -1)
        return _times(joined, state_matrix(self.cell, self.consts, self.inner))

    def of_input(self, tangents: tf.Tensor) -> tf.Tensor:
        """Map tangents of the input, `(K, rows, features)`, to `(K, rows, to)`."""
        return _times(tangents, input_matrix(self.cell, self.consts, self.kernel, self.inner + self.bulk, self.before))

    @property
    def _by_gates(self) -> bool:
        # Then a step sees state and input through the gates' projections only, one number of each for each unit.
        return all(c.shape.rank == 1 for c in self.consts[1:])

    @property
    def _gates(self) -> int:
        return self.consts[0].shape[1] // self.consts[0].shape[0]

    @property
    def _probes(self) -> tf.Tensor:
        """Ones in one gate at a time, `(gates, 1, gates * units)`."""
        return tf.repeat(tf.eye(self._gates, dtype=self.kernel.dtype), self.consts[0].shape[0], 1)[:, tf.newaxis]

    def _push(self, tangents: Tensors, dq: tf.Tensor) -> tf.Tensor:
        return tf.concat(self.cell.push(self.consts, [t[tf.newaxis] for t in self.inner], tangents, dq), -1)

    def _sum(self, through: tf.Tensor, weights: tf.Tensor, width: int) -> tf.Tensor:
        """Add up what goes through each gate: `through`, `(gates, rows, to)`, and `(from, gates * units)`."""
        slots, gates = len(self.cell.slots), self._gates
        apart = tf.reshape(weights, [weights.shape[0], gates, -1])
        wide = tf.pad(tf.tile(apart, [1, 1, slots]), [[0, width - weights.shape[0]], [0, 0], [0, 0]])
        wide = tf.reshape(wide, [width, -1])
        rows = through.shape[1]
        if rows is not None and rows >= width:
            # XLA would make a transposition part of the loop over all rows, which then jumps through the matrix and is
            # five times slower. A product is what it keeps out of loops.
            wide = tf.matmul(wide, tf.eye(width, dtype=wide.dtype), transpose_a=True)
        else:
            wide = tf.transpose(wide)
        terms = zip(tf.unstack(through, gates), tf.split(wide, gates), strict=True)
        return tf.add_n([t[..., tf.newaxis] * w for t, w in terms])


def _times(directions: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Multiply `(K, rows, from)` with `(rows, from, to)`."""
    return tf.transpose(tf.matmul(tf.transpose(directions, [1, 0, 2]), matrix), [1, 0, 2])
