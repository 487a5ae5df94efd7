"""How the parts of a Keras model get their public names: layers by path, slots by cell, weights by role."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from models import _tf
from models._causality import (
    acausal_layer,
    is_causal,
    keeps_length,
    layers_across_time,
    masking_layer,
    mixing_layer,
)
from models._probe import Probe
from models._ragged import ragged_obstacle
from models.signature import Array, Signature

_SPATIAL = ("height", "width", "depth")


@dataclass(frozen=True)
class Place:
    """A layer that was called once and whose inside has names: `name` is its path in the model, `slots` its parts.

    A recurrent layer has states; an Embedding has only an output that can be perturbed, as tokens themselves cannot.
    """

    name: str
    layer: keras.layers.RNN | keras.layers.Embedding
    slots: tuple[str, ...]

    @property
    def has_state(self) -> bool:
        """Whether there are initial and final states, not only perturbations."""
        return isinstance(self.layer, keras.layers.RNN)


def describe(
    network: keras.Model,
    inputs: Mapping[str, tf.TensorSpec],
    outputs: Mapping[str, tf.Tensor],
    probe: Probe,
    states: Sequence[tuple[list[tf.Tensor], list[tf.Tensor]]],
) -> tuple[Signature, tuple[Place, ...], dict[str, keras.Variable]]:
    """Make the signature of a model from one traced call.

    Args:
        network: the model.
        inputs: its inputs by name.
        outputs: its traced outputs by name.
        probe: the probe that was active.
        states: final states and states after each step, in the order of the probe's visits.
    """
    shapes = dict(zip(probe.visits, states, strict=True))
    places, finals, hiddens, wired = [], [], [], set()
    for name, prefix, layer in _named_layers(network):
        visit = probe.visits.get(id(layer))
        if visit is None or visit.calls != 1:  # a layer called twice has no one state to name
            continue
        final, hidden = shapes[id(layer)]
        slots = tuple(prefix + slot for slot in _slots(layer, len(hidden)))
        places.append(Place(name, layer, slots))
        hiddens += [_hidden(f"hidden.{name}.{slot}", t) for slot, t in zip(slots, hidden, strict=True)]
        if not places[-1].has_state:
            continue
        own = [_state(f"state.{name}.{slot}", t) for slot, t in zip(slots, final, strict=True)]
        finals += own
        if not visit.default_initial:
            wired |= {state.name for state in own}
    variables = {f"param.{name}": v for name, v in _parameters(network)}
    sources = tuple(_input(name, spec) for name, spec in inputs.items())
    sequences = sum("time" in source.axes for source in sources)
    signature = Signature(
        inputs=sources,
        states=tuple(finals),
        hidden=tuple(hiddens),
        parameters=tuple(_parameter(name, v) for name, v in variables.items()),
        outputs=tuple(_output(name, t) for name, t in outputs.items()),
        wired=frozenset(wired),
        causal=is_causal(network) and not wired,
        one_length=keeps_length(network) and sequences == 1,
        obstacle=_obstacle(network, sequences, probe, places),
        mixing=mixing_layer(network),
        padding=ragged_obstacle(network) if sequences else "the model has no input with a time axis",
        dtype=next(iter(outputs.values())).dtype.name,
    )
    return signature, tuple(places), variables


def _obstacle(network: keras.Model, sequences: int, probe: Probe, places: Sequence[Place]) -> str | None:
    if sequences != 1:
        return f"the model has {sequences} inputs with a time axis, not one"
    known = {id(place.layer) for place in places}
    for layer in layers_across_time(network):
        visit = probe.visits.get(id(layer))
        if visit is not None and isinstance(layer, keras.layers.RNN) and id(layer) not in known:
            return f"layer {layer.name!r} is called {visit.calls} times, so it has no one state to hand on"
    wired = next((place.name for place in places if not _starts_by_itself(probe, place)), None)
    if wired is not None:
        return f"the initial state of layer {wired!r} comes from another layer"
    return acausal_layer(network) or masking_layer(network)


def _starts_by_itself(probe: Probe, place: Place) -> bool:
    return not place.has_state or probe.visits[id(place.layer)].default_initial


def _children(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    return list(layer.layers) if isinstance(layer, keras.Model) else _tf.direct_sublayers(layer)


def _walk(layer: keras.layers.Layer, path: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield every layer with its dotted path, but not what is inside recurrent layers and wrappers.

    Subclassed models may hold several layers of one name: the second is `name_2`, and so on.
    """
    taken: dict[str, int] = {}
    for child in _children(layer):
        count = taken[child.name] = taken.get(child.name, 0) + 1
        name = child.name if count == 1 else f"{child.name}_{count}"
        name = f"{path}.{name}" if path else name
        yield name, child
        if not isinstance(child, keras.layers.RNN | keras.layers.Wrapper | keras.layers.Bidirectional):
            yield from _walk(child, name)


def _named_layers(network: keras.Model) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, slot prefix, layer); what runs inside a TimeDistributed has one state per step and no name."""
    for name, layer in _walk(network):
        if isinstance(layer, keras.layers.Bidirectional):
            for prefix, inner in (("forward.", layer.forward_layer), ("backward.", layer.backward_layer)):
                if isinstance(inner, keras.layers.RNN):
                    yield name, prefix, inner
        elif isinstance(layer, keras.layers.RNN) or type(layer) is keras.layers.Embedding:
            yield name, "", layer


def _slots(layer: Any, count: int) -> tuple[str, ...]:
    if isinstance(layer, keras.layers.Embedding):
        return ("output",)
    cell = layer.cell
    if isinstance(cell, keras.layers.LSTMCell):
        return ("h", "c")
    if isinstance(cell, keras.layers.GRUCell | keras.layers.SimpleRNNCell):
        return ("h",)
    return tuple(str(i) for i in range(count))


def _parameters(network: keras.Model) -> Iterator[tuple[str, keras.Variable]]:
    seen: set[int] = set()
    names: set[str] = set()
    for path, layer in _walk(network):
        for relative, variable in _weights(layer):
            if id(variable) in seen or not str(keras.backend.standardize_dtype(variable.dtype)).startswith(
                ("float", "bfloat")
            ):
                continue
            seen.add(id(variable))
            name, count = f"{path}.{relative}", 1
            while name in names:
                count += 1
                name = f"{path}.{relative}_{count}"
            names.add(name)
            yield name, variable


def _weights(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.Variable]]:
    if isinstance(layer, keras.layers.Bidirectional):
        for prefix, inner in (("forward", layer.forward_layer), ("backward", layer.backward_layer)):
            for relative, variable in _weights(inner):
                yield f"{prefix}.{relative}", variable
    elif isinstance(layer, keras.layers.RNN):
        cell = layer.cell
        for owner in [cell] if not isinstance(cell, keras.layers.StackedRNNCells) else cell.cells:
            prefix = "" if owner is cell else f"{owner.name}."
            for variable in getattr(owner, "variables", ()):
                yield prefix + variable.name, variable
    elif isinstance(layer, keras.layers.Wrapper):
        for variable in layer.variables:
            yield variable.name, variable
    else:
        inner = {id(v) for child in _children(layer) for v in child.variables}
        for variable in layer.variables:
            if id(variable) not in inner:
                yield variable.name, variable


def _shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(tensor.shape)


def _input(name: str, spec: tf.TensorSpec) -> Array:
    shape = (None, *_shape(spec)[1:])
    sequence = len(shape) >= 3 or (len(shape) == 2 and (shape[1] is None or not spec.dtype.is_floating))
    return Array(name, shape, spec.dtype.name, _axes(len(shape), sequence), spec.dtype.is_floating)


def _output(name: str, tensor: tf.Tensor) -> Array:
    shape = (None, *_shape(tensor)[1:])
    return Array(name, shape, tensor.dtype.name, _axes(len(shape), len(shape) >= 3), tensor.dtype.is_floating)


def _axes(rank: int, sequence: bool) -> tuple[str, ...]:
    inner = rank - 1 - sequence
    features = (*_SPATIAL[: inner - 1], "feature") if 0 < inner <= 4 else tuple(f"axis_{i}" for i in range(inner))
    return ("batch", *(("time",) if sequence else ()), *features)


def _units(rank: int) -> tuple[str, ...]:
    return ("unit",) if rank == 1 else (*_SPATIAL[: rank - 1], "unit")


def _state(name: str, tensor: tf.Tensor) -> Array:
    shape = (None, *_shape(tensor)[1:])
    return Array(name, shape, tensor.dtype.name, ("batch", *_units(len(shape) - 1)), True)


def _hidden(name: str, tensor: tf.Tensor) -> Array:
    shape = (None, *_shape(tensor)[1:])
    return Array(name, shape, tensor.dtype.name, ("batch", "time", *_units(len(shape) - 2)), True)


def _parameter(name: str, variable: keras.Variable) -> Array:
    shape = tuple(variable.shape)
    kinds = {1: ("out",), 2: ("in", "out")}.get(len(shape), tuple(f"axis_{i}" for i in range(len(shape))))
    return Array(name, shape, str(keras.backend.standardize_dtype(variable.dtype)), kinds, True)
