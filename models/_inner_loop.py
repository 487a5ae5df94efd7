"""What replaces `keras.layers.RNN.inner_loop`: Keras's masks, directions and outputs on the scan primitive."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import tensorflow as tf

from models import _tf, cells
from models._probe import Probe, active
from models.cells._cell import Cell
from models.matrices import pays, recur_by_matrices
from models.one_step import step_by_matrices
from models.recurrence import recur
from models.scan import cut, kept, present, scan, swap

Tensors = list[tf.Tensor]
Maybe = list[tf.Tensor | None]


@cache
def is_stock_loop(cls: type[keras.layers.RNN]) -> bool:
    """Tell whether a layer class runs the loop that Keras wrote, not one of its own."""
    owner = next(c for c in cls.__mro__ if "inner_loop" in vars(c))
    return owner.__module__.startswith("keras.")


def uses_dropout(cell: Any) -> bool:
    """Tell whether a cell, or a cell stacked in it, drops anything in training."""
    parts = _tf.sublayers(cell) if isinstance(cell, keras.layers.Layer) else [cell]
    return any(getattr(c, "dropout", 0) or getattr(c, "recurrent_dropout", 0) for c in parts)


def inner_loop(layer: keras.layers.RNN, sequences: tf.Tensor, initial_state: Any, mask: Any, training: bool) -> Any:
    """Run a recurrent layer and return (last output, outputs in processing order, final states), as Keras does."""
    structure = initial_state if keras.tree.is_nested(initial_state) else [initial_state]
    states = [tf.convert_to_tensor(s) for s in keras.tree.flatten(structure)]
    probe, rule = active(), cells.find(layer.cell)
    mask = mask[0] if keras.tree.is_nested(mask) else mask
    mask = mask if probe is None else probe.mask(layer, mask)
    if probe is not None and rule is not None and _by_one_step(layer, probe, sequences, mask):
        weights, along = rule.weights(layer.cell), _along(probe, states, sequences)
        sequence, final = step_by_matrices(rule, weights, states, sequences, along)
        visit = probe.visit(layer)
        visit.calls += 1
        visit.initial, visit.final = states, final
        return final[0], sequence, keras.tree.pack_sequence_as(structure, final)
    xs = swap(tf.convert_to_tensor(sequences))
    mask = _time_major_mask(mask)
    nudges = _time_major_nudges(layer, states, mask, probe)
    unrolled = layer.unroll or (probe is not None and probe.unrolled)
    run = _Run(layer, states, xs, mask, nudges, unrolled, 0 if probe is None else probe.directions)
    outputs, stacks, final = _by_rule(run, rule) if rule else _by_autodiff(run, structure, training)
    # The final state of a cell with a rule is its last output, and the cotangent of it costs no array over all steps.
    last = final[0] if rule and mask is None else outputs[0] if layer.go_backwards else outputs[-1]
    if probe is not None:
        visit = probe.visit(layer)
        visit.calls += 1
        visit.initial, visit.final = states, final
        visit.hidden = [swap(s) for s in stacks]
    ordered = tf.reverse(outputs, [0]) if layer.go_backwards else outputs
    sequence = swap(ordered) if layer.return_sequences else last[:, tf.newaxis]
    return last, sequence, keras.tree.pack_sequence_as(structure, final)


@dataclass(frozen=True)
class _Run:
    """What both ways to run a layer need, time first; both return (outputs, the states after each step, the last)."""

    layer: Any
    states: Tensors
    xs: tf.Tensor
    mask: tf.Tensor | None
    nudges: Maybe
    unrolled: bool
    directions: int


def _by_one_step(layer: Any, probe: Probe, sequences: tf.Tensor, mask: Any) -> bool:
    return bool(probe.basis) and sequences.shape[1] == 1 and mask is None and id(layer) not in probe.nudges


def _along(probe: Probe, states: Tensors, sequences: tf.Tensor) -> str:
    """Tell which of a layer's own tangents are known to be the identity."""
    for what, tensors in (("state", states), ("input", [sequences])):
        if len(tensors) == len(probe.basis) and all(t is b for t, b in zip(tensors, probe.basis, strict=True)):
            return what
    return ""


def _by_rule(run: _Run, rule: Cell) -> tuple[tf.Tensor, Tensors, Tensors]:
    layer = run.layer
    weights = rule.weights(layer.cell)
    options = {"mask": run.mask, "nudges": run.nudges, "reverse": layer.go_backwards}
    if run.directions and not run.unrolled and _by_matrices_pays(run, weights):
        stacks, final = recur_by_matrices(rule, weights, run.states, run.xs, **options)
    else:
        p = rule.project(weights, run.xs)
        stacks, final = recur(rule, rule.consts(weights), run.states, p, unrolled=run.unrolled, **options)
    return _visible(stacks[0], run.mask, layer), stacks, final


def _by_matrices_pays(run: _Run, weights: Tensors) -> bool:
    numbers = sum(s.shape[-1] for s in run.states)
    return pays(run.directions, numbers) and not (_tf.taped(weights) or any(_tf.watched(weights)))


def _visible(state: tf.Tensor, mask: tf.Tensor | None, layer: keras.layers.RNN) -> tf.Tensor:
    # The output is the state, but a masked step repeats the output before it, which is zeros while none came yet.
    if mask is None:
        return state
    if layer.zero_output_for_mask:
        return tf.where(mask, state, 0)
    begun = tf.cumsum(tf.cast(mask, tf.int32), 0, reverse=layer.go_backwards) > 0
    return tf.where(begun, state, 0)


def _by_autodiff(run: _Run, structure: Any, training: bool) -> tuple[tf.Tensor, Tensors, Tensors]:
    layer, states, mask = run.layer, run.states, run.mask
    variables = tuple(getattr(layer.cell, "variables", ()))
    consts = [tf.convert_to_tensor(v) for v in variables]
    nudged, masked = kept(run.nudges), mask is not None
    step = _KerasStep(layer.cell, variables, _Hashable(structure), nudged, masked, layer.zero_output_for_mask, training)
    carry = list(states)
    if masked:
        carry.append(tf.zeros_like(step.call_cell(consts, states, run.xs[0])[0]))
    xs = [run.xs, *present(run.nudges), *present([mask])]
    final, stacks = scan(step, consts, carry, xs, reverse=layer.go_backwards, unrolled=run.unrolled)
    return stacks[0], stacks[1:], final[: len(states)]


@dataclass(frozen=True)
class _Hashable:
    """A structure of tensors reduced to its form, so that a step can be compared and hashed."""

    structure: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashable) and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.form)

    @property
    def form(self) -> str:
        return str(keras.tree.map_structure(lambda _: 0, self.structure))


@dataclass(frozen=True)
class _KerasStep:
    """A step of any Keras cell: its weights are handed over as constants, so that they are read once."""

    cell: Any
    variables: tuple[Any, ...]
    structure: _Hashable
    nudged: tuple[bool, ...]
    masked: bool
    zero_output: bool
    training: bool

    def __hash__(self) -> int:
        return hash((id(self.cell), self.structure, self.nudged, self.masked, self.zero_output, self.training))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _KerasStep) and self.cell is other.cell and self._options() == other._options()

    def _options(self) -> tuple[Any, ...]:
        return self.structure, self.nudged, self.masked, self.zero_output, self.training

    def call_cell(self, consts: Tensors, states: Tensors, x: tf.Tensor) -> tuple[tf.Tensor, Tensors]:
        kwargs = {"training": self.training} if getattr(self.cell, "_call_has_training_arg", False) else {}
        with keras.StatelessScope(state_mapping=list(zip(self.variables, consts, strict=True))):
            output, new = self.cell(x, keras.tree.pack_sequence_as(self.structure.structure, states), **kwargs)
        return output, keras.tree.flatten(new)

    def __call__(self, consts: Tensors, carry: Tensors, x: Tensors) -> tuple[Tensors, Tensors]:
        (v,), nudges, masks = cut(x, 1, sum(self.nudged), self.masked)
        states, previous = cut(carry, len(self.nudged), self.masked)
        output, new = self.call_cell(consts, states, v)
        rest = iter(nudges)
        moved = [s + next(rest) if has else s for s, has in zip(new, self.nudged, strict=True)]
        # A cell whose output is its state shows the nudge in the output, too.
        output = next((m for m, s in zip(moved, new, strict=True) if s is output), output)
        if not self.masked:
            return moved, [output, *moved]
        moved = [tf.where(_fit(masks[0], s), m, s) for m, s in zip(moved, states, strict=True)]
        shown = tf.where(_fit(masks[0], output), output, 0 if self.zero_output else previous[0])
        return [*moved, shown], [shown, *moved]


def _fit(mask: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Give a mask of shape (batch, 1) the rank of `tensor`."""
    return tf.reshape(mask, [-1] + [1] * (tensor.shape.rank - 1))


def _time_major_mask(mask: Any) -> tf.Tensor | None:
    if mask is None:
        return None
    mask = tf.cast(mask, tf.bool)
    return swap(mask[..., tf.newaxis] if mask.shape.rank == 2 else mask)


def _time_major_nudges(layer: Any, states: Tensors, mask: tf.Tensor | None, probe: Probe | None) -> Maybe:
    given = None if probe is None else probe.nudges.get(id(layer))
    nudges = [None if n is None else swap(n) for n in given] if given else [None] * len(states)
    if mask is None:
        return nudges
    # A masked step has no state of its own to nudge.
    return [n if n is None else tf.where(tf.reshape(mask, _lead(mask, n)), n, 0) for n in nudges]


def _lead(mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.shape(mask)[:2], tf.ones(like.shape.rank - 2, tf.int32)], 0)
