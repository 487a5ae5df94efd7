"""JSON: an array is nested lists, or an object with `dtype`, `shape` and `base64`.

With `"encoding": "base64"` in its envelope a message is written with base64 arrays, which the other side does as well
if it answers with the same `encoding`.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import orjson
import pybase64

from pushforward.errors import InvalidArray, InvalidRequest, TooLarge
from pushforward.wire import MAX_BYTES, Message
from pushforward.wire._arrays import DTYPES, Array, from_buffer, name_of, portable
from pushforward.wire._envelope import check_depth, dump_envelope
from pushforward.wire._nested import from_lists, to_json
from pushforward.wire._pieces import load_body

_NAMED = frozenset({"inputs", "tangents", "cotangents"})  # always an object of arrays
_EITHER = frozenset({"outputs"})  # an object of arrays in a response, a list of names in a request
_BARE = frozenset({"jacobian", "A", "B", "C", "D", "lengths"})  # an array

_NUMBER = 8  # bytes of an int64 or float64
_PIECE = 2**20  # base64 characters decoded in one step, a multiple of 4


class _Json:
    name = "json"
    media_type = "application/json"

    def decode(self, body: bytes, *, max_bytes: int = MAX_BYTES) -> Message:
        # Bounds the arrays, since of n numbers all but one have a comma, and every number takes 8 bytes.
        if _NUMBER * len(body) > max_bytes and (size := _NUMBER * body.count(b",")) > max_bytes:
            raise TooLarge(
                f"more than {size // _NUMBER} numbers take more than {size} bytes once parsed, the limit is "
                f"{max_bytes}; send fewer rows at a time",
                expected=f"at most {max_bytes} bytes once parsed",
                received=f"more than {size} bytes",
            )
        envelope: dict[str, Any] = {}
        arrays: dict[str, Array] = {}
        for field, value in load_body(body, _NAMED | _EITHER, _BARE).items():
            if field in _BARE:
                arrays[field] = _array(value, field)
            elif field in _NAMED or (field in _EITHER and isinstance(value, dict)):
                for name, item in _object(value, field).items():
                    arrays[f"{field}.{name}"] = _array(item, f"{field}.{name}")
            else:
                envelope[field] = value
        return Message(check_depth(envelope), arrays)

    def encode(self, message: Message) -> bytes:
        write = _base64 if message.envelope.get("encoding") == "base64" else _lists
        fields: dict[str, Any] = {}
        for field, value in message.by_field().items():
            if isinstance(value, dict):
                fields[field] = {name: write(array, f"{field}.{name}") for name, array in value.items()}
            else:
                fields[field] = write(value, field)
        return dump_envelope({**message.envelope, **fields})


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    received = type(cast("object", value)).__name__
    raise InvalidRequest(
        f'expected an object of named arrays, such as {{"x": ...}}, got {received}',
        path=field,
        expected="object",
        received=received,
    )


def _array(value: Any, path: str) -> Array:
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    if not isinstance(value, dict):
        return from_lists(value, path)
    binary = cast("dict[str, Any]", value)
    if binary.keys() != {"dtype", "shape", "base64"} or not isinstance(binary["shape"], list):
        raise InvalidArray('an array is nested lists or {"dtype": ..., "shape": [...], "base64": ...}', path=path)
    name = binary["dtype"]
    if not isinstance(name, str) or name not in DTYPES:
        raise InvalidArray(
            f"unknown dtype {str(name)[:20]!r}; use one of {', '.join(DTYPES)}", path=path, expected=list(DTYPES)
        )
    text = binary["base64"]
    if not isinstance(text, str):
        received = type(text).__name__
        raise InvalidArray(
            f"expected a base64 string, got {received}", path=path, expected="base64 string", received=received
        )
    try:
        return from_buffer(_from_base64(text), DTYPES[name], cast("list[Any]", binary["shape"]))
    except ValueError as error:  # binascii.Error is a ValueError
        raise InvalidArray(f"base64: {error}", path=path) from None


def _from_base64(text: str) -> bytes:
    if "=" in text[:-2]:
        raise ValueError("padding before the end")
    return b"".join(pybase64.b64decode(text[i : i + _PIECE], validate=True) for i in range(0, len(text), _PIECE))


def _lists(array: Array, path: str) -> orjson.Fragment:
    array = portable(array, path)
    return orjson.Fragment(to_json(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))))


def _base64(array: Array, path: str) -> dict[str, Any]:
    array = portable(array, path)
    data = pybase64.b64encode_as_string(array.data if array.size else b"")
    return {"dtype": name_of(array.dtype), "shape": array.shape, "base64": data}


CODEC = _Json()
