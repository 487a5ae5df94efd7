"""How operators read calls: every array is checked against the signature, every name and option is known or refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.calls import Call
from app.operators._lengths import Feeds, read_lengths, with_lengths
from models.model import Model
from models.signature import STRATEGIES, Array, fit
from pushforward.errors import InvalidArray, InvalidRequest, NotDifferentiable, UnknownName

STRATEGY = {
    "enum": ["auto", *STRATEGIES],
    "default": "auto",
    "description": "scan: one loop over time; unrolled: every step written out (slow to build); reverse: derivatives "
    "by reverse mode alone. All give the same numbers; auto picks, and `info.strategy` says which.",
}


def outputs_option(what: str) -> dict[str, Any]:
    """Describe the option `outputs` as a JSON schema."""
    return {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "description": f"Output-side names {what}: `y`, `state.<layer>.<slot>`, `hidden.<layer>.<slot>`. The default "
        "is the model's own outputs.",
    }


def read_inputs(model: Model, call: Call, casts: list[str]) -> Feeds:
    """Check all given inputs and initial states; every model input must be there, all with one batch size.

    With rows of different lengths there are zeros in the padding, and the lengths among the feeds.
    """
    given = call.arrays.get("inputs", {})
    feeds: Feeds = {}
    for name, array in given.items():
        path = f"inputs.{name}"
        feeds[path] = fit(array, model.signature.given(name, path), path, casts)
    for spec in model.signature.inputs:
        if spec.name not in given:
            raise InvalidArray(
                f"expected an array of shape {spec.layout}, got none; every input of the model must be given",
                path=f"inputs.{spec.name}",
                expected=list(spec.shape),
            )
    first, batch = next((path, array.shape[0]) for path, array in feeds.items())
    for path, array in feeds.items():
        if array.shape[0] != batch:
            raise InvalidArray(
                f"expected batch size {batch}, as {first} has, got {array.shape[0]}; all inputs of a request share one",
                path=path,
                expected=batch,
                received=array.shape[0],
            )
    lengths = None if call.lengths is None else read_lengths(model, call.lengths, feeds)
    return feeds if lengths is None else with_lengths(model, feeds, lengths)


def read_directions(
    specs: Mapping[str, Array], arrays: Mapping[str, np.ndarray], field: str, casts: list[str]
) -> tuple[Feeds, int | None]:
    """Check tangents or cotangents, each of its array's exact shape or with K stacked directions in front.

    Args:
        specs: for each name the array it is a direction of, with all sizes known.
        arrays: what the request holds.
        field: `tangents` or `cotangents`.
        casts: notes on conversions are appended here.

    Returns:
        The arrays by path, and K or None. If one is stacked, single ones are repeated K times.
    """
    found: Feeds = {}
    counts: dict[str, int] = {}
    for name, array in arrays.items():
        path, spec = f"{field}.{name}", specs[name]
        if array.ndim == len(spec.shape) + 1:
            counts[path] = array.shape[0]
            stacked = replace(spec, shape=(None, *spec.shape), axes=("directions", *spec.axes))
            found[path] = fit(array, stacked, path, casts)
        elif array.ndim == len(spec.shape):
            found[path] = fit(array, spec, path, casts)
        else:
            raise InvalidArray(
                f"expected the shape of {name}, {spec.shape}, or the same with one more axis in front for stacked "
                f"directions, got {array.shape}",
                path=path,
                expected=list(spec.shape),
                received=list(array.shape),
            )
    if not counts:
        return found, None
    (first, count), *rest = counts.items()
    for path, other in rest:
        if other != count:
            raise InvalidArray(
                f"expected {count} stacked directions, as {first} has, got {other}; all stacked arrays share K",
                path=path,
                expected=count,
                received=other,
            )
    repeated = {
        path: array if path in counts else np.broadcast_to(array, (count, *array.shape))
        for path, array in found.items()
    }
    return repeated, count


def sized(spec: Array, feeds: Feeds, model: Model) -> Array:
    """Fill the free axes of an array with this request's sizes, as far as they are known before it runs."""
    own = feeds.get(f"inputs.{spec.name}")
    if own is not None:
        return replace(spec, shape=own.shape)
    sizes = {"batch": feeds[f"inputs.{model.signature.inputs[0].name}"].shape[0]}
    if model.signature.one_length:
        (sequence,) = model.signature.sequences
        sizes["time"] = feeds[f"inputs.{sequence.name}"].shape[sequence.axes.index("time")]
    shape = tuple(sizes.get(axis) if n is None else n for n, axis in zip(spec.shape, spec.axes, strict=True))
    return replace(spec, shape=shape)


def read_names(call: Call, option: str, default: Sequence[str]) -> list[str]:
    """Read a list of array names."""
    names = call.options.get(option)
    if names is None:
        return list(default)
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise InvalidRequest(
            f"expected a list of at least one name, such as [{default[0]!r}]",
            path=option,
            received="an empty list" if names == [] else type(names).__name__,
        )
    double = next((n for n in names if names.count(n) > 1), None)
    if double is not None:
        raise InvalidRequest(f"{double[:80]!r} is named twice; name each array once", path=option)
    return names


def read_targets(model: Model, call: Call, option: str = "outputs") -> list[str]:
    """Read the output-side names that a call selects."""
    names = read_names(call, option, [a.name for a in model.signature.outputs])
    for i, name in enumerate(names):
        model.signature.target(name, f"{option}[{i}]")
    return names


def read_strategy(call: Call) -> str:
    """Read the strategy; `auto` becomes the loop, which no strategy beats once it is traced."""
    strategy = read_choice(call, "strategy", ["auto", *STRATEGIES])
    return "scan" if strategy == "auto" else strategy


def read_choice(call: Call, option: str, choices: Sequence[str]) -> str:
    """Read an option that is one of several words, the first if it is not there."""
    value = call.options.get(option, choices[0])
    if value not in choices:
        raise UnknownName(
            f"there is no such {option}; there are: {', '.join(choices)}",
            path=option,
            expected=list(choices),
            received=value[:80] if isinstance(value, str) else type(value).__name__,
        )
    return value


def read_flag(call: Call, option: str) -> bool:
    """Read an option that is true or false."""
    value = call.options.get(option, False)
    if not isinstance(value, bool):
        raise InvalidRequest("expected true or false", path=option, expected="a boolean", received=type(value).__name__)
    return value


def require(arrays: Mapping[str, np.ndarray], field: str, example: str) -> None:
    """Refuse a call without any tangent or cotangent."""
    if not arrays:
        raise InvalidRequest(f"expected at least one array, such as {field}.{example}, got none", path=field)


def example_input(model: Model) -> dict[str, Any]:
    """Make small inputs for a model, as JSON."""
    made = {}
    for spec in model.signature.inputs:
        sizes = {"batch": 1, "time": 3}
        shape = [sizes.get(axis, 1) if n is None else n for n, axis in zip(spec.shape, spec.axes, strict=True)]
        count = int(np.prod(shape))
        values = np.arange(1, count + 1) if not spec.differentiable else np.round(np.linspace(0.1, 0.9, count), 3)
        made[spec.name] = values.reshape(shape).tolist()
    return made


def example_source(model: Model) -> Array:
    """Choose what an example differentiates with respect to: an input, or what there is if inputs hold integers.

    Raises:
        NotDifferentiable: if there is nothing.
    """
    signature = model.signature
    states = [s for s in signature.states if s.name not in signature.wired]
    for spec in (*signature.inputs, *states, *signature.parameters):
        if spec.differentiable:
            return spec
    raise NotDifferentiable(f"model {model.name!r} has nothing on its input side that holds real numbers")


def example_direction(model: Model) -> dict[str, Any]:
    """Make a tangent: one at the first element, zero elsewhere."""
    spec = example_source(model)
    sizes = {"batch": 1, "time": 3}
    array = np.zeros([sizes.get(axis, 1) if n is None else n for n, axis in zip(spec.shape, spec.axes, strict=True)])
    array.flat[0] = 1.0
    return {spec.name: array.tolist()}
