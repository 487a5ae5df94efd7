"""Whether step t of a model's sequences depends on inputs up to t only, read off its layers."""

import keras

from models import _tf

_L = keras.layers
# Layers that treat every time step alone. A layer that is not listed counts as not causal: the safe answer, since what
# is claimed to be zero is never computed.
_PER_STEP = tuple(
    getattr(_L, name)
    for name in (
        "InputLayer Dense EinsumDense Activation ReLU LeakyReLU PReLU ELU Softmax Dropout SpatialDropout1D GaussianNoise "
        "GaussianDropout AlphaDropout Masking Embedding TimeDistributed Add Subtract Multiply Average Maximum Minimum "
        "Identity Rescaling UnitNormalization ActivityRegularization"
    ).split()
    if hasattr(_L, name)
)
_CELLS = (_L.GRUCell, _L.LSTMCell, _L.SimpleRNNCell, _L.StackedRNNCells)


def is_causal(network: keras.Model) -> bool:
    """Tell whether only forward-running recurrences and per-step layers make up `network`.

    Anything else (a Bidirectional, a layer or operation not known here, a merge along time) makes the answer False.
    """
    return all(_causal(layer) for layer in _tf.sublayers(network) if layer is not network)


def _causal(layer: keras.layers.Layer) -> bool:
    if isinstance(layer, _L.RNN):
        return not layer.go_backwards
    if isinstance(layer, _L.Bidirectional):
        return False
    if isinstance(layer, _L.LayerNormalization):
        return layer.axis in (-1, [-1]) or list(getattr(layer, "axis", [])) == [-1]
    if isinstance(layer, _L.BatchNormalization | _L.Normalization | _L.Concatenate | _L.Softmax):
        axis = layer.axis
        return axis == -1 or axis == 2 or (isinstance(axis, list | tuple) and list(axis) in ([-1], [2]))
    if type(layer) in (keras.Sequential, keras.Model) or type(layer).__name__ == "Functional":
        return True
    return isinstance(layer, (*_PER_STEP, *_CELLS)) and type(layer).__module__.startswith(("keras.", "models."))
