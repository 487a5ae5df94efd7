"""safetensors: a JSON header, then the arrays' bytes; decoded without a copy, encoded with a length known in advance.

The layout is https://huggingface.co/docs/safetensors; read and written here directly, because the library's reader for
bytes drops the metadata, where the envelope is.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from pushforward.errors import MalformedBody
from pushforward.wire import MAX_BYTES, Message
from pushforward.wire._arrays import DTYPES, Array, from_buffer, portable
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
        header, data = _split(body)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise MalformedBody("safetensors: __metadata__ is not an object")
        arrays: dict[str, Array] = {}
        spans: list[tuple[int, int]] = []
        for path, entry in header.items():
            arrays[path], span = _tensor(path, entry, data)
            spans.append(span)
        _check_cover(spans, len(data))
        envelope = load_envelope(cast("dict[str, Any]", metadata).get("envelope", "{}"))
        return Message(check_depth(envelope), arrays)


def _split(body: bytes) -> tuple[dict[str, Any], memoryview]:
    if len(body) < 8:
        raise MalformedBody(f"safetensors: {len(body)} bytes are too few, a body starts with 8 bytes of header length")
    size = int.from_bytes(body[:8], "little")
    if size > _MAX_HEADER:
        raise MalformedBody(f"safetensors: a header of {size} bytes is announced, at most {_MAX_HEADER} are allowed")
    if size > len(body) - 8:
        raise MalformedBody(f"safetensors: truncated, a header of {size} bytes is announced but {len(body) - 8} follow")
    try:
        header = json.loads(body[8 : 8 + size], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MalformedBody(f"safetensors: the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise MalformedBody("safetensors: the header is not a JSON object")
    return cast("dict[str, Any]", header), memoryview(body)[8 + size :]


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise MalformedBody(f"safetensors: the header names {key[:100]!r} twice")
        found[key] = value
    return found


def _tensor(path: str, entry: Any, data: memoryview) -> tuple[Array, tuple[int, int]]:
    try:
        code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise MalformedBody("safetensors: an entry has dtype, shape and two data_offsets", path=path) from None
    if not (type(start) is type(stop) is int and 0 <= start <= stop and isinstance(shape, list)):
        raise MalformedBody("safetensors: shape and data_offsets are lists of non-negative integers", path=path)
    if stop > len(data):
        raise MalformedBody(f"safetensors: truncated, the array ends at byte {stop} of {len(data)}", path=path)
    if not isinstance(code, str) or code not in _CODES:
        raise MalformedBody(
            f"safetensors: unknown dtype {str(code)[:20]!r}; send one of {', '.join(_CODES)}",
            path=path,
            expected=list(_CODES),
        )
    try:
        array = from_buffer(data[start:stop], DTYPES[_CODES[code]], cast("list[Any]", shape))
    except ValueError as error:
        raise MalformedBody(f"safetensors: {error}", path=path) from None
    return array, (start, stop)


def _check_cover(spans: list[tuple[int, int]], size: int) -> None:
    at = 0
    for start, stop in sorted(spans):
        if start != at:
            raise MalformedBody(
                f"safetensors: the arrays {'overlap' if start < at else 'leave a gap'} at byte {min(start, at)}"
            )
        at = stop
    if at != size:
        raise MalformedBody(f"safetensors: {size - at} bytes follow the last array")


CODEC = _Safetensors()
