"""Every name of TensorFlow's internals that this project relies on, each with its reason.

Checked with TensorFlow 2.16.1 and 2.21. If an upgrade breaks one of these, this is the only file to mend.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import forwardprop, forwardprop_util, record

# Suspends every tape and accumulator on this thread: the loops below are recorded as one operation, not op by op.
stop_recording = record.stop_recording

# While an accumulator computes tangents it ignores what is executed, and tapes opened meanwhile don't work either.
# Inside this context they do, which a derivative taken within a derivative rule needs.
fresh_forward_state = forwardprop_util.push_forwardprop_state

Backward = Callable[..., Sequence[tf.Tensor | None]]
Forward = Callable[..., Sequence[tf.Tensor | None]]


def tangents(tensors: Sequence[tf.Tensor]) -> list[dict[int, tf.Tensor]]:
    """Return, for each active forward accumulator that holds any, its tangents of these tensors by their index."""
    info = forwardprop_util.pack_tangents(list(tensors))
    everything = [*tensors, *info.tangents]
    return [{primal: everything[i] for primal, i in pairs} for pairs in info.indices if pairs]


def watched(tensors: Sequence[tf.Tensor]) -> list[bool]:
    """Tell for each tensor whether any active forward accumulator holds a tangent of it."""
    known = {primal for held in tangents(tensors) for primal in held}
    return [i in known for i in range(len(tensors))]


# Tells whether any active tape watches any of the tensors; accumulators don't count.
taped = record.should_record_backprop


@dataclass(frozen=True)
class Link:
    """A recorded call that was cut out of a tape: its pullback is applied by hand, to many cotangents at once."""

    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    backward: Backward


_LINKS: ContextVar[tuple[list[Link], tf.GradientTape] | None] = ContextVar("links", default=None)


@contextmanager
def cutting(tape: tf.GradientTape) -> Generator[list[Link]]:
    """Cut every call of `with_derivatives` out of `tape`, which watches their outputs instead, and list them in order.

    What is left on the tape are ordinary operations, whose gradients TensorFlow can vectorise; those of loops it can't.
    """
    links: list[Link] = []
    token = _LINKS.set((links, tape))
    try:
        yield links
    finally:
        _LINKS.reset(token)


@contextmanager
def uncut() -> Generator[None]:
    """Leave the calls inside where they are: what a loop's body records belongs to the loop."""
    token = _LINKS.set(None)
    try:
        yield
    finally:
        _LINKS.reset(token)


def _cut(outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], backward: Backward) -> list[tf.Tensor] | None:
    cut = _LINKS.get()
    if cut is None:
        return None
    links, tape = cut
    with stop_recording():
        ends = [tf.identity(t) for t in outputs]
    tape.watch([t for t in ends if t.dtype.is_floating])
    links.append(Link(list(inputs), ends, backward))
    return ends


def with_derivatives(
    outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], backward: Backward, forward: Forward
) -> list[tf.Tensor]:
    """Give `outputs`, computed from `inputs` under `stop_recording`, derivative rules of their own.

    `backward(inputs, outputs, *cotangents)` maps cotangents of the outputs (None for zero) to cotangents of the inputs;
    `forward(inputs, outputs, *tangents)` maps tangents of the inputs to tangents of the outputs. Both are ordinary
    differentiable code over the inputs and outputs they are given, so derivatives nest in any order.

    `tf.custom_gradient` is not enough: it has no forward rule, so an accumulator transposes the backward one.
    """
    inputs, outputs = list(inputs), list(outputs)
    ends = _cut(outputs, inputs, backward)
    if ends is not None:
        return ends
    backward = _with_shapes(backward, [t.shape for t in inputs], [t.shape for t in outputs])
    if not tf.executing_eagerly():
        # A tape outside the enclosing tf.function never sees the record below: it differentiates the graph. A gradient
        # attached to this very operation serves it, and is dropped with the graph, unlike a registered override.
        with stop_recording():
            operation = tf.raw_ops.IdentityN(input=[*outputs, *inputs])[0].op
        count = len(outputs)
        outputs = operation.outputs[:count]

        def graph_gradient(operation: Any, *cotangents: tf.Tensor | None) -> list[tf.Tensor | None]:
            # The operation's own inputs, unlike `inputs`, are sure to belong to its graph.
            found = backward(list(operation.inputs)[count:], operation.outputs[:count], *cotangents[:count])
            return [None] * count + list(found)

        operation._gradient_function = graph_gradient

    def linked_forward(*tangents: tf.Tensor) -> Sequence[tf.Tensor | None]:
        # Accumulators run before tapes record the operation, so a tape around them would not see that tangents depend
        # on the outputs. Copies that are on the tape already do it.
        linked = [tf.identity(t) for t in outputs]
        record.record_operation_backprop_only(name, linked, inputs, partial(backward, inputs, linked))
        return forward(inputs, linked, *tangents)

    name = "PushforwardScan"
    record.record_operation(name, outputs, inputs, partial(backward, inputs, outputs), linked_forward)
    return list(outputs)


def _with_shapes(backward: Backward, inputs: Sequence[tf.TensorShape], outputs: Sequence[tf.TensorShape]) -> Backward:
    """Restore what is known of the shapes of cotangents: inside a map, TensorFlow's gradient of a slice forgets it."""

    def checked(primals: Sequence[tf.Tensor], values: Sequence[tf.Tensor], *cotangents: tf.Tensor | None) -> Any:
        given = [shaped(t, shape) for t, shape in zip(cotangents, outputs, strict=True)]
        found = backward(primals, values, *given)
        return [shaped(t, shape) for t, shape in zip(found, inputs, strict=True)]

    return checked


def stacked_accumulator(primals: Sequence[tf.Tensor], tangents: Sequence[tf.Tensor]) -> tf.autodiff.ForwardAccumulator:
    """Make a ForwardAccumulator for K directions at once: tangents have one leading axis more than their primals."""
    return tf.autodiff.ForwardAccumulator._batch_accumulator(list(primals), list(tangents))


def _has_directions(primal: tf.Tensor, tangent: tf.Tensor | None) -> bool:
    return tangent is not None and tangent.shape.rank == primal.shape.rank + 1


def shaped(tangent: tf.Tensor | None, shape: tf.TensorShape) -> tf.Tensor | None:
    """Restore the static shape of a tangent or cotangent.

    After 32 shapes of one operation TensorFlow traces its rule for any shape and forgets even the rank, by which
    stacked directions are told from single ones. What comes as slices, from a lookup, becomes dense.
    """
    if tangent is None:
        return None
    dense = tf.convert_to_tensor(tangent)
    dense.set_shape(shape)
    return dense


def _jvp(
    op_name: str,
    attr_tuple: Any,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    tangents: Sequence[tf.Tensor | None],
    use_batch: bool = False,
) -> Any:
    # TensorFlow hands a stacked accumulator's input without a tangent a zero of the primal's shape, or None if it is
    # an integer, and then refuses both because the axis of directions is missing. Calls that are not stacked pass
    # through unchanged.
    if not use_batch:
        found = forwardprop._jvp_dispatch(op_name, attr_tuple, inputs, outputs, tangents, use_batch)
        return [shaped(t, output.shape) for t, output in zip(found, outputs, strict=True)]
    along = [i for i, (p, t) in enumerate(zip(inputs, tangents, strict=True)) if _has_directions(p, t)]
    places: list[int] = []

    def every_direction(inputs: list[tf.Tensor], outputs: list[tf.Tensor], given: list[tf.Tensor]) -> list[tf.Tensor]:
        def one_direction(given: list[tf.Tensor]) -> list[tf.Tensor]:
            merged = [tf.zeros_like(t) if t.dtype.is_floating else None for t in inputs]
            for i, tangent in zip(along, given, strict=True):
                merged[i] = tangent
            found = forwardprop._jvp_helper(op_name, attr_tuple, inputs, outputs, merged)
            places[:] = [i for i, t in enumerate(found) if t is not None]
            return [found[i] for i in places]

        return tf.vectorized_map(one_direction, given)

    # As arguments, not captured: the accumulator would find its own tangents on the captured ones and start over.
    traced = tf.function(every_direction, autograph=False)
    stacked = traced(list(inputs), list(outputs), [tangents[i] for i in along])
    result: list[tf.Tensor | None] = [None] * len(outputs)
    for i, tangent in zip(places, stacked, strict=True):
        result[i] = shaped(tangent, tf.TensorShape([None]) + outputs[i].shape)
    return result


pywrap_tfe.TFE_Py_RegisterJVPFunction(_jvp)


def direct_call(concrete: Any) -> Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Call a concrete function of a dict of tensors to another without binding arguments and watching tapes anew.

    The public call takes 70 microseconds more each time, as long as a small model computes.
    """
    function, captured = concrete._inference_function, list(concrete.captured_inputs)
    inputs = sorted(concrete.structured_input_signature[0][0])
    outputs = sorted(concrete.structured_outputs)

    def call(feeds: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found = function.call_flat(*(feeds[name] for name in inputs), *captured)
        return dict(zip(outputs, found, strict=True))

    call.concrete = concrete  # type: ignore[attr-defined]  # it owns the graph
    return call


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """List a layer and every layer inside it, however deeply nested; Keras has no public way to reach them all."""
    return list(layer._flatten_layers(include_self=True, recursive=True))


def direct_sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """List the layers that a layer holds itself."""
    return list(layer._layers)


def operations(layer: keras.layers.Layer) -> list[Any]:
    """List what a functional or Sequential model calls itself, layers or not; a Sequential hides the functional one."""
    return list(getattr(getattr(layer, "_functional", None) or layer, "operations", ()))


def model_inputs(
    network: keras.Model, given: Sequence[tf.TensorSpec] | None
) -> tuple[list[tf.TensorSpec], Any, list[str]]:
    """Return a model's inputs as specs with a free batch axis, the structure it is called with, and their names."""
    # An unbuilt Sequential's `inputs` raise in older versions of Keras 3.
    symbolic = getattr(network, "inputs", None) if network.built else None
    if symbolic:
        structure = getattr(network, "_inputs_struct", None)
        structure = symbolic[0] if structure is None else structure
        flat = keras.tree.flatten(structure)
        specs = [tf.TensorSpec((None, *t.shape[1:]), keras.backend.standardize_dtype(t.dtype)) for t in flat]
        names = [t.name for t in flat]
    else:
        given = given or _built_inputs(network)
        specs = [tf.TensorSpec((None, *s.shape[1:]), s.dtype) for s in given]
        structure = specs[0] if len(specs) == 1 else specs
        names = [s.name or f"input_{i}" for i, s in enumerate(given)]
    return specs, structure, ["x"] if len(specs) == 1 else names


def _built_inputs(network: keras.Model) -> list[tf.TensorSpec]:
    shape = (network.get_build_config() or {}).get("input_shape")
    if shape is None:
        raise ValueError(
            f"the inputs of the subclassed model {network.name!r} are not known; call it once before saving it, or "
            "pass inputs=[keras.Input(...)]"
        )
    shapes = [shape] if not shape or not isinstance(shape[0], list | tuple) else shape
    return [tf.TensorSpec(s, network.compute_dtype) for s in shapes]


def named_outputs(network: keras.Model, found: Any) -> tuple[list[str], list[tf.Tensor]]:
    """Name a model's outputs: `y` if there is one, else the keys or output layers' names."""
    if isinstance(found, dict):
        names, tensors = [str(k) for k in found], list(found.values())
    elif isinstance(found, list | tuple):
        tensors = list(found)
        names = [str(n) for n in getattr(network, "output_names", ())]
        if len(set(names)) != len(tensors):
            names = [f"output_{i}" for i in range(len(tensors))]
    else:
        names, tensors = ["y"], [found]
    return (["y"] if len(tensors) == 1 else names), [tf.convert_to_tensor(t) for t in tensors]
