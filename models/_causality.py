"""Whether step t of a model's sequences depends on inputs up to t only, read off its layers."""

from typing import Any

import keras
import numpy as np

from models import _tf

_L = keras.layers
# Layers that treat every time step alone. A layer that is not listed counts as not causal: the safe answer, since what
# is claimed to be zero is never computed.
_PER_STEP = tuple(
    getattr(_L, name)
    for name in (
        "InputLayer Dense Activation ReLU LeakyReLU PReLU ELU Softmax Dropout SpatialDropout1D GaussianNoise "
        "GaussianDropout AlphaDropout Masking Embedding TimeDistributed Add Subtract Multiply Average Maximum Minimum "
        "Identity Rescaling ActivityRegularization"
    ).split()
    if hasattr(_L, name)
)

# Layers around a function or a program of the user's.
_OF_USERS = tuple(
    getattr(_L, name) for name in ("Lambda", "TFSMLayer", "JaxLayer", "TorchModuleWrapper") if hasattr(_L, name)
)


def is_causal(network: keras.Model) -> bool:
    """Tell whether only forward-running recurrences and per-step layers make up `network`.

    Anything else (a Bidirectional, a layer or operation not known here, a merge along time) makes the answer False.
    """
    return acausal_layer(network) is None


def acausal_layer(network: keras.Model) -> str | None:
    """Name the first layer for which `is_causal` is False; None if there is none."""
    found = next((layer for layer in layers_across_time(network) if not is_causal_layer(layer)), None)
    return None if found is None else f"layer {found.name!r} ({type(found).__name__}) looks beyond its own time step"


def masking_layer(network: keras.Model) -> str | None:
    """Name the first layer that makes a mask; None if there is none."""
    for layer in _tf.sublayers(network):
        if isinstance(layer, _L.Masking) or (isinstance(layer, _L.Embedding) and layer.mask_zero):
            return f"layer {layer.name!r} ({type(layer).__name__}) masks steps, whose output repeats an earlier one"
    return None


def keeps_length(network: keras.Model) -> bool:
    """Tell whether every sequence inside `network` has as many steps as the one that goes in; False if in doubt."""
    recurrent = (_L.RNN, _L.Bidirectional)
    return all(isinstance(layer, recurrent) or is_causal_layer(layer) for layer in layers_across_time(network))


def layers_across_time(network: keras.layers.Layer) -> list[keras.layers.Layer]:
    """List the layers that see whole sequences: not those inside a cell or a TimeDistributed, which see a step."""
    layers = _tf.sublayers(network)
    within = {
        id(inner)
        for layer in layers
        if isinstance(layer, _L.RNN | _L.TimeDistributed)
        for inner in _tf.sublayers(layer.cell if isinstance(layer, _L.RNN) else layer.layer)
    }
    return [layer for layer in layers if id(layer) not in within]


def mixing_layer(network: keras.Model) -> str | None:
    """Name the first layer in which the rows of a batch may know of each other; None if each stands for itself.

    A layer or operation that is not Keras's or ours counts as mixing: the safe answer, since what does not is joined
    with the rows of other requests.
    """
    for layer in _tf.sublayers(network):
        if not _rowwise(layer):
            return f"layer {layer.name!r} ({type(layer).__name__}) may mix the rows of a batch"
    return None


def _rowwise(layer: keras.layers.Layer) -> bool:
    if not all(isinstance(o, _L.Layer) or makes_mask(o) for o in getattr(layer, "operations", ())):
        return False
    if not all(is_elementwise(getattr(layer, name, None)) for name in ("activation", "recurrent_activation")):
        return False
    axis = getattr(layer, "axis", None)
    axes = axis if isinstance(axis, list | tuple) else [axis]
    # Counted from the end, only the last is surely not the batch's.
    if not all(a is None or a == -1 or a > 0 for a in axes):
        return False
    if isinstance(layer, _L.EinsumDense):
        inputs, _, output = layer.equation.replace(" ", "").partition("->")
        return inputs[0] == output[0]
    if isinstance(layer, _L.Rescaling):  # by an array, which may have rows of its own
        return all(np.ndim(factor) <= 1 for factor in (layer.scale, layer.offset))
    ours = type(layer).__module__.startswith(("keras.src.", "models."))
    return ours and not isinstance(layer, (*_OF_USERS, _L.Dot))


def is_causal_layer(layer: keras.layers.Layer) -> bool:
    """Tell whether step t of what a layer returns depends on steps up to t only; False if in doubt."""
    # A functional model's operations that are no layers, such as `x[:, ::-1]`, are not among its sublayers.
    if not all(isinstance(o, _L.Layer) or makes_mask(o) for o in getattr(layer, "operations", ())):
        return False
    if not is_elementwise(getattr(layer, "activation", None)):
        return False
    # Keras merges (batch, feature) with (batch, time, feature) by giving the former to every step.
    if getattr(layer, "_reshape_required", False):
        return False
    if isinstance(layer, _L.RNN):
        return not layer.go_backwards
    if isinstance(layer, _L.Bidirectional):
        return False
    if isinstance(layer, _L.LayerNormalization):
        return layer.axis in (-1, [-1]) or list(getattr(layer, "axis", [])) == [-1]
    if isinstance(layer, _L.BatchNormalization | _L.Normalization | _L.Concatenate | _L.Softmax | _L.UnitNormalization):
        axis = layer.axis
        return axis == -1 or axis == 2 or (isinstance(axis, list | tuple) and list(axis) in ([-1], [2]))
    if type(layer) in (keras.Sequential, keras.Model) or type(layer).__name__ == "Functional":
        return True
    return isinstance(layer, _PER_STEP) and type(layer).__module__.startswith(("keras.", "models."))


def makes_mask(operation: Any) -> bool:
    """Tell whether an operation is one of those with which Masking and Embedding make their masks, step by step."""
    kind = type(operation).__name__
    return kind == "NotEqual" or (kind == "Any" and operation.axis in (-1, [-1], (-1,)))


def is_elementwise(activation: Any) -> bool:
    """Tell whether an activation is one of Keras's, none of which looks across time; a user's own may."""
    return activation is None or str(getattr(activation, "__module__", "")).startswith("keras.src.activations")
