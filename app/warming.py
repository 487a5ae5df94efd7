"""Builds programs before the first request, so that it does not wait for them."""

from collections.abc import Iterable, Sequence

import numpy as np

from app.calls import Call
from app.operators._operator import Operator, Work
from app.programs import Programs
from models.model import Model
from pushforward.errors import NotDifferentiable


def warm(programs: Programs, model: Model, operators: Iterable[Operator], sizes: Sequence[tuple[int, int]]) -> None:
    """Build the programs of each operator's example, and compile them for sizes in rows and steps."""
    for operator in operators:
        try:
            request = operator.example(model)
        except NotDifferentiable:
            continue  # This operator has nothing to do on this model.
        fields = operator.request_fields
        arrays = {f: {n: np.asarray(a) for n, a in request.get(f, {}).items()} for f in fields}
        options = {name: value for name, value in request.items() if name not in (*fields, "model")}
        job = operator.prepare(model, Call(model.name, operator.name, arrays, options))
        first = next(job.steps(), None)  # What follows depends on what comes out of it.
        if isinstance(first, Work):
            programs.warm(model, operator.name, first, sizes)
