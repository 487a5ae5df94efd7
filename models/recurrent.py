"""Keras's recurrent layers on the scan primitive: the same arguments, weights and numbers, and forward mode works.

`GRU`, `LSTM`, `SimpleRNN`, `RNN`, `Bidirectional` and `TimeDistributed` replace the classes of the same name in
`keras.layers`; `make_forward_safe` does the same to the layers of a finished model, in place.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

import keras
import tensorflow as tf

from models import _tf
from models._inner_loop import inner_loop, is_stock_loop, uses_dropout
from models._probe import active
from models._ragged import mean_of_steps, without_padding
from pushforward.errors import UnsafeModel

__all__ = ["GRU", "LSTM", "RNN", "Bidirectional", "SimpleRNN", "TimeDistributed", "make_forward_safe"]

M = TypeVar("M", bound=keras.layers.Layer)


def make_forward_safe(model: M) -> M:
    """Let every recurrent layer of `model` run through the scan primitive; weights and config stay as they are.

    Args:
        model: a Sequential, functional or subclassed model, or a layer, built or not; nested ones are reached too.

    Returns:
        The same object.

    Raises:
        UnsafeModel: if a recurrent layer brings a time loop of its own, which nothing here can replace.
    """
    for layer in _tf.sublayers(model):
        _make_layer_safe(layer)
    return model


def _make_layer_safe(layer: keras.layers.Layer) -> None:
    if isinstance(layer, _Recurrent | TimeDistributed) or "_pushforward_stock" in vars(layer):
        return
    if isinstance(layer, keras.layers.RNN):
        if not is_stock_loop(type(layer)):
            raise UnsafeModel(
                f"layer {layer.name!r} ({type(layer).__name__}) overrides the time loop of keras.layers.RNN, so it "
                "can't be made safe for forward mode; move its step into a cell and use keras.layers.RNN(cell)"
            )
        _replace(layer, "inner_loop", _layer_inner_loop)
        _replace(layer, "get_initial_state", _layer_initial_state)
        _without_cudnn(layer)
    elif isinstance(layer, keras.layers.TimeDistributed) and type(layer).call is keras.layers.TimeDistributed.call:
        _replace(layer, "call", _time_distributed_call)
    elif type(layer) is keras.layers.Embedding:
        _replace(layer, "call", _embedding_call)
    elif type(layer) is keras.layers.GlobalAveragePooling1D:
        _replace(layer, "call", _mean_call)
    elif isinstance(layer, keras.layers.Bidirectional):
        for inner in (layer.forward_layer, layer.backward_layer):
            _make_layer_safe(inner)


def _replace(layer: keras.layers.Layer, name: str, function: Callable[..., Any]) -> None:
    stock = vars(layer).get("_pushforward_stock", {})
    object.__setattr__(layer, "_pushforward_stock", {**stock, name: getattr(layer, name)})
    object.__setattr__(layer, name, MethodType(function, layer))


def _stock(layer: keras.layers.Layer, name: str) -> Callable[..., Any]:
    return vars(layer)["_pushforward_stock"][name]


def _without_cudnn(layer: keras.layers.RNN) -> None:
    # cuDNN's kernels have no forward mode. The attribute is not part of a layer's config.
    if hasattr(layer, "use_cudnn"):
        layer.use_cudnn = False
        layer.supports_jit = True


def _layer_inner_loop(
    self: keras.layers.RNN, sequences: tf.Tensor, initial_state: Any, mask: Any = None, training: bool = False
) -> Any:
    if training and uses_dropout(self.cell):
        return _stock(self, "inner_loop")(sequences, initial_state, mask, training)
    return inner_loop(self, sequences, initial_state, mask, training)


def _layer_initial_state(self: keras.layers.RNN, batch_size: Any) -> list[Any]:
    default = _stock(self, "get_initial_state")(batch_size)
    return _chosen_initial_state(self, default)


def _chosen_initial_state(layer: keras.layers.RNN, default: list[Any]) -> list[Any]:
    probe = active()
    if probe is None:
        return default
    probe.visit(layer).default_initial = True
    given = probe.initial.get(id(layer))
    if given is None:
        return default
    flat = [d if g is None else g for d, g in zip(keras.tree.flatten(default), given, strict=True)]
    return keras.tree.pack_sequence_as(default, flat)


def _embedding_call(self: keras.layers.Embedding, inputs: tf.Tensor) -> tf.Tensor:
    # Tokens have no tangent: what they are turned into can be perturbed instead, like the state of a recurrent layer.
    output = _stock(self, "call")(inputs)
    probe = active()
    if probe is None:
        return output
    visit = probe.visit(self)
    visit.calls += 1
    (nudge,) = probe.nudges.get(id(self), [None])
    if nudge is not None and probe.steps is not None:
        nudge = without_padding(
            nudge, probe.steps
        )  # as that of a recurrent layer, whose masked steps have no own state
    visit.hidden = [output if nudge is None else output + nudge]
    return visit.hidden[0]


def _mean_call(
    self: keras.layers.GlobalAveragePooling1D, inputs: tf.Tensor, mask: tf.Tensor | None = None
) -> tf.Tensor:
    probe = active()
    steps = None if probe is None or probe.steps is None else probe.mask(self, mask)
    return _stock(self, "call")(inputs, mask=mask) if steps is None else mean_of_steps(inputs, steps)


class _Recurrent(keras.layers.RNN):
    """The mixin that puts a Keras RNN layer on the scan primitive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _without_cudnn(self)

    def inner_loop(self, sequences: tf.Tensor, initial_state: Any, mask: Any = None, training: bool = False) -> Any:
        # With dropout on, training keeps Keras's loop and its masks: reverse mode only, as in Keras.
        if training and uses_dropout(self.cell):
            return super().inner_loop(sequences, initial_state, mask, training)
        return inner_loop(self, sequences, initial_state, mask, training)

    def get_initial_state(self, batch_size: Any) -> list[Any]:
        return _chosen_initial_state(self, super().get_initial_state(batch_size))


_register = keras.saving.register_keras_serializable(package="pushforward")


@_register
class GRU(_Recurrent, keras.layers.GRU):
    """`keras.layers.GRU`, differentiable in forward and reverse mode, eagerly, in graphs and under XLA."""


@_register
class LSTM(_Recurrent, keras.layers.LSTM):
    """`keras.layers.LSTM`, differentiable in forward and reverse mode, eagerly, in graphs and under XLA."""


@_register
class SimpleRNN(_Recurrent, keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN`, differentiable in forward and reverse mode, eagerly, in graphs and under XLA."""


@_register
class RNN(_Recurrent, keras.layers.RNN):
    """`keras.layers.RNN` for any cell; cells without a rule of their own are differentiated inside the loop's body."""


@_register
class Bidirectional(keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`; both inner layers, stock ones too, run through the scan primitive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for layer in (self.forward_layer, self.backward_layer):
            _make_layer_safe(layer)


@_register
class TimeDistributed(keras.layers.TimeDistributed):
    """`keras.layers.TimeDistributed` with time folded into the batch: no loop, so a free time axis is safe, too."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        for inner in _tf.sublayers(layer):
            _make_layer_safe(inner)

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Apply the layer to every step of `(batch, time, ...)`."""
        if _step_by_step(self, training):
            return super().call(inputs, training=training, mask=mask)
        return _folded(self, inputs, training, mask)


def _time_distributed_call(
    self: keras.layers.TimeDistributed, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None
) -> tf.Tensor:
    if _step_by_step(self, training):
        return _stock(self, "call")(inputs, training=training, mask=mask)
    return _folded(self, inputs, training, mask)


def _step_by_step(layer: keras.layers.TimeDistributed, training: bool | None) -> bool:
    # In training, layers that look across the batch, such as BatchNormalization, must see one step at a time; a
    # stateful layer hands its state from step to step.
    return bool(training) or any(getattr(inner, "stateful", False) for inner in _tf.sublayers(layer.layer))


def _folded(
    layer: keras.layers.TimeDistributed, inputs: tf.Tensor, training: bool | None, mask: tf.Tensor | None
) -> tf.Tensor:
    kwargs: dict[str, Any] = {}
    if mask is not None and layer.layer._call_has_mask_arg:
        kwargs["mask"] = _fold(mask)
    if layer.layer._call_has_training_arg:
        kwargs["training"] = training
    lead = tf.shape(inputs)[:2]
    found = layer.layer.call(_fold(inputs), **kwargs)
    unfolded = tf.reshape(found, tf.concat([lead, tf.shape(found)[1:]], 0))
    unfolded.set_shape([*inputs.shape[:2], *found.shape[1:]])
    return unfolded


def _fold(tensor: tf.Tensor) -> tf.Tensor:
    # Rows without elements can't be told apart by -1, so the first axis is computed.
    shape = tf.shape(tensor)
    folded = tf.reshape(tensor, tf.concat([[shape[0] * shape[1]], shape[2:]], 0))
    rows = None if None in tensor.shape[:2] else tensor.shape[0] * tensor.shape[1]
    folded.set_shape([rows, *tensor.shape[2:]])
    return folded
