"""Nested lists of numbers to arrays and back, bit for bit."""

import itertools
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import orjson

from pushforward.errors import InvalidArray
from pushforward.wire._arrays import Array

_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_PIECE = 2**14  # numbers written in one step, about a millisecond: other threads run in between


def from_lists(value: Any, path: str) -> Array:
    """The array that nested lists describe: float64, or int64 or bool if all are integers or booleans.

    Raises:
        InvalidArray: if the lists are ragged or hold something other than numbers.
    """
    shape: list[int] = []
    level: list[Any] = [value]
    # One level of nesting at a time, over all its lists at once: exact about what is wrong, and several times faster
    # than np.asarray.
    while level and list in (kinds := set(map(type, level))):
        if len(kinds) > 1 or len(set(map(len, level))) > 1:
            raise _ragged(level, shape, path)
        shape.append(len(level[0]))
        if len(shape) > 64:
            raise InvalidArray("lists are nested deeper than the 64 axes an array can have", path=path)
        level = list(itertools.chain.from_iterable(level))
    numbers = flat(level)
    if numbers is None:
        raise _not_numbers(level, shape, path)
    return numbers.reshape(shape)


def flat(values: list[Any]) -> Array | None:
    """The 1-d array of these JSON scalars, or None if they are not all numbers or all booleans."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            return np.array(values, np.float64)
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if str in kinds:
        try:
            values = [_NONFINITE[value] if type(value) is str else value for value in values]
        except KeyError:
            return None
        kinds.remove(str)
    return np.array(values, np.float64) if kinds <= {int, float} else None


def to_json(array: Array) -> bytes:
    """The array, which must be row-major and native, as JSON: the shortest numbers that parse back to the same bits."""
    if array.ndim == 0:
        return _block(array.reshape(1))[1:-1]
    if array.size <= _PIECE:
        return _block(array)
    step = _PIECE // array[0].size
    rows = map(to_json, array) if step == 0 else (_block(array[i : i + step])[1:-1] for i in range(0, len(array), step))
    return b"[" + b",".join(rows) + b"]"


def _block(array: Array) -> bytes:
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype == np.float32:
        # Of all float32 numbers this one alone (0x15ae43fd) becomes its neighbour when its shortest form is read as
        # float64, which is what JSON readers do, and rounded then.
        text = text.replace(b"7.038531e-26", b"7.0385307e-26")
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return text
    # orjson writes every nonfinite number as null, in order.
    names = [
        b'"NaN"' if np.isnan(x) else b'"Infinity"' if x > 0 else b'"-Infinity"' for x in array[~np.isfinite(array)]
    ]
    return b"".join(itertools.chain.from_iterable(zip(text.split(b"null"), [*names, b""], strict=True)))


def _at(position: int, shape: list[int]) -> str:
    return "".join(f"[{index}]" for index in np.unravel_index(position, shape)) if shape else ""


def _ragged(level: list[Any], shape: list[int], path: str) -> InvalidArray:
    def kind(item: list[Any] | object) -> str:
        return f"a list of {len(cast('list[Any]', item))}" if isinstance(item, list) else "no list"

    expected = kind(level[0])
    position = next(k for k, item in enumerate(level) if kind(item) != expected)
    where, received = _at(position, shape), kind(level[position])
    return InvalidArray(
        f"ragged at {where}: expected {expected} as at {_at(0, shape)}, got {received}; pad to equal lengths",
        path=path,
        expected=expected,
        received=received,
    )


def _not_numbers(level: list[Any], shape: list[int], path: str) -> InvalidArray:
    position, received, change = next(_faults(level), (0, "nothing", ""))
    where = f" at {_at(position, shape)}" if shape else ""
    return InvalidArray(f"expected numbers, got {received}{where}{change}", path=path, received=received)


def _faults(level: list[Any]) -> Iterator[tuple[int, str, str]]:
    """Where something is no number, what it is, and what to do about it."""
    for position, item in enumerate(level):
        if isinstance(item, str) and item not in _NONFINITE:
            near = item.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")
            yield position, f"the string {item[:20]!r}", '; spell them "NaN", "Infinity", "-Infinity"' if near else ""
        elif item is None:
            yield position, "null", '; write zero as 0 and not-a-number as "NaN"'
        elif isinstance(item, dict):
            yield position, "an object", ""
    for position, item in enumerate(level):
        if isinstance(item, bool):
            yield position, "a boolean among numbers", "; write true as 1 and false as 0"
