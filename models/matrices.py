"""Many directions at once: every step's Jacobian as a matrix, formed once and applied to all directions.

A step's linearisation costs as many products per direction as the cell has gates. The step's Jacobians with respect to
the state, `A`, and to the input, `B`, hold the gates added up already: forming them costs about as much as a few
directions, and each direction one product then. With as many directions as units a GRU is three times faster.

Row vectors: the tangent of a state with `N` numbers, the slots side by side in order, becomes `ds A + dx B`. Stacked
tangents stand as `(time, batch, N, K)` and cotangents as `(time, batch, K, N)` here, which is how a Jacobian has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from models import _tf
from models._loop import run
from models.cells._cell import Cell, Maybe, Tensors, times
from models.recurrence import Primal
from models.scan import cut, differentiable, directions, present, shifted

# The matrices of all steps are formed in one large operation if they take no more than this; else step by step.
_AT_ONCE_BYTES = 2**26

_FEWEST = 8


def pays(count: int, numbers: int) -> bool:
    """Tell whether `count` directions are worth forming the matrices of a state with so many numbers."""
    return count >= max(_FEWEST, numbers // 4)


def state_matrix(cell: Cell, consts: Tensors, coefficients: Tensors) -> tf.Tensor:
    """Form `A`, `(..., N, N)`, from the coefficients `(..., H)` that a step's loop needs."""
    units = consts[0].shape[0]
    slots = len(cell.slots)
    basis = tf.split(tf.eye(slots * units, dtype=consts[0].dtype), slots, -1)
    dq = tf.pad(consts[0], [[0, (slots - 1) * units], [0, 0]])
    return tf.concat(cell.push(consts, _spread(coefficients), basis, dq), -1)


def input_matrix(cell: Cell, consts: Tensors, kernel: tf.Tensor, coefficients: Tensors, before: Tensors) -> tf.Tensor:
    """Form `B`, `(..., features, N)`, from all of a step's coefficients and the states before it."""
    found = cell.source(consts, _spread(coefficients), _spread(before), [None] * len(consts), kernel)
    like = next(s for s in found if s is not None)
    return tf.concat([tf.zeros_like(like) if s is None else s for s in found], -1)


def _spread(tensors: Tensors) -> Tensors:
    return [tf.expand_dims(t, -2) for t in tensors]


@tf.autograph.experimental.do_not_convert
def recur_by_matrices(
    cell: Cell,
    weights: Tensors,
    carry: Tensors,
    x: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    nudges: Maybe | None = None,
    reverse: bool = False,
) -> tuple[Tensors, Tensors]:
    """Run a cell over time, like `recur`, with derivative rules for stacked directions.

    Args:
        cell: the hand-written cell.
        weights: `cell.weights(...)`; they are constants of these derivatives.
        carry: the initial state, `(batch, units)` per slot.
        x: the input, `(time, batch, features)`.
        mask: `(time, batch, 1)`, boolean; where it is False a step leaves the state as it was.
        nudges: per slot None or `(time, batch, units)`, added to the state after each step.
        reverse: from the last index to the first.

    Returns:
        The state after each step, `(time, batch, units)` per slot, and the final state.

    Differentiable with respect to `carry`, `x` and `nudges`, once.

    Raises:
        ValueError: for tangents of weights, or tangents or cotangents that are not stacked.
    """
    slots = len(cell.slots)
    nudged = tuple(n is not None for n in nudges) if nudges is not None else (False,) * slots
    extras, masks = present(nudges or []), [] if mask is None else [mask]
    inputs = [tf.convert_to_tensor(t) for t in [*weights, *carry, x, *extras, *masks]]
    sizes = [len(weights), slots, 1, len(extras), len(masks)]
    seen = _tf.watched(inputs)
    w, c, (x,), n, m = cut(inputs, *sizes)
    consts = cell.consts(w)
    primal = Primal(cell, nudged, bool(m))
    final, after, _, _ = run(primal, consts, c, [cell.project(w, x), *n, *m], reverse)

    def linearised(inputs: Tensors, after: Tensors) -> tuple["_Steps", tf.Tensor]:
        w, c, (x,), _, m = cut(inputs, *sizes)
        before, consts = shifted(c, after, reverse), cell.consts(w)
        inner, bulk = cell.linearise(consts, before, cell.project(w, x), times(before[0], consts[0]))
        b = input_matrix(cell, consts, w[0], inner + bulk, before)
        b = tf.where(m[0][..., tf.newaxis], b, 0) if m else b
        return _Steps.of(cell, consts, inner, m, reverse), b

    def forward(inputs: Tensors, outputs: Tensors, *tangents: tf.Tensor) -> Maybe:
        known = [t if s and p.dtype.is_floating else None for t, s, p in zip(tangents, seen, inputs, strict=True)]
        dw, dc, (dx,), dn, _ = cut(known, *sizes)
        count = directions(inputs, known)
        if count is None or present(dw):
            raise ValueError("expected stacked tangents of the state or input; recur takes others, and weights")
        steps, b = linearised(inputs, outputs[:slots])
        start = _joined(dc, cut(inputs, *sizes)[1], count, [1, 2, 0])
        sources = [] if dx is None else [tf.matmul(b, tf.transpose(dx, [1, 2, 3, 0]), transpose_a=True)]
        if present(dn):
            rest = iter(dn)
            spread = [next(rest) if has else None for has in nudged]
            sources.append(_joined(spread, outputs[:slots], count, [1, 2, 3, 0]))
        found = steps.push(start, sources)
        return [*_parted(found[0], slots, [3, 0, 1, 2]), *_parted(found[1], slots, [2, 0, 1])]

    def backward(inputs: Tensors, outputs: Tensors, *cotangents: tf.Tensor | None) -> Maybe:
        count = directions(outputs, cotangents)
        if count is None:
            raise ValueError("expected stacked cotangents; recur takes single ones")
        steps, b = linearised(inputs, outputs[:slots])
        g_after, g_final = cut(cotangents, slots, slots)
        given = [_joined(g_after, outputs[:slots], count, [1, 2, 0, 3])] if present(g_after) else []
        totals, first = steps.pull(_joined(g_final, outputs[slots:], count, [1, 0, 2]), given)
        gx = tf.transpose(tf.matmul(totals, b, transpose_b=True), [2, 0, 1, 3])
        pulled = _parted(totals, slots, [2, 0, 1, 3]) if any(nudged) else [None] * slots
        gn = [g for g, has in zip(pulled, nudged, strict=True) if has]
        return [*(None for _ in weights), *_parted(first, slots, [1, 0, 2]), gx, *gn, *(None for _ in m)]

    found = _tf.with_derivatives([*after, *final], inputs, backward, forward)
    return found[:slots], found[slots:]


def _joined(parts: Maybe, like: Sequence[tf.Tensor], count: tf.Tensor, order: list[int]) -> tf.Tensor:
    """Put slots side by side, None as zeros, and directions next to them."""
    zeros = [tf.zeros(tf.concat([[count], tf.shape(t)], 0), t.dtype) for t in like]
    for z, t in zip(zeros, like, strict=True):
        z.set_shape([None, *t.shape])
    return tf.transpose(tf.concat([z if p is None else p for p, z in zip(parts, zeros, strict=True)], -1), order)


def _parted(joined: tf.Tensor, slots: int, order: list[int]) -> Tensors:
    return tf.split(tf.transpose(joined, order), slots, -1)


@dataclass(frozen=True)
class _Steps:
    """The state matrices of all steps: as such, or as what each is formed from."""

    cell: Cell
    consts: Tensors
    parts: Tensors
    masks: Tensors
    formed: bool
    reverse: bool

    @classmethod
    def of(cls, cell: Cell, consts: Tensors, coefficients: Tensors, masks: Tensors, reverse: bool) -> "_Steps":
        time, batch = coefficients[0].shape[:2]
        numbers = len(cell.slots) * consts[0].shape[0]
        if (
            time is not None
            and batch is not None
            and time * batch * numbers**2 * consts[0].dtype.size <= _AT_ONCE_BYTES
        ):
            return cls(cell, [], [_masked(state_matrix(cell, consts, coefficients), masks)], [], True, reverse)
        return cls(cell, consts, coefficients, masks, False, reverse)

    def push(self, start: tf.Tensor, sources: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the tangents after each step, and after the last."""
        step = _PushByMatrix(self.cell, len(self.parts), len(sources), len(self.masks), self.formed)
        final, after, _, _ = differentiable(step, self.consts, [start], self.parts + self.masks + sources, self.reverse)
        return after[0], final[0]

    def pull(self, start: tf.Tensor, given: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the total cotangents after each step, and before the first."""
        step = _PullByMatrix(self.cell, len(self.parts), len(given), len(self.masks), self.formed)
        final, _, totals, _ = differentiable(
            step, self.consts, [start], self.parts + self.masks + given, not self.reverse
        )
        return totals[0], final[0]


def _masked(matrix: tf.Tensor, masks: Tensors) -> tf.Tensor:
    eye = tf.eye(matrix.shape[-1], dtype=matrix.dtype)
    return tf.where(masks[0][..., tf.newaxis], matrix, eye) if masks else matrix


@dataclass(frozen=True)
class _ByMatrix:
    cell: Cell
    parts: int
    terms: int
    masks: int
    formed: bool
    late = True

    def read(self, consts: Tensors, x: Tensors) -> tuple[tf.Tensor, Tensors]:
        parts, masks, terms = cut(x, self.parts, self.masks, self.terms)
        matrix = parts[0] if self.formed else _masked(state_matrix(self.cell, consts, parts), masks)
        return matrix, terms


class _PushByMatrix(_ByMatrix):
    """All tangents through one step: `(batch, N, K)`, and what each step adds."""

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        matrix, sources = self.read(consts, x)
        return [tf.add_n([_product(matrix, carry[0], transpose_a=True), *sources])], [], []


class _PullByMatrix(_ByMatrix):
    """All cotangents back through one step: `(batch, K, N)`; stacks their totals after each step."""

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        matrix, given = self.read(consts, x)
        totals = tf.add_n([carry[0], *given])
        return [_product(totals, matrix, transpose_b=True)], [totals], []


def _product(a: tf.Tensor, b: tf.Tensor, **transpose: bool) -> tf.Tensor:
    if a.shape[0] != 1:
        return tf.matmul(a, b, **transpose)
    # For a single sequence TensorFlow's product of two matrices is many times faster than one of two batches.
    return tf.matmul(a[0], b[0], **transpose)[tf.newaxis]
