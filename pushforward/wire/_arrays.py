"""Arrays as raw bytes: what all formats but nested lists have in common."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pushforward.errors import InvalidArray

Array = npt.NDArray[Any]

DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
    )
}
"""The dtypes that can be sent, by the name NumPy gives them, as they lie in a body: little-endian."""

_NAMES = {dtype: name for name, own in DTYPES.items() for dtype in (own, own.newbyteorder("="), own.newbyteorder(">"))}

_MAX_AXES = 64  # NumPy's own limit


def portable(array: npt.ArrayLike, path: str) -> Array:
    """The array as it lies in a body: row-major, little-endian.

    Raises:
        InvalidArray: if its dtype is not one of `DTYPES`, or it is not an array at all.
    """
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise InvalidArray(f"not an array: {error}", path=path) from None
    name = _NAMES.get(array.dtype)  # `dtype.name` would put it together anew
    if name is None:
        known = ", ".join(DTYPES)
        raise InvalidArray(
            f"dtype {array.dtype} can't be sent; convert it to one of {known}",
            path=path,
            expected=list(DTYPES),
            received=str(array.dtype),
        )
    # Not np.ascontiguousarray: that makes a 0-d array 1-d.
    return np.asarray(array, DTYPES[name], order="C")


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype that can be sent."""
    return _NAMES[dtype]


def check_extent(size: int, dtype: npt.DTypeLike, shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape that a sender wrote, if an array of it takes exactly `size` bytes.

    Raises:
        ValueError: if the shape is not one, or asks for another number of bytes.
    """
    dtype = np.dtype(dtype)
    # Bounded before anything is multiplied: the sizes are whatever the sender wrote.
    if len(shape) > _MAX_AXES or not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"a shape is a list of at most {_MAX_AXES} non-negative integers")
    if (needed := math.prod(shape) * dtype.itemsize) != size:
        raise ValueError(f"shape {list(shape)} of {dtype.name} takes {needed} bytes, but there are {size}")
    if not size:
        try:
            np.empty(0, dtype).reshape(shape)
        except ValueError as error:  # other axes beyond what NumPy can count
            raise ValueError(f"shape {list(shape)}: {error}") from None
    return tuple(shape)


def from_buffer(data: bytes | memoryview, dtype: npt.DTypeLike, shape: Sequence[Any]) -> Array:
    """The array that exactly fills `data`, as a view of it where alignment and byte order allow.

    Raises:
        ValueError: if the shape is not one, or asks for another number of bytes than there are.
    """
    dtype = np.dtype(dtype)
    shape = check_extent(len(data), dtype, shape)
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if array.flags.aligned and dtype.isnative else array.astype(dtype.newbyteorder("="))
