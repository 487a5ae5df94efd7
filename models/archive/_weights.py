"""The file of weights: plain arrays in plain groups. HDF5 can refer to other files, and promise sizes without end."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from h5py import h5d, h5o  # pyright: ignore[reportMissingTypeStubs, reportAttributeAccessIssue]

from models.archive._limits import Limits
from pushforward.errors import MalformedBody, UnsafeModel

# Deflate, shuffle and a checksum; all others are code that HDF5 would look for.
_FILTERS = (1, 2, 3)
_KINDS = "fiub"
_BFLOAT16 = np.dtype("V2")  # HDF5 has no name for it, so Keras stores it as two bytes.
_MOST_OBJECTS = 100_000
_MOST_DEPTH = 100
_MOST_RANK = 8
_CHUNK_BYTES = 2**26
_ATTRIBUTES, _ATTRIBUTE_BYTES = 16, 4096


def check(path: Path, limits: Limits) -> int:
    """Look at everything in a file of weights without reading any array; return how many numbers they have.

    Raises:
        MalformedBody: if it is no HDF5 file.
        UnsafeModel: if it holds anything but arrays of numbers in groups, or too many.
    """
    try:
        with h5py.File(path, "r") as file:
            total = 0
            for name, item in _walk(file):
                _check_attributes(name, item)
                if isinstance(item, h5py.Dataset):
                    total += _size(name, item)
                if total > limits.parameters:
                    raise UnsafeModel(
                        f"the weights have more than {limits.parameters} numbers, which is the limit; use a smaller "
                        "model"
                    )
            return total
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise MalformedBody(
            f"the weights in this archive can't be read ({str(error)[:80]}); save the model again"
        ) from error


def _walk(file: h5py.File) -> Iterator[tuple[str, Any]]:
    stack: list[tuple[str, Any]] = [("", file)]
    seen: set[int] = set()
    while stack:
        path, item = stack.pop()
        address = h5o.get_info(item.id).addr
        if address in seen or len(seen) >= _MOST_OBJECTS or path.count("/") > _MOST_DEPTH:
            raise _refusal(path, "it is linked to twice, or is one of too many")
        seen.add(address)
        yield path, item
        if not isinstance(item, h5py.Group):
            continue
        for name in item:
            inner = f"{path}/{name}"
            # Asked for without following: another link leads to another place, perhaps in another file.
            if not isinstance(item.get(name, getlink=True), h5py.HardLink):
                raise _refusal(inner, "it is a link to another place or file")
            if item.get(name, getclass=True) not in (h5py.Group, h5py.Dataset):
                raise _refusal(inner, "it is neither an array nor a group")
            stack.append((inner, item[name]))


def _size(name: str, array: h5py.Dataset) -> int:
    properties = array.id.get_create_plist()
    if array.is_virtual or properties.get_layout() == h5d.VIRTUAL or properties.get_external_count():
        raise _refusal(name, "its numbers are in other files")
    if array.dtype.kind not in _KINDS and array.dtype != _BFLOAT16:
        raise _refusal(name, f"it holds {array.dtype}, not numbers")
    if array.shape is None or len(array.shape) > _MOST_RANK:
        raise _refusal(name, "it has no shape, or too many axes")
    if any(properties.get_filter(i)[0] not in _FILTERS for i in range(properties.get_nfilters())):
        raise _refusal(name, "it is compressed in an unusual way")
    if array.chunks is not None and math.prod(array.chunks) * array.dtype.itemsize > _CHUNK_BYTES:
        raise _refusal(name, "its chunks are too large")
    return math.prod(array.shape)


def _check_attributes(name: str, item: Any) -> None:
    attributes = item.attrs
    if len(attributes) > _ATTRIBUTES:
        raise _refusal(name, "it has too many attributes")
    for key in attributes:
        if attributes.get_id(key).get_storage_size() > _ATTRIBUTE_BYTES:
            raise _refusal(name, "it has an attribute that is too long")


def _refusal(name: str, why: str) -> UnsafeModel:
    return UnsafeModel(f"the weights in this archive can't be read safely: {name[:200]!r}: {why}; save the model again")
