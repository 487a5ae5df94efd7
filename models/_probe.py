"""How a program reaches the recurrent layers inside a model: initial states in, states after each step out."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import keras
import tensorflow as tf

Tensors = list[tf.Tensor]
Maybe = list[tf.Tensor | None]


@dataclass
class Visit:
    """What happened to one recurrent layer while a model was called under a probe."""

    calls: int = 0
    default_initial: bool = False
    initial: Tensors = field(default_factory=list)
    final: Tensors = field(default_factory=list)
    hidden: Tensors = field(default_factory=list)


@dataclass
class Probe:
    """One call's wishes (all but `visits`) and findings (`visits`, by the layer's `id`).

    `directions` is how many stacked tangents or cotangents will follow, 0 if that is not known; the stacked tangents of
    `basis`, if there are any such tensors, are the identity: of their last axes side by side, for each row of a single
    step. `steps`, boolean and `(batch, time)`, tells which steps belong to their rows; the rest is padding, which the
    layers whose `id` is in `across` skip. `initial` and `nudges` hold a tensor or None per slot; a nudge is `(batch,
    time, ...)`.
    """

    unrolled: bool = False
    directions: int = 0
    basis: Tensors = field(default_factory=list)
    steps: tf.Tensor | None = None
    across: frozenset[int] = frozenset()
    initial: dict[int, Maybe] = field(default_factory=dict)
    nudges: dict[int, Maybe] = field(default_factory=dict)
    visits: dict[int, Visit] = field(default_factory=dict)

    def visit(self, layer: keras.layers.Layer) -> Visit:
        """Return the record of a layer, a new one at its first visit."""
        return self.visits.setdefault(id(layer), Visit())

    def mask(self, layer: keras.layers.Layer, mask: tf.Tensor | None) -> tf.Tensor | None:
        """Return the mask of a layer that is called with `mask`, `(batch, time)`: padding is masked besides."""
        if self.steps is None or id(layer) not in self.across:
            return mask
        return self.steps if mask is None else tf.logical_and(tf.cast(mask, tf.bool), self.steps)


_ACTIVE: ContextVar[Probe | None] = ContextVar("probe", default=None)


def active() -> Probe | None:
    """Return the probe of the current call, if any."""
    return _ACTIVE.get()


@contextmanager
def probing(probe: Probe) -> Generator[Probe]:
    """Make `probe` the active one."""
    token = _ACTIVE.set(probe)
    try:
        yield probe
    finally:
        _ACTIVE.reset(token)
