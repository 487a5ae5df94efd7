"""The bare loop under the scan primitive: one `tf.while_loop` that stacks what it is told to, no derivative rules."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from models import _tf

Tensors = list[tf.Tensor]

# Elements of a step's input up to which its arrays are read as one, and up to which they are read when they are needed.
_READ_AS_ONE = 8192
_READ_LATE = 512

_TRACES: OrderedDict[Any, Any] = OrderedDict()
_TRACES_MAX = 128
_TRACES_LOCK = threading.Lock()


class Step(Protocol):
    """One step: `(consts, carry, x) -> (carry, ys, sums)`; `sums` are added up over the steps instead of stacked.

    Steps with a true attribute `late` read their input when they need it, because they could not be fused anyway. Those
    with a true attribute `pure` are hashable (frozen dataclasses) and depend on nothing that may change, so that
    eager calls find their traced loop again.
    """

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]: ...


def run(step: Step, consts: Tensors, carry: Tensors, xs: Tensors, reverse: bool) -> list[Tensors]:
    """Return [final carry, carry after each step, ys, sums]; nothing is recorded for differentiation.

    Raises:
        ValueError: if the step captures something that an active tape or accumulator differentiates.
    """
    arguments = consts + carry + xs
    k, c = len(consts), len(carry)
    sizes: list[int] = []

    def loop(*flat: tf.Tensor) -> Tensors:
        parts = _while(step, list(flat[:k]), list(flat[k : k + c]), list(flat[k + c :]), reverse)
        sizes[:] = [len(part) for part in parts]
        return [t for part in parts for t in part]

    specs = tuple(tf.TensorSpec(t.shape, t.dtype) for t in arguments)
    # What a user's step reads besides its arguments may change, so only steps that can't are kept.
    keep = tf.executing_eagerly() and getattr(step, "pure", False)
    key = (step, k, c, reverse, specs) if keep else None
    with _TRACES_LOCK:
        found = _TRACES.get(key) if key is not None else None
        if found is not None:
            _TRACES.move_to_end(key)
    if found is None:
        # Traced first and only called under `stop_recording`, which would silence the accumulators and tapes that
        # derived steps open inside the body, too.
        with _tf.fresh_forward_state(), _tf.uncut():
            traced = tf.function(loop, autograph=False).get_concrete_function(*specs)
        found = traced, tuple(sizes)
        if key is not None:
            with _TRACES_LOCK:
                _TRACES[key] = found
                while len(_TRACES) > _TRACES_MAX:
                    _TRACES.popitem(last=False)
    traced, counts = found
    _refuse_captured(traced)
    with _tf.stop_recording():
        outputs = list(traced(*arguments))
    parts, start = [], 0
    for count in counts:
        parts.append(outputs[start : start + count])
        start += count
    return parts


def _refuse_captured(traced: Any) -> None:
    """Refuse a step that uses, without being handed it, what someone differentiates: the answer would lack a term."""
    captured = [t for t, _ in traced.graph.captures if t.dtype.is_floating or t.dtype == tf.resource]
    if captured and (_tf.taped(captured) or _tf.tangents(captured)):
        raise ValueError(
            f"a step of a recurrence uses {', '.join(str(t.shape) for t in captured)} from outside that is being "
            "differentiated; make it a weight of the cell (add_weight), or hand it to scan as one of consts"
        )


def _while(step: Step, consts: Tensors, carry: Tensors, xs: Tensors, reverse: bool) -> tuple[Tensors, ...]:
    y_specs, zero_sums = _specs(step, consts, carry, xs)
    xs, unpack = _packed(xs)
    time = tf.shape(xs[0])[0]
    last = time - 1
    reads = [
        tf.TensorArray(x.dtype, size=time, element_shape=x.shape[1:], clear_after_read=False).unstack(x) for x in xs
    ]
    before = [tf.TensorArray(c.dtype, size=time, element_shape=c.shape) for c in carry]
    y_stacks = [tf.TensorArray(s.dtype, size=time, element_shape=s.shape) for s in y_specs]

    def read(k: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(a.read(last - k if reverse else k) for a in reads)

    # XLA fuses a step into one kernel that it vectorises only if no read from, or write to, a changing place is part of
    # it (3 times faster). So what is stacked is the carry that came in, and a large x is read by the step before; for a
    # small one the additional copy would cost more.
    early = not (getattr(step, "late", False) or _is_small(xs, _READ_LATE))

    def body(k: tf.Tensor, x: Any, carry: Any, before: Any, y_stacks: Any, sums: Any) -> Any:
        i = last - k if reverse else k
        before = tuple(a.write(i, c) for a, c in zip(before, carry, strict=True))
        new, ys, adds = step(consts, list(carry), unpack(list(x if early else read(k))))
        for value, start in zip(new, carry, strict=True):
            value.set_shape(start.shape)
        y_stacks = tuple(a.write(i, v) for a, v in zip(y_stacks, ys, strict=True))
        sums = tuple(s + a for s, a in zip(sums, adds, strict=True))
        x = read(tf.minimum(k + 1, last)) if early else ()
        return k + 1, x, tuple(new), before, y_stacks, sums

    first = tuple(x[-1 if reverse else 0] for x in xs) if early else ()
    start = (tf.constant(0), first, tuple(carry), tuple(before), tuple(y_stacks), tuple(zero_sums))
    _, _, final, before_, ys_, sums_ = tf.while_loop(
        lambda k, *_: k < time, body, start, maximum_iterations=xs[0].shape[0]
    )
    after = [_after(_stacked(a, xs[0]), c, reverse) for a, c in zip(before_, final, strict=True)]
    return list(final), after, [_stacked(a, xs[0]) for a in ys_], list(sums_)


def _stacked(array: tf.TensorArray, like: tf.Tensor) -> tf.Tensor:
    # The array's size is a tensor, so TensorFlow forgets a number of steps that is known.
    stack = array.stack()
    stack.set_shape([like.shape[0], *stack.shape[1:]])
    return stack


def _packed(xs: Tensors) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    """Join small arrays of one kind along their last axis: below some size a step's time goes by how many it reads."""
    alike = all(x.shape.rank == 3 for x in xs) and len({(x.dtype, x.shape[1]) for x in xs}) == 1
    if len(xs) < 2 or not (alike and _is_small(xs, _READ_AS_ONE)):
        return xs, lambda x: x
    sizes = [x.shape[2] for x in xs]
    return [tf.concat(xs, 2)], lambda x: tf.split(x[0], sizes, 1)


def _is_small(xs: Tensors, limit: int) -> bool:
    return all(x.shape[1:].is_fully_defined() for x in xs) and sum(x.shape[1:].num_elements() for x in xs) <= limit


def _after(before: tf.Tensor, final: tf.Tensor, reverse: bool) -> tf.Tensor:
    return tf.concat([final[tf.newaxis], before[:-1]] if reverse else [before[1:], final[tf.newaxis]], 0)


def _specs(step: Step, consts: Tensors, carry: Tensors, xs: Tensors) -> tuple[list[tf.TensorSpec], Tensors]:
    """Find shapes and dtypes of a step's outputs, and zeros to start its sums from, by tracing it once."""
    shapes = tf.function(lambda k, c, x: step(k, c, x)[1:], autograph=False).get_concrete_function(
        *[[tf.TensorSpec(t.shape, t.dtype) for t in part] for part in (consts, carry)],
        [tf.TensorSpec(x.shape[1:], x.dtype) for x in xs],
    )
    ys, sums = shapes.structured_outputs
    if all(s.shape.is_fully_defined() for s in sums):
        return list(ys), [tf.zeros(s.shape, s.dtype) for s in sums]
    return list(ys), [tf.zeros_like(s) for s in shapes(consts, carry, [x[0] for x in xs])[1]]
