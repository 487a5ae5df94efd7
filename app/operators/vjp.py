"""`POST /vjp`: outputs and the cotangents of inputs, states and parameters, the pullback of the outputs' cotangents."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.calls import Call
from app.operators import _check
from app.operators import _layouts as layouts
from app.operators import _programs as programs
from app.operators import _reading as reading
from app.operators._operator import Job, Tensors, Work
from models.model import Model
from models.signature import Array
from pushforward.errors import InvalidRequest, NotDifferentiable


class _Vjp:
    name = "vjp"
    summary = "Vector-Jacobian product"
    description = (
        "Pulls cotangents back: `cotangents` in the request are keyed by output-side names, in the answer by the "
        "input-side names of `wrt`. The cotangent of a `hidden.*` is the derivative with respect to the state after "
        "each step; that of a `param.*` is summed over the batch. Arrays with one more axis in front hold K "
        "cotangents; the answer's then have that axis, too."
    )
    request_fields: Sequence[str] = ("inputs", "cotangents")
    response_fields: Sequence[str] = ("outputs", "cotangents")
    options: Mapping[str, Mapping[str, Any]] = {
        "wrt": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "Input-side names to differentiate with respect to: inputs, `state.*`, `hidden.*`, "
            "`param.*`. The default is every differentiable input.",
        },
        "strategy": reading.STRATEGY,
        "check": _check.OPTION,
    }
    required: Sequence[str] = ("inputs", "cotangents")
    quick = True

    def prepare(self, model: Model, call: Call) -> Job:
        casts: list[str] = []
        feeds = reading.read_inputs(model, call, casts)
        given = call.arrays.get("cotangents", {})
        reading.require(given, "cotangents", model.signature.outputs[0].name)
        specs = {n: reading.sized(_target(model, n), feeds, model) for n in given}
        cotangents, count = reading.read_directions(specs, given, "cotangents", casts)
        wrt, strategy = self._wrt(model, call), reading.read_strategy(call)
        outputs = list(given)

        def program(arrays: Tensors) -> Tensors:
            primals, directions = programs.primals_of(arrays), programs.primals_of(arrays, "cotangents")
            point = programs.point_of(model, primals, wrt)

            def run(point: Tensors) -> Tensors:
                return model.run({**primals, **point}, outputs, unrolled=strategy == "unrolled")

            found, pulled = programs.pull(run, point, directions, wrt, stacked=count is not None)
            return programs.by_field(outputs=found, cotangents=pulled)

        work = Work(
            key=(tuple(outputs), tuple(wrt), strategy),
            build=lambda: program,
            feeds={**feeds, **cotangents},
            shapes=layouts.free_shapes(model, {**feeds, **cotangents}, exact=strategy == "unrolled"),
            rows=layouts.count_rows(feeds, count),
            strategy=strategy,
            casts=casts,
            layout=None if strategy == "unrolled" else layouts.layout(model, {**feeds, **cotangents}, outputs, wrt=wrt),
        )
        check = _check.of_cotangents(model, work, count is not None) if reading.read_flag(call, "check") else None
        return Job.of(work, check)

    def example(self, model: Model) -> dict[str, Any]:
        signature = model.signature
        # How many steps are left of an example's three must be known, or not matter.
        known = [a for a in (*signature.outputs, *signature.states) if signature.one_length or "time" not in a.axes]
        output = next((a for a in known if a.differentiable), None)
        if output is None:
            raise NotDifferentiable(f"model {model.name!r} has no output of real numbers and of a known size")
        sizes = {"batch": 1, "time": 3}
        shape = [sizes.get(axis, 1) if n is None else n for n, axis in zip(output.shape, output.axes, strict=True)]
        request: dict[str, Any] = {
            "model": model.name,
            "inputs": reading.example_input(model),
            "cotangents": {output.name: np.ones(shape).tolist()},
        }
        if not any(a.differentiable for a in model.signature.inputs):
            request["wrt"] = [reading.example_source(model).name]
        return request

    def _wrt(self, model: Model, call: Call) -> list[str]:
        default = [a.name for a in model.signature.inputs if a.differentiable]
        if not default and call.options.get("wrt") is None:
            raise InvalidRequest(
                "this model's inputs hold integers, which have no cotangent; name states or parameters", path="wrt"
            )
        names = reading.read_names(call, "wrt", default or ["param"])
        for i, name in enumerate(names):
            model.signature.source(name, f"wrt[{i}]")
        return names


def _target(model: Model, name: str) -> Array:
    path = f"cotangents.{name}"
    found = model.signature.target(name, path)
    if not found.differentiable:
        raise NotDifferentiable(f"{name} holds {found.dtype}, which has no cotangent; leave it out", path=path)
    return found


OPERATOR = _Vjp()
