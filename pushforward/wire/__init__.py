"""Bytes to `Message` and back: one wire format a file, all with the same two functions."""

import functools
import sys
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from pushforward._registry import scan
from pushforward.wire._arrays import Array

MAX_BYTES = 2**30
"""What a body's arrays may take once decompressed or parsed, unless the caller says otherwise."""


@dataclass(frozen=True, eq=False)
class Message:
    """What a body says, whatever it was written in.

    Attributes:
        envelope: Everything that is not an array, as JSON values.
        arrays: Arrays by path: `<field>.<name>`, where the name may contain dots (`tangents.state.gru.h`), or just
            `<field>` (`jacobian`). They may be read-only views of the body.
    """

    envelope: dict[str, Any] = field(default_factory=dict[str, Any])
    arrays: dict[str, Array] = field(default_factory=dict[str, Array])

    def by_field(self) -> dict[str, dict[str, Array] | Array]:
        """The arrays as JSON nests them: a field is an object of named arrays, or itself an array."""
        fields: dict[str, dict[str, Array] | Array] = {}
        for path, array in self.arrays.items():
            name, dot, rest = path.partition(".")
            if dot:
                cast("dict[str, Array]", fields.setdefault(name, {}))[rest] = array
            else:
                fields[name] = array
        return fields


class Codec(Protocol):
    """A wire format. A module of this package with a `CODEC` of this kind is one more format everywhere."""

    @property
    def name(self) -> str:
        """What the format is called in options and metrics."""
        ...

    @property
    def media_type(self) -> str:
        """What it is called in `Content-Type` and `Accept`."""
        ...

    def decode(self, body: bytes, *, max_bytes: int = MAX_BYTES) -> Message:
        """Parse a body.

        Raises:
            MalformedBody: if it can't be parsed.
            TooLarge: if its arrays would take more than `max_bytes` once decompressed or parsed, or its options many
                times what they take as text; found out before that is done.
            InvalidArray: if one of its arrays is not an array.
        """
        ...

    def encode(self, message: Message) -> bytes:
        """Write a body.

        Raises:
            InvalidArray: if an array has a dtype that can't be sent.
        """
        ...


@functools.cache
def codecs() -> dict[str, Codec]:
    """Every wire format, by name."""
    return scan(sys.modules[__name__], "CODEC")
