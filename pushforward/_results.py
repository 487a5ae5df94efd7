"""What the client gives back: the answer's arrays by name, and what the server says about the computation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pushforward.errors import PushforwardError
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

    def member(self, name: str, *, of: str = "") -> Any:
        """A JSON value that the answer must have, or that its field `of` must.

        Raises:
            PushforwardError: if it is not there.
        """
        owner: Any = self.info if of == "info" else self.fields
        if name not in owner:
            path = f"{of}.{name}" if of else name
            raise PushforwardError(f"the server's answer has no {path}; is the server of another version?")
        return owner[name]


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


@dataclass(frozen=True, eq=False)
class Jacobian:
    """One block of the Jacobian of every sample; `info`, `model` and `version` as in `Answer`.

    Attributes:
        jacobian: Shape (batch, *of-slice, *wrt-slice): entry `[b, i, j]` is d of[b, i] / d wrt[b, j].
        axes: What each of its axes is, such as `["batch", "y.feature", "x.time"]`.
        order: For a side of several states, `"of"` or `"wrt"`, which range of its axis is what, such as
            `{"wrt": ["lstm.h[0:64]", "lstm.c[64:128]"]}`; None if each side is a single array.
    """

    jacobian: Array
    axes: Sequence[str]
    info: Mapping[str, Any]
    model: str
    version: int
    order: Mapping[str, Sequence[str]] | None = None

    @classmethod
    def of(cls, envelope: Mapping[str, Any], array: Array) -> "Jacobian":
        """The answer of this envelope and this array."""
        answer = Answer.of(Message(dict(envelope)))
        axes, order = answer.member("axes"), answer.fields.get("order")
        return cls(array, axes, answer.info, answer.model, answer.version, order)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a Jacobian would take; `info`, `model` and `version` as in `Answer`.

    Attributes:
        shape: The array's shape, (batch, *of-slice, *wrt-slice).
        bytes: The array's size.
        mode: `forward` or `reverse`, as it would be computed.
        passes: How many directions go through the model.
        seconds: The server's estimate of the time.
        why: Why this mode, in words.
        axes: What each axis of the array is.
    """

    shape: tuple[int, ...]
    bytes: int
    mode: str
    passes: int
    seconds: float
    why: str
    axes: Sequence[str]
    info: Mapping[str, Any]
    model: str
    version: int

    @classmethod
    def of(cls, answer: Answer) -> "Plan":
        """The plan that an answer without its array holds."""
        names = ("bytes", "mode", "passes", "seconds", "why")
        size, mode, passes, seconds, why = (answer.member(name, of="info") for name in names)
        shape, axes = tuple(answer.member("shape", of="info")), answer.member("axes")
        return cls(shape, size, mode, passes, seconds, why, axes, answer.info, answer.model, answer.version)


@dataclass(frozen=True, eq=False)
class Transitions:
    """A model linearised at every step of a trajectory; `info`, `model` and `version` as in `Answer`.

    N is the length of all recurrent layers' states side by side. A part that was not asked for is None.

    Attributes:
        A: d state_t / d state_{t-1}, shape (batch, time, N, N).
        B: d state_t / d x_t, shape (batch, time, N, features).
        C: d y_t / d state_{t-1}, shape (batch, time, outputs, N).
        D: d y_t / d x_t, shape (batch, time, outputs, features).
        order: Which range of the state is what, such as `["gru.h[0:32]"]`.
    """

    A: Array | None
    B: Array | None
    C: Array | None
    D: Array | None
    order: Sequence[str]
    info: Mapping[str, Any]
    model: str
    version: int

    @classmethod
    def of(cls, answer: Answer) -> "Transitions":
        """The matrices that an answer holds."""
        a, b, c, d = (answer.fields.get(part) for part in "ABCD")
        return cls(a, b, c, d, answer.member("order"), answer.info, answer.model, answer.version)
