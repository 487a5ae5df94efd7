"""safetensors: a JSON header, then the arrays' bytes; decoded without a copy, encoded with a length known in advance.

The layout is https://huggingface.co/docs/safetensors; read and written here directly, because the library's reader for
bytes drops the metadata, where the envelope is.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from pushforward.errors import MalformedBody
from pushforward.wire import MAX_BYTES, Message
from pushforward.wire._arrays import DTYPES, check_extent, from_buffer, portable
from pushforward.wire._envelope import check_depth, dump_envelope, load_envelope

_CODES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_CODE_OF = {name: code for code, name in _CODES.items()}
# Far more than thousands of arrays need; parsing a header is one step that can't be interrupted.
_MAX_HEADER = 4 * 2**20


def prefix(envelope: Mapping[str, Any], arrays: Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]) -> bytes:
    """All of a body but the arrays' bytes, which follow in the order given, each row-major and little-endian.

    With dtype and shape known before the numbers are, a body can be streamed while it is computed.
    """
    header: dict[str, Any] = {"__metadata__": {"envelope": dump_envelope(envelope).decode()}}
    start = 0
    for path, (dtype, shape) in arrays.items():
        dtype = np.dtype(dtype)
        stop = start + dtype.itemsize * int(np.prod(shape, dtype=object))
        header[path] = {"dtype": _CODE_OF[dtype.name], "shape": shape, "data_offsets": (start, stop)}
        start = stop
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)  # so that the first array is aligned
    return len(text).to_bytes(8, "little") + text


class _Safetensors:
    name = "safetensors"
    media_type = "application/x-safetensors"

    def encode(self, message: Message) -> bytes:
        arrays = {path: portable(array, path) for path, array in message.arrays.items()}
        # Wide dtypes first, so that every array is aligned and can be used in place.
        arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
        head = prefix(message.envelope, {path: (array.dtype, array.shape) for path, array in arrays.items()})
        return b"".join([head, *(array.data if array.size else b"" for array in arrays.values())])

    def decode(self, body: bytes, *, max_bytes: int = MAX_BYTES) -> Message:
        size = head_size(body[:8])
        if size > len(body) - 8:
            raise MalformedBody(
                f"safetensors: truncated, a header of {size} bytes is announced but {len(body) - 8} follow"
            )
        head, data = read_head(body[8 : 8 + size]), memoryview(body)[8 + size :]
        for path, entry in head.entries.items():
            if entry.stop > len(data):
                raise MalformedBody(
                    f"safetensors: truncated, the array ends at byte {entry.stop} of {len(data)}", path=path
                )
        if head.size != len(data):
            raise MalformedBody(f"safetensors: {len(data) - head.size} bytes follow the last array")
        arrays = {
            path: from_buffer(data[entry.start : entry.stop], entry.dtype, entry.shape)
            for path, entry in head.entries.items()
        }
        return Message(head.envelope, arrays)


class Entry(NamedTuple):
    """An array as the header announces it; it lies from byte `start` to byte `stop` of what follows the header."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


class Head(NamedTuple):
    """What is known of a body before its arrays are there: the envelope, the arrays by path, and their bytes in all."""

    envelope: dict[str, Any]
    entries: dict[str, Entry]
    size: int


def head_size(first: bytes) -> int:
    """How many bytes of header follow the `first` 8 bytes of a body.

    Raises:
        MalformedBody: if there are fewer than 8, or they announce more than a header ever takes.
    """
    if len(first) < 8:
        raise MalformedBody(f"safetensors: {len(first)} bytes are too few, a body starts with 8 bytes of header length")
    size = int.from_bytes(first, "little")
    if size > _MAX_HEADER:
        raise MalformedBody(f"safetensors: a header of {size} bytes is announced, at most {_MAX_HEADER} are allowed")
    return size


def read_head(text: bytes) -> Head:
    """Parse a header; the arrays it announces fill the rest of the body without overlaps or gaps.

    Raises:
        MalformedBody: if it can't be parsed, or contradicts itself.
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MalformedBody(f"safetensors: the header is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise MalformedBody("safetensors: the header is not a JSON object")
    header = cast("dict[str, Any]", parsed)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise MalformedBody("safetensors: __metadata__ is not an object")
    entries = {path: _entry(path, entry) for path, entry in header.items()}
    envelope = load_envelope(cast("dict[str, Any]", metadata).get("envelope", "{}"))
    return Head(check_depth(envelope), entries, _check_cover(entries.values()))


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise MalformedBody(f"safetensors: the header names {key[:100]!r} twice")
        found[key] = value
    return found


def _entry(path: str, entry: Any) -> Entry:
    try:
        code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise MalformedBody("safetensors: an entry has dtype, shape and two data_offsets", path=path) from None
    if not (type(start) is type(stop) is int and 0 <= start <= stop < 2**63 and isinstance(shape, list)):
        raise MalformedBody("safetensors: shape and data_offsets are lists of non-negative integers", path=path)
    if not isinstance(code, str) or code not in _CODES:
        raise MalformedBody(
            f"safetensors: unknown dtype {str(code)[:20]!r}; send one of {', '.join(_CODES)}",
            path=path,
            expected=list(_CODES),
        )
    dtype = DTYPES[_CODES[code]]
    try:
        return Entry(dtype, check_extent(stop - start, dtype, cast("list[Any]", shape)), start, stop)
    except ValueError as error:
        raise MalformedBody(f"safetensors: {error}", path=path) from None


def _check_cover(entries: Iterable[Entry]) -> int:
    """How many bytes all arrays take, which lie one after the other."""
    at = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != at:
            wrong = "overlap" if entry.start < at else "leave a gap"
            raise MalformedBody(f"safetensors: the arrays {wrong} at byte {min(entry.start, at)}")
        at = entry.stop
    return at


CODEC = _Safetensors()
