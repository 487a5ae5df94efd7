"""Random calls of a kind, that differ in rows, steps and numbers: what may be joined, and what must come out of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import app.operators
from app.calls import Call
from models.gradcheck import TOLERANCES
from models.model import Model
from pushforward._registry import scan

OPERATORS = scan(app.operators, "OPERATOR")

LEAST = {"float64": 0.0, "float32": 1.0}


@dataclass(frozen=True)
class Kind:
    """Which arrays the calls give and ask for."""

    model: Model
    operator: str
    states: list[str]
    directions: list[str]
    options: dict[str, Any]
    count: int | None

    @classmethod
    def draw(cls, rng, model, operator, **options):
        """Draw names of the input side and of the output side, and how many directions are stacked."""
        signature = model.signature
        states = [a.name for a in signature.states if a.name not in signature.wired]
        hidden = [a.name for a in signature.hidden]
        inputs, outputs = [a.name for a in signature.inputs], [a.name for a in signature.outputs]

        def some(names, least=1):
            return [names[i] for i in rng.permutation(len(names))[: rng.integers(least, len(names) + 1)]]

        sources = some([*inputs, *states, *hidden])
        # Without a final state a call may be padded, so half of them have none.
        targets = some([*outputs, *hidden, *(states if rng.random() < 0.5 else [])])
        given = some(states, 0)
        if operator == "vjp":
            return cls(model, operator, given, targets, {"wrt": sources, **options}, rng.choice([None, 1, 3]))
        directions, count = (sources, rng.choice([None, 1, 3])) if operator == "jvp" else ([], None)
        return cls(model, operator, given, directions, {"outputs": targets, **options}, count)

    @property
    def padded(self):
        """Whether steps may be added at the end: nothing that the call asks for tells of the last one."""
        asked = self.directions if self.operator == "vjp" else self.options["outputs"]
        return self.model.signature.causal and all("time" in self._axes(name) for name in asked)

    def work(self, rng, rows, time, scale=1.0):
        """Make the work of a call with random numbers."""

        def array(name, count=None):
            spec = next(a for a in self.model.signature.arrays if a.name == name)
            sizes = {"batch": rows, "time": time}
            shape = [sizes.get(axis) if n is None else n for n, axis in zip(spec.shape, spec.axes, strict=True)]
            return (scale * rng.normal(size=([] if count is None else [count]) + shape)).astype(spec.dtype)

        inputs = [a.name for a in self.model.signature.inputs]
        field = {"jvp": "tangents", "vjp": "cotangents"}.get(self.operator)
        arrays = {"inputs": {name: array(name) for name in [*inputs, *self.states]}}
        if field is not None:
            arrays[field] = {name: array(name, self.count) for name in self.directions}
        call = Call(self.model.name, self.operator, arrays, self.options)
        return OPERATORS[self.operator].prepare(self.model, call).work

    def _axes(self, name):
        return next(a.axes for a in self.model.signature.arrays if a.name == name)


def key(work):
    """What works must have in common to be joined."""
    return work.key, work.strategy, work.layout.key(work.feeds)


def assert_same(found, alone, dtype, times=1.0):
    """Compare what came out of a group for one member with what it gives alone."""
    assert found.keys() == alone.keys()
    for path, expected in alone.items():
        got = found[path]
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype), path
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected), path)
        finite = expected[np.isfinite(expected)]
        bound = times * TOLERANCES[dtype].joined * np.abs(finite).max(initial=LEAST[dtype])
        np.testing.assert_allclose(got[np.isfinite(got)], finite, rtol=0, atol=bound, err_msg=path)
