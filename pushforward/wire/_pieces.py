"""A large JSON body, parsed in small steps.

`orjson.loads` holds the interpreter's lock from the first byte to the last: half a second for 16 MB of one-number rows,
in which no other thread runs, and so no health check is answered. Here the text of every large array is cut out first,
parsed some kilobytes at a time, and handed to `orjson` as a placeholder. Whatever is not plainly an array of numbers is
left to `orjson` in one go, so there is one grammar, and one place that words the errors.
"""

import secrets
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import orjson

from pushforward.errors import MalformedBody
from pushforward.wire._arrays import Array
from pushforward.wire._envelope import load_envelope
from pushforward.wire._nested import flat

_LARGE = 2**16  # bytes of text from which an array is worth cutting out
_PIECE = 2**17  # bytes of text parsed in one step, about a millisecond
_MAX_COLONS = 4096  # a request has far fewer, up to its last array

_SPACE = b" \t\n\r"
_KIND = bytes(c if c in b"[]," else ord("0") for c in range(256))  # every character of a value looks alike


def load_body(body: bytes, named: Collection[str], bare: Collection[str]) -> dict[str, Any]:
    """Parse a JSON object, as `load_envelope` does.

    Large arrays that are one of the fields `bare`, or in an object that is one of `named`, come as arrays already.

    Raises:
        MalformedBody: if it is not a JSON object.
        TooLarge: if what is not a large array is many times as large once parsed.
    """
    if len(body) < _LARGE:
        return load_envelope(body)
    found: dict[str, Array] = {}
    kept: list[bytes] = []
    done = 0
    for start, stop in _stretches(body):
        # Arrays of numbers contain no colon and no brace: one ends at the last bracket before either.
        brace = body.find(b"}", start, stop)
        end = body.rfind(b"]", start, stop if brace < 0 else brace) + 1
        array = parse_array(body, start, end)
        if array is not None:
            token = secrets.token_hex()  # can't be guessed, so it can't be in the body
            found[token] = array
            kept += [body[done:start], b'"%b"' % token.encode()]
            done = end
    if not found:
        return load_envelope(body)
    try:
        tree = load_envelope(b"".join([*kept, body[done:]]))
    except MalformedBody:
        return load_envelope(body)  # for the position in the body as it was sent
    return tree if _put_back(tree, named, bare, found) else load_envelope(body)


def _stretches(body: bytes) -> Iterator[tuple[int, int]]:
    """The long stretches of text from a colon that a bracket follows to the next colon."""
    start = body.find(b":") + 1
    for _ in range(_MAX_COLONS):
        if start == 0:
            return
        colon = body.find(b":", start)
        stop = len(body) if colon < 0 else colon
        if stop - start >= _LARGE and body[start : start + 64].lstrip(_SPACE).startswith(b"["):
            yield start, stop
        start = colon + 1


def _put_back(tree: dict[str, Any], named: Collection[str], bare: Collection[str], found: dict[str, Array]) -> bool:
    """Replace the placeholders by their arrays; False if one is elsewhere, as in a string or under a repeated key."""
    objects = [tree[field] for field in tree.keys() & named if isinstance(tree[field], dict)]
    places = [(tree, tree.keys() & bare), *((fields, list(fields)) for fields in objects)]
    for owner, keys in places:
        for key in keys:
            if isinstance(owner[key], str) and owner[key] in found:
                owner[key] = found.pop(owner[key])
    return not found


def parse_array(body: bytes, start: int, end: int) -> Array | None:
    """The array of numbers that this part of a JSON text is; None if it is anything else, or empty, or not regular."""
    pieces: list[Array] = []
    brackets: list[bytes] = []
    while start <= end:
        stop = body.find(b",", start + _PIECE, end)
        stop = end if stop < 0 else stop
        piece = body[start:stop]
        start = stop + 1
        kinds = piece.translate(_KIND, _SPACE)
        # Brackets without a comma to their outside: misplaced, but the comparison with the shape would not show it.
        if b"0[" in kinds or b"]0" in kinds:
            return None
        brackets.append(kinds.translate(None, b"0"))
        try:
            array = flat(orjson.loads(b"[%b]" % piece.translate(None, b"[]")))
        except orjson.JSONDecodeError:
            return None
        if array is None:
            return None
        pieces.append(array)
    shape = _shape(b",".join(brackets))
    size = sum(array.size for array in pieces)
    booleans = {array.dtype == np.bool_ for array in pieces}
    if shape is None or size != np.prod(shape, dtype=object) or len(booleans) > 1:
        return None
    return np.concatenate(pieces).reshape(shape)


def _shape(brackets: bytes) -> tuple[int, ...] | None:
    """The shape whose nested lists have exactly these brackets and commas; a 0 counts as a 1."""
    axes = len(brackets) - len(brackets.lstrip(b"["))
    if not 1 <= axes <= 64:
        return None
    shape: list[int] = []
    block = b""
    for axis in reversed(range(axes)):  # inner axis first: a block is a whole list along it
        end = brackets.find(block + b"]", axis + 1)
        if end < 0:
            return None
        size = (end - axis - 1) // (len(block) + 1) + 1
        block = b"[%b]" % ((block + b",") * size)[:-1]
        shape.append(size)
    return tuple(reversed(shape)) if block == brackets else None
