"""The scan primitive: one `tf.while_loop` over time that is differentiable in every mode.

TensorFlow's own loop can't be differentiated forwards inside a `tf.function`. Here a loop is recorded as one operation
whose tangent rule and cotangent rule are again built from this primitive and from ordinary operations, so that
derivatives of any order and nesting compose, eagerly, in graphs and under XLA.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from models import _tf
from models._loop import Step, run

Tensors = list[tf.Tensor]
Maybe = Sequence[tf.Tensor | None]


class Function(Protocol):
    """One step: `(consts, carry, x) -> (carry, ys)`, each a flat list of tensors."""

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors]: ...  # noqa: D102


@dataclass(frozen=True)
class _Plain:
    function: Function

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        carry, ys = self.function(consts, carry, x)
        return carry, ys, []


def scan(
    function: Function, consts: Tensors, carry: Tensors, xs: Tensors, *, reverse: bool = False, unrolled: bool = False
) -> tuple[Tensors, Tensors]:
    """Run `function` over the leading axis of `xs`, carrying state, as in this plain Python.

        for i in (reversed(range(T)) if reverse else range(T)):
            carry, y = function(consts, carry, [x[i] for x in xs])
            ys[i] = y

    Args:
        function: the step; it must not capture tensors that are to be differentiated: hand those over as `consts`.
        consts: tensors that every step uses (weights), read once.
        carry: the initial state, any shapes; a step returns the same shapes and dtypes.
        xs: at least one tensor, each `(time, ...)`; time may be a free axis but not 0.
        reverse: from the last index to the first.
        unrolled: write the steps out one after the other instead of a loop; time must then be known.

    Returns:
        The carry after the last step, and the stacked outputs `(time, ...)`, each at its step's own index.

    Called eagerly, the step is traced anew each time; inside a `tf.function` once.

    Differentiable with respect to `consts`, `carry` and `xs` where these are floating, by autodiff inside the loop's
    body. A tape keeps the inputs and the carry after each step, nothing else per step: steps are recomputed.
    """
    final, _, ys = (unroll if unrolled else differentiable)(_Plain(function), consts, carry, xs, reverse)[:3]
    return final, ys


def unroll(step: Step, consts: Tensors, carry: Tensors, xs: Tensors, reverse: bool) -> tuple[Tensors, Tensors, Tensors]:
    """Run `step` without a loop and return (final carry, carry after each step, ys): ordinary operations only.

    Raises:
        ValueError: if the number of steps is not known when the function is traced.
    """
    time = xs[0].shape[0]
    if time is None:
        raise ValueError("an unrolled loop needs a known number of time steps; fix the time axis or use the scan")
    carry = list(carry)
    slices = [tf.unstack(x, num=time) for x in xs]
    rows = []
    for i in reversed(range(time)) if reverse else range(time):
        carry, ys, _ = step(consts, carry, [x[i] for x in slices])
        rows.append((carry, ys))
    rows = rows[::-1] if reverse else rows
    after, ys = ([tf.stack(column) for column in zip(*part, strict=True)] for part in zip(*rows, strict=True))
    return carry, after, ys


@tf.autograph.experimental.do_not_convert
def differentiable(
    step: Step, consts: Tensors, carry: Tensors, xs: Tensors, reverse: bool
) -> tuple[Tensors, Tensors, Tensors, Tensors]:
    """Run `step` and return (final carry, carry after each step, ys, sums), all differentiable by autodiff."""
    consts, carry, xs = ([tf.convert_to_tensor(t) for t in part] for part in (consts, carry, xs))
    inputs = consts + carry + xs
    seen = _tf.watched(inputs)
    outputs = run(step, consts, carry, xs, reverse)
    sizes = [len(consts), len(carry), len(xs)]
    out_sizes = [len(part) for part in outputs]

    def forward(inputs: Tensors, outputs: Tensors, *tangents: tf.Tensor) -> Maybe:
        consts, carry, xs = cut(inputs, *sizes)
        known = [t if s and _floating(p) else None for t, s, p in zip(tangents, seen, inputs, strict=True)]
        d_consts, d_carry, d_xs = cut(known, *sizes)
        count = directions(inputs, known)
        d_xs = [d if d is None else time_first(d, x) for d, x in zip(d_xs, xs, strict=True)]
        d_carry = [
            stacked_zeros(c, count) if d is None else d for d, c in zip(d_carry, carry, strict=True) if _floating(c)
        ]
        dual = _Dual(step, len(carry), len(xs), kept(d_consts), kept(d_xs), count is not None)
        before = shifted(carry, cut(outputs, *out_sizes)[1], reverse)
        final, after, ys, sums = differentiable(
            dual, consts + present(d_consts), d_carry, before + xs + present(d_xs), reverse
        )
        stacks = [time_second(t, count) for t in after + ys]
        return restore(outputs, final + stacks + sums)

    def backward(inputs: Tensors, outputs: Tensors, *cotangents: tf.Tensor | None) -> Maybe:
        consts, carry, xs = cut(inputs, *sizes)
        _, after, ys, _ = cut(outputs, *out_sizes)
        g_final, g_after, g_ys, g_sums = cut(cotangents, *out_sizes)
        count = directions(outputs, cotangents)
        g_after, g_ys = (
            [g if g is None else time_first(g, t) for g, t in zip(gs, stacks, strict=True)]
            for gs, stacks in ((g_after, after), (g_ys, ys))
        )
        start = [
            stacked_zeros(c, count) if g is None else g for g, c in zip(g_final, carry, strict=True) if _floating(c)
        ]
        sizes_in = (len(consts), len(carry), len(xs))
        pullback = _Pullback(step, *sizes_in, kept(g_after), kept(g_ys), kept(g_sums), count is not None)
        before = shifted(carry, after, reverse)
        g_carry, _, g_xs, g_consts = differentiable(
            pullback, consts + present(g_sums), start, before + xs + present(g_after) + present(g_ys), not reverse
        )
        return restore(inputs, g_consts + g_carry + [time_second(g, count) for g in g_xs])

    recorded = _tf.with_derivatives([t for part in outputs for t in part], inputs, backward, forward)
    return tuple(cut(recorded, *out_sizes))  # type: ignore[return-value]


@dataclass(frozen=True)
class _Dual:
    """The tangent of a step, given the carry before it: linear in its own carry."""

    step: Step
    carries: int
    xs: int
    d_consts: tuple[bool, ...]
    d_xs: tuple[bool, ...]
    stacked: bool

    @property
    def pure(self) -> bool:
        return getattr(self.step, "pure", False)

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        k, dk = cut(consts, len(self.d_consts), sum(self.d_consts))
        c, v, dv = cut(x, self.carries, self.xs, sum(self.d_xs))
        k, c, v = ([tf.identity(t) for t in part] for part in (k, c, v))
        primals = [t for t, keep in zip(k, self.d_consts, strict=True) if keep]
        primals += [t for t in c if _floating(t)]
        primals += [t for t, keep in zip(v, self.d_xs, strict=True) if keep]
        tangents = dk + carry + dv
        make = _tf.stacked_accumulator if self.stacked else tf.autodiff.ForwardAccumulator
        with make(primals, tangents) as accumulator:
            outputs = self.step(k, c, v)
        like = carry[0] if self.stacked else None
        return tuple([_tangent(accumulator, t, like) for t in part if _floating(t)] for part in outputs)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Pullback:
    """The transpose of a step's derivative, given the carry before it; it runs against the step's direction."""

    step: Step
    consts: int
    carries: int
    xs: int
    g_after: tuple[bool, ...]
    g_ys: tuple[bool, ...]
    g_sums: tuple[bool, ...]
    stacked: bool

    @property
    def pure(self) -> bool:
        return getattr(self.step, "pure", False)

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        k, g_sums = cut(consts, self.consts, sum(self.g_sums))
        c, v, g_after, g_ys = cut(x, self.carries, self.xs, sum(self.g_after), sum(self.g_ys))
        sources = [tf.identity(t) for t in k + c + v]
        real = [t for t in sources if _floating(t)]
        with tf.GradientTape(persistent=self.stacked) as tape:
            tape.watch(real)
            new, ys, sums = self.step(*cut(sources, len(k), len(c), len(v)))
        pairs = list(zip([t for t in new if _floating(t)], carry, strict=True))
        for tensors, cotangents, given in (
            (new, g_after, self.g_after),
            (ys, g_ys, self.g_ys),
            (sums, g_sums, self.g_sums),
        ):
            pairs += zip([t for t, keep in zip(tensors, given, strict=True) if keep], cotangents, strict=True)
        targets, cotangents = zip(*pairs, strict=True)

        def pull(cotangents: Tensors) -> Tensors:
            found = tape.gradient(targets, real, output_gradients=cotangents, unconnected_gradients="zero")
            return [_tf.shaped(g, t.shape) for g, t in zip(found, real, strict=True)]

        if self.stacked:
            found = [
                _tf.shaped(g, tf.TensorShape([None]) + t.shape)
                for g, t in zip(tf.vectorized_map(pull, list(cotangents)), real, strict=True)
            ]
        else:
            found = pull(list(cotangents))
        gk, gc, gv = cut(found, sum(map(_floating, k)), sum(map(_floating, c)), sum(map(_floating, v)))
        return gc, gv, gk


def _floating(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating


def _tangent(accumulator: tf.autodiff.ForwardAccumulator, tensor: tf.Tensor, like: tf.Tensor | None) -> tf.Tensor:
    tangent = accumulator.jvp(tensor)
    if tangent is not None:
        return _tf.shaped(tangent, tensor.shape if like is None else tf.TensorShape([None]) + tensor.shape)
    return tf.zeros_like(tensor) if like is None else stacked_zeros(tensor, tf.shape(like)[0])


def cut(flat: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Cut a flat list into consecutive parts of the given sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(flat[start : start + size]))
        start += size
    return parts


def kept(tensors: Maybe) -> tuple[bool, ...]:
    """Tell which entries are present."""
    return tuple(t is not None for t in tensors)


def present(tensors: Maybe) -> Tensors:
    """Drop the entries that are None."""
    return [t for t in tensors if t is not None]


def restore(like: Tensors, found: Tensors) -> Maybe:
    """Put derivatives, which exist for floating tensors only, back at the places of `like`."""
    rest = iter(found)
    return [next(rest) if _floating(t) else None for t in like]


def shifted(carry: Tensors, after: Tensors, reverse: bool) -> Tensors:
    """Turn the carries after each step into the carries before each step."""
    if reverse:
        return [tf.concat([a[1:], c[tf.newaxis]], 0) for c, a in zip(carry, after, strict=True)]
    return [tf.concat([c[tf.newaxis], a[:-1]], 0) for c, a in zip(carry, after, strict=True)]


def directions(primals: Tensors, tangents: Maybe) -> tf.Tensor | None:
    """Return K if the tangents hold K stacked directions, None if there is one without an axis of its own."""
    for primal, tangent in zip(primals, tangents, strict=True):
        if tangent is not None and tangent.shape.rank == primal.shape.rank + 1:
            return tf.shape(tangent)[0]
    return None


def stacked_zeros(like: tf.Tensor, count: tf.Tensor | None) -> tf.Tensor:
    """Make zeros of the shape of `like`, with K in front if there are K directions."""
    shape = tf.shape(like)
    return tf.zeros_like(like) if count is None else tf.zeros(tf.concat([[count], shape], 0), like.dtype)


def time_first(tangent: tf.Tensor, primal: tf.Tensor) -> tf.Tensor:
    """Move time in front of the axis of directions: `(K, time, ...)` to `(time, K, ...)`."""
    if tangent.shape.rank == primal.shape.rank:
        return tangent
    return swap(tangent)


def time_second(stack: tf.Tensor, count: tf.Tensor | None) -> tf.Tensor:
    """Undo `time_first` for an output of a stacked loop."""
    return stack if count is None else swap(stack)


def swap(tensor: tf.Tensor) -> tf.Tensor:
    """Exchange the first two axes."""
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])
