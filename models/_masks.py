"""Masks that are held: while inputs move a little, the steps that a mask hides are to stay hidden.

Derivatives take a mask for a constant. Whoever moves the inputs of a model with Masking, as differences do, would show
the hidden steps instead: they no longer equal the mask's value.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from models import _tf
from models._probe import Probe, active


@dataclass
class _Held:
    """The first run's masks, by the operation's `id` and the number of its call within a run."""

    masks: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    run: Probe | None = None
    calls: Counter[int] = field(default_factory=Counter)

    def mask(self, operation: Any, fresh: tf.Tensor) -> tf.Tensor:
        """Return what the operation found in the first run; `fresh`, what it finds now, if this is the first."""
        if active() is not self.run:
            self.run, self.calls = active(), Counter()
        key = id(operation), self.calls[id(operation)]
        self.calls[key[0]] += 1
        held = self.masks.setdefault(key, fresh)
        # What a loop's body found can't be used outside it.
        return held if getattr(held, "graph", None) is getattr(fresh, "graph", None) else fresh


_HELD: ContextVar[_Held | None] = ContextVar("held", default=None)


@contextmanager
def holding(network: keras.Model) -> Generator[None]:
    """Within this context the first run of a model makes masks, and all others, whatever they run on, use the same.

    This reaches Masking layers wherever they are, and comparisons by `keras.ops.not_equal` in functional models. A mask
    that a layer of a user's own makes from floating-point numbers is made anew in each run. Masks that are made from
    integers, as an Embedding does, can't change.

    Args:
        network: the model, built.
    """
    for layer in _tf.sublayers(network):
        if isinstance(layer, keras.layers.Masking):
            _replace(layer, _masking_call)
        for operation in _tf.operations(layer):
            # What a functional model makes of the mask of a Masking layer; its class has no public name.
            if type(operation).__name__ == "NotEqual":
                _replace(operation, _not_equal_call)
    token = _HELD.set(_Held())
    try:
        yield
    finally:
        _HELD.reset(token)


def _replace(operation: Any, call: Any) -> None:
    object.__setattr__(operation, "call", MethodType(call, operation))


def _masking_call(self: keras.layers.Masking, inputs: tf.Tensor) -> tf.Tensor:
    held = _HELD.get()
    if held is not None:
        shown = held.mask(self, tf.reduce_any(tf.not_equal(inputs, self.mask_value), -1, keepdims=True))
        inputs = tf.where(shown, inputs, tf.cast(self.mask_value, inputs.dtype))
    return type(self).call(self, inputs)


def _not_equal_call(self: Any, x1: Any, x2: Any) -> tf.Tensor:
    held, found = _HELD.get(), type(self).call(self, x1, x2)
    return found if held is None else held.mask(self, found)
