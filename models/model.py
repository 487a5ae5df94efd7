"""A registered model: a Keras model made safe, with a signature, as one pure function of named arrays."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models import _tf
from models._causality import layers_across_time
from models._masks import holding
from models._names import Place, describe
from models._probe import Probe, probing
from models._ragged import steps_of, without_padding
from models.recurrent import make_forward_safe
from models.signature import LENGTHS, Signature
from pushforward.errors import UnsafeModel

Tensors = dict[str, tf.Tensor]


class Model:
    """A Keras model that can be evaluated and differentiated with respect to everything its signature names.

    Args:
        name: the name it is registered under.
        network: a Sequential, functional or subclassed Keras model. It is made safe in place and becomes stateless:
            states come in and go out by name, so equal requests get equal answers.
        version: counts registrations under the same name.
        inputs: `keras.Input`s or `tf.TensorSpec`s, for a subclassed model that was never built by a call.

    Raises:
        UnsafeModel: if it can't be differentiated forwards; the message names the layer and says what to do.
    """

    def __init__(
        self, name: str, network: keras.Model, *, version: int = 1, inputs: Sequence[tf.TensorSpec] | None = None
    ) -> None:
        self.name, self.version = name, version
        self.notes: tuple[str, ...] = ()
        self._network = make_forward_safe(network)
        for layer in _tf.sublayers(network):
            if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional):
                layer.stateful = False
            if type(layer).__name__ == "Functional":
                # It would refuse a part of a sequence whose length it fixes; `fit` checks what a request holds.
                layer.input_spec = None
        specs, self._structure, input_names = _tf.model_inputs(network, inputs)
        self._inputs = dict(zip(input_names, specs, strict=True))
        self._across = frozenset(id(layer) for layer in layers_across_time(network))
        self._places: tuple[Place, ...] = ()
        self._variables: dict[str, keras.Variable] = {}
        self._output_names: list[str] = []
        self.signature: Signature = self._inspect()
        self._check_forward_safe()

    @property
    def dtype(self) -> str:
        """The dtype of the model's outputs."""
        return self.signature.dtype

    def run(
        self,
        arrays: Mapping[str, tf.Tensor],
        outputs: Sequence[str],
        *,
        unrolled: bool = False,
        directions: int = 0,
        basis: Sequence[str] = (),
    ) -> Tensors:
        """Evaluate the model: a pure, differentiable function for use while a `tf.function` is traced.

        Args:
            arrays: tensors by input-side name; every model input, and any state, hidden perturbation or parameter; and,
                if rows are padded at the end, as `LENGTHS` how many steps of each are its own, `(batch,)`. The model
                then runs as Keras runs it with that mask, and no result depends on what stands in the padding.
            outputs: output-side names.
            unrolled: write every recurrence out step by step; time must be known.
            directions: how many stacked tangents or cotangents it will be differentiated along, if that is known: many
                at once go another way, which is differentiable along stacked directions only.
            basis: for a single time step, an input, or all states of a layer in order, whose stacked tangents are the
                identity: side by side, for each row. Such a run is differentiable once, in forward mode.

        Returns:
            A tensor for each name in `outputs`.
        """
        probe = Probe(unrolled=unrolled, directions=directions, basis=[arrays[n] for n in basis])
        for place in self._places:
            for kind, wishes in (("state", probe.initial), ("hidden", probe.nudges)):
                given = [arrays.get(f"{kind}.{place.name}.{slot}") for slot in place.slots]
                if any(g is not None for g in given):
                    wishes[id(place.layer)] = given
        inputs = {n: arrays[n] for n in self._inputs}
        if LENGTHS in arrays:
            sequences = [a.name for a in self.signature.sequences]
            probe.across, probe.steps = self._across, steps_of(arrays[LENGTHS], inputs[sequences[0]])
            inputs |= {n: without_padding(inputs[n], probe.steps) for n in sequences}
        found = self._call(probe, inputs, arrays)
        for place in self._places:
            visit = probe.visit(place.layer)
            for kind, values in (("state", visit.final), ("hidden", visit.hidden)):
                if values:
                    found |= {f"{kind}.{place.name}.{slot}": v for slot, v in zip(place.slots, values, strict=True)}
        return {name: found[name] for name in outputs}

    def default(self, name: str, like: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return what stands on the input side if a request does not give it: where derivatives are then taken.

        Args:
            name: an initial state, a hidden perturbation or a parameter.
            like: the model's inputs, for the sizes of free axes.
        """
        if name.startswith("param."):
            return tf.convert_to_tensor(self._variables[name])
        kind, rest = name.split(".", 1)
        if kind == "hidden" and not self.signature.one_length:
            return tf.zeros_like(self.run(like, [name])[name])
        first = like[next((s.name for s in self.signature.sequences), next(iter(self._inputs)))]
        batch, time = tf.shape(first)[0], tf.shape(first)[1]
        for place in self._places:
            names = [f"{place.name}.{slot}" for slot in place.slots]
            if rest not in names:
                continue
            dtype = place.layer.compute_dtype
            if not place.has_state:
                return tf.zeros([batch, time, place.layer.output_dim], dtype)
            state = keras.tree.flatten(place.layer.get_initial_state(batch))[names.index(rest)]
            if kind == "state":
                return tf.cast(tf.convert_to_tensor(state), dtype)
            shape = tf.shape(state)
            return tf.zeros(tf.concat([[batch, time], shape[1:]], 0), dtype)
        raise KeyError(name)

    def holding_masks(self) -> AbstractContextManager[None]:
        """Make a context in which the first run makes masks and all others use the same, though their inputs differ."""
        return holding(self._network)

    def sizes(self, name: str, inputs: Mapping[str, np.ndarray]) -> tuple[int, ...]:
        """Return the sizes, without the batch axis, of an array that only a run of the model tells the length of."""
        given = {n: tf.convert_to_tensor(a[:1]) for n, a in inputs.items()}
        return tuple(self.run(given, [name])[name].shape[1:])

    def _call(self, probe: Probe, inputs: Tensors, parameters: Mapping[str, tf.Tensor]) -> Tensors:
        mapping = [(v, parameters[n]) for n, v in self._variables.items() if n in parameters]
        packed = keras.tree.pack_sequence_as(self._structure, [inputs[n] for n in self._inputs])
        kwargs = {"training": False} if self._network._call_has_training_arg else {}
        # Without the scope, layers could write to variables: state that would leak from request to request.
        with keras.StatelessScope(state_mapping=mapping), probing(probe):
            found = self._network(packed, **kwargs)
        names, tensors = _tf.named_outputs(self._network, found)
        self._output_names = names
        return dict(zip(names, tensors, strict=True))

    def _inspect(self) -> Signature:
        probe = Probe()

        def trace(*tensors: tf.Tensor) -> Any:
            found = self._call(probe, dict(zip(self._inputs, tensors, strict=True)), {})
            visits = {key: (visit.final, visit.hidden) for key, visit in probe.visits.items()}
            return list(found.values()), [visits[key] for key in visits]

        if not all(layer.built for layer in _tf.sublayers(self._network)):
            # Keras calls a subclassed model once more to build it, and a layer called twice has no state to name.
            tf.function(trace, autograph=False).get_concrete_function(*self._inputs.values())
            probe.visits.clear()
        traced = tf.function(trace, autograph=False).get_concrete_function(*self._inputs.values())
        outputs, states = traced.structured_outputs
        signature, self._places, self._variables = describe(
            self._network, self._inputs, dict(zip(self._output_names, outputs, strict=True)), probe, states
        )
        return signature

    def _check_forward_safe(self) -> None:
        sources = [n for n, s in self._inputs.items() if s.dtype.is_floating] + list(self._variables)

        def jvp(arrays: Tensors) -> list[tf.Tensor]:
            primals = [tf.identity(arrays[n] if n in arrays else self.default(n, arrays)) for n in sources]
            with tf.autodiff.ForwardAccumulator(primals, [tf.ones_like(p) for p in primals]) as accumulator:
                found = self.run({**arrays, **dict(zip(sources, primals, strict=True))}, self._output_names)
            return [accumulator.jvp(t, "zero") for t in found.values()]

        try:
            tf.function(jvp, autograph=False).get_concrete_function(dict(self._inputs))
        except Exception as error:
            where = self._foreign_loops() or str(error).split("\n")[0]
            raise UnsafeModel(
                f"model {self.name!r} can't be differentiated in forward mode: {where}; write the loop as a cell for "
                "keras.layers.RNN, or leave that layer out"
            ) from error

    def _foreign_loops(self) -> str:
        traced = tf.function(lambda arrays: self.run(arrays, self._output_names), autograph=False)
        graph = traced.get_concrete_function(dict(self._inputs)).graph
        loops = [op.name for op in graph.get_operations() if "While" in op.type]
        owners = [layer.name for layer in _tf.sublayers(self._network)]
        named = {_owner(loop, owners) for loop in loops}
        return f"layer {', '.join(repr(n) for n in sorted(named))} runs a loop of its own" if named else ""


def _owner(scope: str, layers: Sequence[str]) -> str:
    """Find the innermost layer in the path of an operation's name; graphs append numbers to names that are taken."""
    for part in reversed(scope.split("/")):
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in layers:
                return name
    return scope
