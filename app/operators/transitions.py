"""`POST /transitions`: the linearised state-space model at every step, `[b, t, i, j] = d out[b, i] / d in[b, j]`."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.calls import Call
from app.operators import _reading as reading
from app.operators._check import OPTION
from app.operators._lengths import LENGTHS_PATH
from app.operators._operator import Job
from app.operators._sides import ranges
from app.operators._steps import Steps, sequence
from models.model import Model
from pushforward.errors import InvalidRequest, NotDifferentiable, UnknownName

PARTS = ("A", "B", "C", "D")

# What a chunk of steps may hold at once.
CHUNK_BYTES = 2**28


class _Transitions:
    name = "transitions"
    summary = "The linearised state-space model along a trajectory"
    description = (
        "The derivatives of each single step of the whole model, at the states and inputs of a trajectory: A of the "
        "state after the step with respect to the state before it, B of the state after it with respect to `x` at this "
        "step, C and D of the output at this step with respect to the same two. `[b, t, i, j]` is d out[b, i] / "
        "d in[b, j]. The state is the states of all recurrent layers side by side; `order` tells the range of each. "
        "States at given points are a trajectory of length 1 with the points as batch. The output of a model that "
        "returns its last step only is what it would return after each step. For models that work step by step: B and "
        "D with a floating-point input `(batch, time, feature)`, C and D with one output that has one axis of features."
        " At padded steps, with `lengths`, the state stays: A is the identity, the others are zero."
    )
    request_fields: Sequence[str] = ("inputs",)
    response_fields: Sequence[str] = PARTS
    options: Mapping[str, Mapping[str, Any]] = {
        "parts": {
            "type": "array",
            "items": {"enum": list(PARTS)},
            "minItems": 1,
            "uniqueItems": True,
            "default": list(PARTS),
            "description": "Which matrices to compute.",
        },
        "check": OPTION,
    }
    required: Sequence[str] = ("inputs",)
    quick = False
    answer_members: Mapping[str, Mapping[str, Any]] = {
        "order": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The range that each state takes up in the whole, such as `lstm.c[64:128]`.",
        },
    }

    def prepare(self, model: Model, call: Call) -> Job:
        parts = _read_parts(call)
        _check_model(model)
        for part in parts:
            _check_part(model, part)
        casts: list[str] = []
        feeds = reading.read_inputs(model, call, casts)
        lengths, check = feeds.pop(LENGTHS_PATH, None), reading.read_flag(call, "check")
        if check and lengths is not None and not lengths.any():
            raise InvalidRequest("all rows have length 0, so there is no step to check; leave check out", path="check")
        steps = Steps(model, tuple(parts), feeds, casts, CHUNK_BYTES, lengths)
        return Job(
            steps=steps.run,
            rows=steps.count,
            strategy="scan",
            casts=casts,
            nbytes=sum(steps.nbytes(part) for part in parts),
            check=steps.check if check else None,
            info={"chunks": len(steps.chunks)},
            extra={"order": ranges(model.signature.states)},
        )

    def example(self, model: Model) -> dict[str, Any]:
        _check_model(model)
        request: dict[str, Any] = {"model": model.name, "inputs": reading.example_input(model)}
        parts = [part for part in PARTS if _fits(model, part)]
        return request if parts == list(PARTS) else {**request, "parts": parts}


def _read_parts(call: Call) -> list[str]:
    parts = reading.read_names(call, "parts", PARTS)
    for i, part in enumerate(parts):
        if part not in PARTS:
            raise UnknownName(
                f"there is no such part; there are: {', '.join(PARTS)}",
                path=f"parts[{i}]",
                expected=list(PARTS),
                received=part[:80],
            )
    return parts


def _check_model(model: Model) -> None:
    signature = model.signature
    if signature.obstacle is not None:
        raise NotDifferentiable(
            f"model {model.name!r} does not work step by step: {signature.obstacle}; POST /jacobian takes any model",
            path="model",
        )
    if not signature.states:
        raise NotDifferentiable(
            f"model {model.name!r} has no recurrent layer, so it has no state; POST /jacobian takes any model",
            path="model",
        )
    odd = next((s for s in signature.states if len(s.shape) != 2), None)
    if odd is not None:
        raise NotDifferentiable(
            f"{odd.name} is {odd.layout}; matrices are for states (batch, unit), POST /jacobian takes any state",
            path="model",
        )


def _check_part(model: Model, part: str) -> None:
    if part in "BD":
        x = sequence(model)
        try:
            model.signature.source(x.name, "parts")
        except NotDifferentiable as error:
            raise NotDifferentiable(
                f"{error.detail} in POST /jacobian, or only for the parts A and C",
                path="parts",
                expected=error.expected,
                received=error.received,
            ) from None
        if x.axes != ("batch", "time", "feature"):
            raise NotDifferentiable(
                f"{part} needs an input (batch, time, feature), but {x.name} is {x.layout}; ask for the parts A and C, "
                "or POST /jacobian",
                path="parts",
            )
    if part in "CD":
        outputs = model.signature.outputs
        if len(outputs) != 1:
            raise NotDifferentiable(
                f"{part} needs a model with one output, but there are {len(outputs)}: "
                f"{', '.join(y.name for y in outputs)}; ask for the parts A and B, or POST /jacobian",
                path="parts",
            )
        if outputs[0].axes not in (("batch", "time", "feature"), ("batch", "feature")) or None in outputs[0].shape[-1:]:
            raise NotDifferentiable(
                f"{part} needs an output with one axis of features, but {outputs[0].name} is {outputs[0].layout}; ask "
                "for the parts A and B, or POST /jacobian",
                path="parts",
            )
        if not outputs[0].differentiable:
            raise NotDifferentiable(
                f"{outputs[0].name} holds {outputs[0].dtype}, which has no derivative; ask for the parts A and B",
                path="parts",
            )


def _fits(model: Model, part: str) -> bool:
    try:
        _check_part(model, part)
    except NotDifferentiable:
        return False
    return True


OPERATOR = _Transitions()
