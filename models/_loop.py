"""The bare loop under the scan primitive: no derivative rules, only a `tf.while_loop` that stacks what it is told to."""

import threading
from collections import OrderedDict
from typing import Any, Protocol

import tensorflow as tf

from models import _tf

Tensors = list[tf.Tensor]

_TRACES: OrderedDict[Any, Any] = OrderedDict()
_TRACES_MAX = 128
_TRACES_LOCK = threading.Lock()


class Step(Protocol):
    """One step: `(consts, carry, x) -> (carry, ys, sums)`; `sums` are added up over the steps instead of stacked.

    Steps are hashable (frozen dataclasses), so that eager calls find their traced loop again.
    """

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors, Tensors]: ...  # noqa: D102


def run(step: Step, consts: Tensors, carry: Tensors, xs: Tensors, reverse: bool) -> list[Tensors]:
    """Return [final carry, carry after each step, ys, sums]; nothing is recorded for differentiation."""
    arguments = consts + carry + xs
    k, c = len(consts), len(carry)
    sizes: list[int] = []

    def loop(*flat: tf.Tensor) -> Tensors:
        parts = _while(step, list(flat[:k]), list(flat[k : k + c]), list(flat[k + c :]), reverse)
        sizes[:] = [len(part) for part in parts]
        return [t for part in parts for t in part]

    specs = tuple(tf.TensorSpec(t.shape, t.dtype) for t in arguments)
    key = (step, k, c, reverse, specs) if tf.executing_eagerly() else None
    with _TRACES_LOCK:
        found = _TRACES.get(key) if key is not None else None
        if found is not None:
            _TRACES.move_to_end(key)
    if found is None:
        # Traced first and only called under `stop_recording`, which would silence the accumulators and tapes that
        # derived steps open inside the body, too.
        with _tf.fresh_forward_state():
            traced = tf.function(loop, autograph=False).get_concrete_function(*specs)
        found = traced, tuple(sizes)
        if key is not None:
            with _TRACES_LOCK:
                _TRACES[key] = found
                while len(_TRACES) > _TRACES_MAX:
                    _TRACES.popitem(last=False)
    traced, counts = found
    with _tf.stop_recording():
        outputs = list(traced(*arguments))
    parts, start = [], 0
    for count in counts:
        parts.append(outputs[start : start + count])
        start += count
    return parts


def _while(step: Step, consts: Tensors, carry: Tensors, xs: Tensors, reverse: bool) -> tuple[Tensors, ...]:
    time = tf.shape(xs[0])[0]
    reads = [tf.TensorArray(x.dtype, size=time, element_shape=x.shape[1:]).unstack(x) for x in xs]
    y_specs, sum_specs = _specs(step, consts, carry, xs)
    after = [tf.TensorArray(c.dtype, size=time, element_shape=c.shape) for c in carry]
    y_stacks = [tf.TensorArray(s.dtype, size=time, element_shape=s.shape) for s in y_specs]

    def body(k: tf.Tensor, carry: Any, after: Any, y_stacks: Any, sums: Any) -> Any:
        i = time - 1 - k if reverse else k
        new, ys, adds = step(consts, list(carry), [read.read(i) for read in reads])
        for value, start in zip(new, carry, strict=True):
            value.set_shape(start.shape)
        after = tuple(a.write(i, v) for a, v in zip(after, new, strict=True))
        y_stacks = tuple(a.write(i, v) for a, v in zip(y_stacks, ys, strict=True))
        return k + 1, tuple(new), after, y_stacks, tuple(s + a for s, a in zip(sums, adds, strict=True))

    start = (tf.constant(0), tuple(carry), tuple(after), tuple(y_stacks), tuple(sum_specs))
    _, carry_, after_, ys_, sums_ = tf.while_loop(
        lambda k, *_: k < time, body, start, maximum_iterations=xs[0].shape[0]
    )
    return list(carry_), [a.stack() for a in after_], [a.stack() for a in ys_], list(sums_)


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
