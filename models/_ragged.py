"""Ragged sequences: rows of different lengths in one array, and which layers keep the padding out of the results."""

from typing import Any

import keras
import tensorflow as tf

from models import _tf
from models._causality import is_causal_layer, is_elementwise, layers_across_time, makes_mask

_L = keras.layers

_UNKNOWN = "is not known to leave padded steps out"


def ragged_obstacle(network: keras.Model) -> str | None:
    """Name the first layer that would let padding at the end of a row reach its results; None if there is none.

    What passes: forward recurrences and Bidirectional, which skip masked steps; layers that treat every step alone;
    causal convolutions; means over time that leave masked steps out. Whatever is not known here counts as an obstacle.
    """
    for layer in layers_across_time(network):
        why = _obstacle(layer, network)
        if why is not None:
            return f"layer {layer.name!r} ({type(layer).__name__}) {why}"
    return None


def steps_of(lengths: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Tell which steps of a sequence `like`, `(batch, time, ...)`, belong to their rows: boolean, `(batch, time)`."""
    time = tf.shape(like)[1] if like.shape[1] is None else like.shape[1]
    mask = tf.sequence_mask(lengths, time)
    mask.set_shape(like.shape[:2])
    return mask


def without_padding(sequence: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """Put zeros, which nothing depends on, at the steps that belong to no row."""
    for _ in range(sequence.shape.rank - 2):
        steps = steps[..., tf.newaxis]
    shown = tf.where(steps, sequence, tf.zeros([], sequence.dtype))
    shown.set_shape(sequence.shape)
    return shown


def mean_of_steps(inputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Compute what GlobalAveragePooling1D does over the steps that are not masked; zero where there are none."""
    count = tf.reduce_sum(tf.cast(mask, inputs.dtype), 1)[:, tf.newaxis]
    return tf.reduce_sum(without_padding(inputs, mask), 1) / tf.maximum(count, 1)


def _obstacle(layer: keras.layers.Layer, network: keras.Model) -> str | None:
    if not type(layer).__module__.startswith(("keras.", "models.")):
        return _UNKNOWN
    for operation in getattr(layer, "operations", ()):
        if not (isinstance(operation, _L.Layer) or makes_mask(operation)):
            return f"calls the operation {operation.name!r} ({type(operation).__name__}), which {_UNKNOWN}"
    if isinstance(layer, _L.Bidirectional):
        usual = not layer.forward_layer.go_backwards and layer.backward_layer.go_backwards
        return None if usual else "runs backwards first, so its steps change places"
    if isinstance(layer, _L.RNN):
        within = any(layer is b.backward_layer for b in _tf.sublayers(network) if isinstance(b, _L.Bidirectional))
        reordered = layer.go_backwards and layer.return_sequences and not within
        return "returns its steps in reverse order, the padded ones first" if reordered else None
    if isinstance(layer, _L.GlobalAveragePooling1D):
        usual = layer.data_format == "channels_last" and not layer.keepdims
        return None if usual else "averages over an axis that is not known to be the time alone"
    if any(_is_bare_sequence(t) for t in _inputs(layer)) and not isinstance(
        layer, _L.Embedding | _L.InputLayer | keras.Model
    ):
        return "takes the time axis of numbers without features for one of features"
    if isinstance(layer, _L.Conv1D | _L.SeparableConv1D) and _is_causal_convolution(layer):
        return None
    return None if is_causal_layer(layer) else "does not keep padded steps apart from others"


def _is_causal_convolution(layer: Any) -> bool:
    usual = layer.padding == "causal" and layer.data_format == "channels_last" and set(layer.strides) == {1}
    return usual and is_elementwise(layer.activation)


def _inputs(layer: keras.layers.Layer) -> list[Any]:
    """List the symbolic tensors that a layer is called on in functional models; none in others."""
    return [tensor for node in getattr(layer, "_inbound_nodes", ()) for tensor in node.input_tensors]


def _is_bare_sequence(tensor: Any) -> bool:
    """Tell whether a tensor is `(batch, time)`, by the rule that inputs are named by."""
    return len(tensor.shape) == 2 and (
        tensor.shape[1] is None or "int" in keras.backend.standardize_dtype(tensor.dtype)
    )
