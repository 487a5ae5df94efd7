"""What the client gives back: the answer's arrays by name, and what the server says about the computation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pushforward.wire import Message
from pushforward.wire._arrays import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of any operator.

    Attributes:
        fields: Everything the operator computed: a mapping of named arrays (`fields["outputs"]["y"]`), one array
            (`fields["jacobian"]`), or a JSON value (`fields["axes"]`).
        info: How it was computed: strategy, dtype, device, times, casts, nonfinite numbers.
        model: The model's name.
        version: The version that answered.
    """

    fields: Mapping[str, Any]
    info: Mapping[str, Any]
    model: str
    version: int

    @classmethod
    def of(cls, message: Message) -> "Answer":
        """The answer that a response's message holds."""
        rest = dict(message.envelope)
        info, model, version = rest.pop("info", {}), rest.pop("model", ""), rest.pop("version", 0)
        return cls({**rest, **message.by_field()}, info, model, version)

    def named(self, field: str) -> Arrays:
        """A field of named arrays; empty if no array of it was asked for."""
        return self.fields.get(field, {})


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The model's outputs, by name; `info`, `model` and `version` as in `Answer`."""

    outputs: Arrays
    info: Mapping[str, Any]
    model: str
    version: int


@dataclass(frozen=True, eq=False)
class JVP:
    """Outputs and their tangents, both keyed by output; `info`, `model` and `version` as in `Answer`."""

    outputs: Arrays
    tangents: Arrays
    info: Mapping[str, Any]
    model: str
    version: int


@dataclass(frozen=True, eq=False)
class VJP:
    """Outputs, keyed by output, and cotangents, keyed by input; `info`, `model` and `version` as in `Answer`."""

    outputs: Arrays
    cotangents: Arrays
    info: Mapping[str, Any]
    model: str
    version: int
