"""The scan primitive for hand-written cells: the same contract as `scan`, with the cell's own linearisation."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from models import _tf
from models._loop import run
from models.cells._activation import is_known
from models.cells._cell import Cell, Maybe, Tensors, times
from models.scan import (
    cut,
    differentiable,
    directions,
    kept,
    present,
    shifted,
    stacked_zeros,
    time_first,
    time_second,
    unroll,
)

# A recurrent matrix of up to this size stays in a core's cache between the two products of one step. Two are then
# faster than one with twice the rows, unless there are a few rows only, where starting a product is what takes time.
_CACHED_BYTES = 2**20
_FEW_ROWS = 16


@tf.autograph.experimental.do_not_convert
def recur(
    cell: Cell,
    consts: Tensors,
    carry: Tensors,
    p: tf.Tensor,
    *,
    mask: tf.Tensor | None = None,
    nudges: Maybe | None = None,
    reverse: bool = False,
    unrolled: bool = False,
) -> tuple[Tensors, Tensors]:
    """Run a cell over time.

    Args:
        cell: the hand-written cell.
        consts: the recurrent weights, `cell.consts(...)`.
        carry: the initial state, `(batch, units)` per slot.
        p: the projected input, `(time, batch, gates * units)`.
        mask: `(time, batch, 1)`, boolean; where it is False a step leaves the state as it was.
        nudges: per slot None or `(time, batch, units)`, added to the state after each step (after masking). Zeros make
            the cotangent of a nudge the total derivative with respect to the state after that step.
        reverse: from the last index to the first.
        unrolled: write the steps out instead of a loop; time must then be known.

    Returns:
        The state after each step, `(time, batch, units)` per slot, and the final state.

    Differentiable with respect to `consts`, `carry`, `p` and `nudges`. A tape keeps these and the states, nothing else.
    """
    slots = len(cell.slots)
    nudges = list(nudges) if nudges is not None else [None] * slots
    nudged, extras = tuple(n is not None for n in nudges), present(nudges)
    masks = [] if mask is None else [mask]
    inputs = [tf.convert_to_tensor(t) for t in [*consts, *carry, p, *extras, *masks]]
    sizes = [len(consts), slots, 1, len(extras), len(masks)]
    seen = _tf.watched(inputs)
    k, c, v, n, m = cut(inputs, *sizes)
    step = Primal(cell, nudged, bool(m))
    if unrolled:
        final, after, _ = unroll(step, k, c, v + n + m, reverse)
        return after, final
    held = _tf.tangents(inputs)
    together = len(held) == 1 and not _tf.taped(inputs)
    d_outputs: Tensors = []
    if together:
        # Nothing else will differentiate the tangent, so state and tangent share one loop: no coefficients are stacked.
        outputs, d_outputs = _with_tangent(cell, inputs, sizes, nudged, held[0], reverse)
    else:
        final, after, _, _ = run(step, k, c, v + n + m, reverse)
        outputs = after + final

    def prepare(inputs: Tensors, outputs: Tensors) -> tuple[list[Tensors], Tensors, tuple[Tensors, Tensors]]:
        parts = cut(inputs, *sizes)
        before = shifted(parts[1], outputs[:slots], reverse)
        q = times(before[0], parts[0][0])
        return parts, before, cell.linearise(parts[0], before, parts[2][0], q)

    def forward(inputs: Tensors, outputs: Tensors, *tangents: tf.Tensor) -> Maybe:
        if together:
            return d_outputs
        (k, c, _, _, m), before, (inner, bulk) = prepare(inputs, outputs)
        known = [t if s and p.dtype.is_floating else None for t, s, p in zip(tangents, seen, inputs, strict=True)]
        dk, dc, (dp,), dn, _ = cut(known, *sizes)
        count = directions(inputs, known)
        along = (lambda t: t) if count is None else (lambda t: tf.expand_dims(t, 1))
        dp = None if dp is None else time_first(dp, inputs[sum(sizes[:2])])
        sources = cell.source(k, [along(t) for t in inner + bulk], before, dk, dp)
        if m:
            sources = [None if s is None else tf.where(along(m[0]), s, 0) for s in sources]
        rest = iter(d if d is None else time_first(d, a) for d, a in zip(dn, cut(inputs, *sizes)[3], strict=True))
        sources = [_add(s, next(rest) if has else None) for s, has in zip(sources, nudged, strict=True)]
        step = _Push(cell, len(inner), tuple(s is not None for s in sources), bool(m))
        start = [stacked_zeros(s, count) if d is None else d for d, s in zip(dc, c, strict=True)]
        final, stacks, _, _ = differentiable(step, k, start, inner + present(sources) + m, reverse)
        return [*(time_second(s, count) for s in stacks), *final]

    def backward(inputs: Tensors, outputs: Tensors, *cotangents: tf.Tensor | None) -> Maybe:
        (k, c, _, _, m), before, (inner, bulk) = prepare(inputs, outputs)
        count = directions(outputs, cotangents)
        along = (lambda t: t) if count is None else (lambda t: tf.expand_dims(t, 1))
        g_after, g_final = cut(cotangents, slots, slots)
        given = [g if g is None else time_first(g, o) for g, o in zip(g_after, outputs[:slots], strict=True)]
        step = _Pull(cell, len(inner), kept(given), bool(m))
        start = [stacked_zeros(s, count) if g is None else g for g, s in zip(g_final, c, strict=True)]
        gc, _, totals, _ = differentiable(step, k, start, inner + present(given) + m, not reverse)
        through = [tf.where(along(m[0]), g, 0) for g in totals] if m else totals
        gk, gp = cell.collect(k, [along(t) for t in inner + bulk], [along(t) for t in before], through)
        gn = [g for g, has in zip(totals, nudged, strict=True) if has]
        return [*gk, *gc, *(time_second(g, count) for g in [gp, *gn]), *(None for _ in m)]

    found = _tf.with_derivatives(outputs, inputs, backward, forward)
    return found[:slots], found[slots:]


def _with_tangent(
    cell: Cell,
    inputs: Tensors,
    sizes: Sequence[int],
    nudged: tuple[bool, ...],
    held: dict[int, tf.Tensor],
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    """Compute in one loop the states after each step and the final ones, and their tangents."""
    known = [held.get(i) if t.dtype.is_floating else None for i, t in enumerate(inputs)]
    k, c, v, n, m = cut(inputs, *sizes)
    dk, dc, dv, dn, _ = cut(known, *sizes)
    count = directions(inputs, known)
    dv, dn = (
        [d if d is None else time_first(d, a) for d, a in zip(ds, part, strict=True)] for ds, part in ((dv, v), (dn, n))
    )
    dc = [stacked_zeros(s, count) if d is None else d for d, s in zip(dc, c, strict=True)]
    step = _Dual(cell, nudged, bool(m), kept(dk), kept(dv), kept(dn))
    end, stacks, _, _ = run(step, k + present(dk), c + dc, v + n + m + present(dv) + present(dn), reverse)
    after, d_after = cut(stacks, len(c), len(c))
    final, d_final = cut(end, len(c), len(c))
    return after + final, [time_second(d, count) for d in d_after] + d_final


def _add(a: tf.Tensor | None, b: tf.Tensor | None) -> tf.Tensor | None:
    return b if a is None else a if b is None else a + b


def _choose(mask: Sequence[tf.Tensor], new: Tensors, old: Tensors) -> Tensors:
    return [tf.where(mask[0], n, o) for n, o in zip(new, old, strict=True)] if mask else new


def _plus(values: Tensors, has: tuple[bool, ...], terms: Tensors) -> Tensors:
    rest = iter(terms)
    return [v + next(rest) if h else v for v, h in zip(values, has, strict=True)]


@dataclass(frozen=True)
class _Step:
    cell: Cell

    @property
    def pure(self) -> bool:
        return all(is_known(f) for f in vars(self.cell).values())


@dataclass(frozen=True)
class Primal(_Step):
    """A step of the cell."""

    nudged: tuple[bool, ...]
    masked: bool

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:  # noqa: D102
        (p,), nudges, mask = cut(x, 1, sum(self.nudged), self.masked)
        q = times(carry[0], consts[0])
        new = _choose(mask, self.cell.step(consts, carry, p, q), carry)
        return _plus(new, self.nudged, nudges), [], []


@dataclass(frozen=True)
class _Dual(_Step):
    """A step and its tangent, `(state, tangent)` to `(state, tangent)`."""

    nudged: tuple[bool, ...]
    masked: bool
    d_consts: tuple[bool, ...]
    d_p: tuple[bool, ...]
    d_nudges: tuple[bool, ...]

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        slots, nudges = len(self.cell.slots), sum(self.nudged)
        k, dk = cut(consts, len(self.d_consts), sum(self.d_consts))
        c, dc = cut(carry, slots, slots)
        v, dv, dn = cut(x, 1 + nudges + self.masked, sum(self.d_p), sum(self.d_nudges))
        q, dq = _products(c[0], dc[0], k[0])
        p, mask = v[0], v[1 + nudges :]
        inner, bulk = self.cell.linearise(k, c, p, q)
        new = _plus(_choose(mask, self.cell.step(k, c, p, q), c), self.nudged, v[1 : 1 + nudges])
        (dp,) = _spread(self.d_p, dv)
        sources = self.cell.source(k, inner + bulk, c, _spread(self.d_consts, dk), dp)
        pushed = [_add(d, s) for d, s in zip(self.cell.push(k, inner, dc, dq), sources, strict=True)]
        pushed = _choose(mask, pushed, dc)
        d_nudges = iter(_spread(self.d_nudges, dn))
        moved = [_add(d, next(d_nudges) if has else None) for d, has in zip(pushed, self.nudged, strict=True)]
        return [*new, *moved], [], []


def _products(h: tf.Tensor, dh: tf.Tensor, matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Multiply a state and its tangents with the recurrent matrix, which is then read from memory once."""
    cached = matrix.shape.num_elements() * matrix.dtype.size <= _CACHED_BYTES
    if cached and dh.shape.rank == 2 and h.shape[0] is not None and not 1 < h.shape[0] <= _FEW_ROWS:
        return times(h, matrix), times(dh, matrix)
    rows = tf.shape(h)[0]
    both = times(tf.concat([h, tf.reshape(dh, [-1, dh.shape[-1]])], 0), matrix)
    q, dq = both[:rows], both[rows:]
    return q, tf.reshape(dq, tf.concat([tf.shape(dh)[:-1], [matrix.shape[-1]]], 0))


def _spread(has: tuple[bool, ...], values: Tensors) -> Maybe:
    rest = iter(values)
    return [next(rest) if h else None for h in has]


@dataclass(frozen=True)
class _Push(_Step):
    """The tangent of the state through one step."""

    coefficients: int
    sources: tuple[bool, ...]
    masked: bool

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        coefficients, sources, mask = cut(x, self.coefficients, sum(self.sources), self.masked)
        dq = times(carry[0], consts[0])
        new = _choose(mask, self.cell.push(consts, coefficients, carry, dq), carry)
        return _plus(new, self.sources, sources), [], []


@dataclass(frozen=True)
class _Pull(_Step):
    """The cotangent of the state back through one step; stacks the total cotangent after each step."""

    coefficients: int
    given: tuple[bool, ...]
    masked: bool

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        coefficients, given, mask = cut(x, self.coefficients, sum(self.given), self.masked)
        totals = _plus(carry, self.given, given)
        return _choose(mask, self.cell.pull(consts, coefficients, totals), totals), totals, []
