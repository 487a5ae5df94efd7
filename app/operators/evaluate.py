"""`POST /evaluate`: outputs only."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.calls import Call
from app.operators import _layouts as layouts
from app.operators import _reading as reading
from app.operators._operator import Job, Tensors, Work
from app.operators._programs import by_field, primals_of
from models.model import Model


class _Evaluate:
    name = "evaluate"
    summary = "Evaluate a model"
    description = (
        "Returns the selected outputs: the model's own, final states (`state.*`) and the states after every step "
        "(`hidden.*`). Initial states that are not given are the cells' own defaults, usually zeros."
    )
    request_fields: Sequence[str] = ("inputs",)
    response_fields: Sequence[str] = ("outputs",)
    options: Mapping[str, Mapping[str, Any]] = {
        "outputs": reading.outputs_option("to return"),
        "strategy": reading.STRATEGY,
    }
    required: Sequence[str] = ("inputs",)
    quick = True

    def prepare(self, model: Model, call: Call) -> Job:
        casts: list[str] = []
        feeds = reading.read_inputs(model, call, casts)
        outputs, strategy = reading.read_targets(model, call), reading.read_strategy(call)

        def program(arrays: Tensors) -> Tensors:
            found = model.run(primals_of(arrays), outputs, unrolled=strategy == "unrolled")
            return by_field(outputs=found)

        work = Work(
            key=(tuple(outputs), strategy),
            build=lambda: program,
            feeds=feeds,
            shapes=layouts.free_shapes(model, feeds, exact=strategy == "unrolled"),
            rows=layouts.count_rows(feeds, None),
            strategy=strategy,
            casts=casts,
            layout=None if strategy == "unrolled" else layouts.layout(model, feeds, outputs),
        )
        return Job.of(work)

    def example(self, model: Model) -> dict[str, Any]:
        return {"model": model.name, "inputs": reading.example_input(model)}


OPERATOR = _Evaluate()
