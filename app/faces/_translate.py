"""Between a codec's `Message` and the waist's `Call` and `Answer`: every member of a request is known, or refused."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from app.calls import Answer, Call
from app.faces._face import Operator
from pushforward.errors import InvalidRequest, UnknownName
from pushforward.wire import Message
from pushforward.wire._nested import from_lists

_ENCODINGS = ["list", "base64"]

ENCODED_ARRAY = "#/components/schemas/EncodedArray"

# Members that every operator takes; the face itself reads them.
COMMON: dict[str, dict[str, Any]] = {
    "model": {"type": "string", "description": "Name of a model, or `name@version`."},
    "timeout_s": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Seconds after which the answer is no longer wanted (504); the server may have a lower limit.",
    },
    "lengths": {
        "anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 0}}, {"$ref": ENCODED_ARRAY}],
        "description": "For rows of different lengths, padded at the end: how many steps of each row are its own, one "
        "integer per row. Padded steps are skipped as by a Keras mask: outputs there repeat the last, states stay, and "
        "nothing depends on what stands in the padding. Each row's own steps are as if it had been sent alone. Models "
        "with a layer that can't skip steps (`ragged` is false in their description) take one length only. Where "
        "several inputs are sequences, it is for all of them. In binary bodies also an integer tensor `lengths`.",
    },
    "encoding": {
        "enum": _ENCODINGS,
        "default": "list",
        "description": "How a JSON answer writes its arrays: nested lists, or `{dtype, shape, base64}`.",
    },
}


def to_call(operator: Operator, message: Message) -> Call:
    """Make the call that a request asks for.

    Raises:
        UnknownName: if it has a member that the operator does not take.
        InvalidRequest: if it lacks one that the operator needs, or a common one is of the wrong type.
    """
    envelope = message.envelope
    arrays: dict[str, dict[str, np.ndarray]] = {field: {} for field in operator.request_fields}
    options = {name: value for name, value in envelope.items() if name not in COMMON}
    fields = dict.fromkeys(key.partition(".")[0] for key in message.arrays)
    _check_known(operator, (*fields, *options))
    for key, array in message.arrays.items():
        field, _, name = key.partition(".")
        if key == "lengths":
            continue
        if field not in arrays:
            raise InvalidRequest(f"in a request to /{operator.name} this is no array; see its schema", path=key)
        if not name:
            raise InvalidRequest("expected a name after the field, such as inputs.x, got none", path=key)
        arrays[field][name] = array
    for field in operator.request_fields:
        if field in options:
            raise InvalidRequest(f"expected arrays by name, got {type(options[field]).__name__}", path=field)
    for name in ("model", *operator.required):
        if name not in envelope and not arrays.get(name):
            raise InvalidRequest(f"expected in every request to /{operator.name}, got none; add it", path=name)
    encoding = envelope.get("encoding", "list")
    if encoding not in _ENCODINGS:
        raise InvalidRequest(
            f"expected one of {', '.join(_ENCODINGS)}",
            path="encoding",
            expected=_ENCODINGS,
            received=encoding[:80] if isinstance(encoding, str) else type(encoding).__name__,
        )
    return Call(
        model=_model(envelope["model"]),
        operator=operator.name,
        arrays=arrays,
        options=options,
        timeout_s=_timeout_s(envelope.get("timeout_s")),
        lengths=_lengths(message),
    )


def to_message(answer: Answer, request: Message) -> Message:
    """Make the message that tells an answer, with its arrays as the request wants them written."""
    arrays = {
        f"{field}.{name}" if name else field: array
        for field, group in answer.arrays.items()
        for name, array in group.items()
    }
    envelope = {"model": answer.model, "version": answer.version, **answer.extra, "info": answer.info}
    if "encoding" in request.envelope:
        envelope["encoding"] = request.envelope["encoding"]
    return Message(envelope, arrays)


def _check_known(operator: Operator, names: Iterable[str]) -> None:
    known = [*COMMON, *operator.request_fields, *operator.options]
    for name in names:
        if name not in known:
            raise UnknownName(
                f"/{operator.name} has no such member; it takes {', '.join(known)}",
                path=name[:100],
                expected=known,
            )


def _model(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(
            f"expected a model's name as a string, got {type(value).__name__}; GET /models lists them", path="model"
        )
    return value


def _lengths(message: Message) -> np.ndarray | None:
    array, value = message.arrays.get("lengths"), message.envelope.get("lengths")
    if value is None:
        return array
    if array is not None:
        raise InvalidRequest("given as a tensor and in the envelope; send one of them", path="lengths")
    return from_lists(value, "lengths")


def _timeout_s(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InvalidRequest("expected a number of seconds above 0", path="timeout_s", expected="a number above 0")
    return float(value)
