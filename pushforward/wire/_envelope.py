"""The envelope as JSON text, the same in every format."""

import itertools
from collections.abc import Collection, Mapping
from typing import Any, cast

import orjson

from pushforward.errors import InvalidRequest, MalformedBody, TooLarge

_MAX_DEPTH = 32
_MAX_PARSED = 2**26  # bytes of Python objects: what a megabyte of [],[],[] or {},{},{} becomes is twenty to thirty


def load_json(text: bytes | str) -> Any:
    """Parse strict JSON; nesting is bounded by the parser (1024 levels).

    Raises:
        MalformedBody: if it is not JSON, with the place where parsing stopped and a hint where the reason is a common
            one.
        TooLarge: if it is many times as large once parsed; found out before parsing.
    """
    if not text:
        raise MalformedBody("the body is empty; send a JSON object")
    _check_parsed(text.encode() if isinstance(text, str) else text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        hint = ""
        if "depth" in error.msg or "ecursion" in error.msg:
            hint = "; arrays have at most 64 axes"
        elif str(error.doc)[error.pos : error.pos + 9].lstrip("-").startswith(("NaN", "Infinity", "nan", "inf")):
            hint = '; write NaN and infinity as the strings "NaN", "Infinity", "-Infinity"'
        where = f"line {error.lineno} column {error.colno}"
        raise MalformedBody(f"not valid JSON at {where}: {error.msg}{hint}") from None


def _check_parsed(text: bytes) -> None:
    # CPython's sizes: each value has a reference and most are at least a float; lists and objects have their own.
    if 240 * len(text) <= _MAX_PARSED:
        return
    lists, objects, values = text.count(b"["), text.count(b"{"), text.count(b",")
    if (size := 64 * lists + 240 * objects + 32 * values) > _MAX_PARSED:
        raise TooLarge(
            f"{lists} lists, {objects} objects and {values} commas would take some {size} bytes once parsed, the limit "
            f"is {_MAX_PARSED}, beside arrays of numbers that are regular; check the large arrays for anything that is "
            "not a number, for lists of unequal lengths and for misplaced commas, or send them in a binary format",
            expected=f"at most {_MAX_PARSED} bytes once parsed",
            received=f"{size} bytes",
        )


def load_envelope(text: Any) -> dict[str, Any]:
    """Parse the envelope, which must be a JSON object.

    Raises:
        MalformedBody: if it is anything else.
        TooLarge: if it is many times as large once parsed.
    """
    if not isinstance(text, str | bytes):
        raise MalformedBody("the envelope is not a JSON text", path="envelope")
    value = load_json(text)
    if not isinstance(value, dict):
        raise MalformedBody('expected a JSON object such as {"model": "seed-gru"}', path="envelope")
    return cast("dict[str, Any]", value)


def check_depth(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return an envelope, safe for whoever walks it recursively.

    Raises:
        MalformedBody: if it is nested deeper than options ever are.
    """
    level: list[Any] = list(envelope.values())
    for _ in range(_MAX_DEPTH):
        level = list(itertools.chain.from_iterable(map(_children, level)))
        if not level:
            return dict(envelope)
    raise MalformedBody(f"the envelope is nested deeper than {_MAX_DEPTH} levels", path="envelope")


def _children(item: Any) -> Collection[Any]:
    if isinstance(item, dict):
        return cast("dict[str, Any]", item).values()
    return cast("list[Any]", item) if isinstance(item, list) else ()


def dump_envelope(envelope: Mapping[str, Any]) -> bytes:
    """Write the envelope; NumPy scalars and small arrays in it are allowed.

    Raises:
        InvalidRequest: if a value has no JSON form.
    """
    try:
        return orjson.dumps(envelope, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidRequest(f"an option has no JSON form: {error}") from None
