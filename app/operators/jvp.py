"""`POST /jvp`: outputs and their tangents, the pushforward of the tangents of inputs, states and parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.calls import Call
from app.operators import _check
from app.operators import _layouts as layouts
from app.operators import _programs as programs
from app.operators import _reading as reading
from app.operators._lengths import LENGTHS_PATH, padding_zeroed
from app.operators._operator import Job, Tensors, Work
from models.model import Model


class _Jvp:
    name = "jvp"
    summary = "Jacobian-vector product"
    description = (
        "Pushes tangents forward: `tangents` in the request are keyed by input-side names (a missing one means zero), "
        "in the answer by output-side names. Arrays with one more axis in front hold K directions at the same point; "
        "the answer's tangents then have that axis, too, the outputs do not."
    )
    request_fields: Sequence[str] = ("inputs", "tangents")
    response_fields: Sequence[str] = ("outputs", "tangents")
    options: Mapping[str, Mapping[str, Any]] = {
        "outputs": reading.outputs_option("to return with their tangents"),
        "strategy": reading.STRATEGY,
        "check": _check.OPTION,
    }
    required: Sequence[str] = ("inputs", "tangents")
    quick = True

    def prepare(self, model: Model, call: Call) -> Job:
        casts: list[str] = []
        feeds = reading.read_inputs(model, call, casts)
        given = call.arrays.get("tangents", {})
        reading.require(given, "tangents", model.signature.inputs[0].name)
        specs = {n: reading.sized(model.signature.source(n, f"tangents.{n}"), feeds, model) for n in given}
        tangents, count = reading.read_directions(specs, given, "tangents", casts)
        tangents = padding_zeroed(model, tangents, feeds.get(LENGTHS_PATH))
        outputs, strategy = reading.read_targets(model, call), reading.read_strategy(call)

        def program(arrays: Tensors) -> Tensors:
            primals, directions = programs.primals_of(arrays), programs.primals_of(arrays, "tangents")
            point = programs.point_of(model, primals, list(directions))

            def run(point: Tensors) -> Tensors:
                return model.run({**primals, **point}, outputs, unrolled=strategy == "unrolled")

            stacked = count is not None
            if strategy == "reverse":
                found, pushed = programs.push_by_reverse(run, point, directions, stacked)
            elif strategy == "unrolled" and stacked:
                found, pushed = programs.push_each(run, point, directions)
            else:
                found, pushed = programs.push(run, point, directions, stacked)
            return programs.by_field(outputs=found, tangents=pushed)

        work = Work(
            key=(tuple(outputs), strategy),
            build=lambda: program,
            feeds={**feeds, **tangents},
            shapes=layouts.free_shapes(model, {**feeds, **tangents}, exact=strategy == "unrolled"),
            rows=layouts.count_rows(feeds, count),
            strategy=strategy,
            casts=casts,
            layout=None
            if strategy == "unrolled"
            else layouts.layout(model, {**feeds, **tangents}, outputs, directions=outputs),
        )
        check = _check.of_tangents(model, work, count is not None) if reading.read_flag(call, "check") else None
        return Job.of(work, check)

    def example(self, model: Model) -> dict[str, Any]:
        return {
            "model": model.name,
            "inputs": reading.example_input(model),
            "tangents": reading.example_direction(model),
        }


OPERATOR = _Jvp()
