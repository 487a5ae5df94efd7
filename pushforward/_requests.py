"""From the arguments of a client's method to the request's message."""

from collections.abc import Mapping
from typing import cast

import numpy.typing as npt

from pushforward.wire import Message
from pushforward.wire._arrays import Array, portable

Arrays = npt.ArrayLike | Mapping[str, npt.ArrayLike]
"""Named arrays, or one array that goes by its field's usual name: `x` for inputs and tangents, `y` for cotangents."""

_USUAL_NAME = {"inputs": "x", "tangents": "x", "cotangents": "y"}


def request(arrays: Mapping[str, Arrays], fields: Mapping[str, object]) -> Message:
    """A request of these arrays and other fields, without those that are None; `lengths` of rows become an array.

    Raises:
        InvalidArray: if an array is none, or has a dtype that can't be sent.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    lengths = given.pop("lengths", None)
    whole = arrays if lengths is None else {**arrays, "lengths": cast("npt.ArrayLike", lengths)}
    return Message(given, _paths(whole))


def _paths(arrays: Mapping[str, Arrays]) -> dict[str, Array]:
    """Flatten fields of named arrays to `<field>.<name>`."""
    paths: dict[str, npt.ArrayLike] = {}
    for field, value in arrays.items():
        if isinstance(value, Mapping):
            paths.update({f"{field}.{name}": array for name, array in value.items()})
        else:
            name = _USUAL_NAME.get(field)
            paths[f"{field}.{name}" if name else field] = value
    return {path: portable(array, path) for path, array in paths.items()}
