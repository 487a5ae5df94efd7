"""What an answer is checked with: products and differences along one direction v and codirection u, at its very point.

They come from a program of their own, which always runs the loop and is never compiled, so that whatever strategy,
chunks or compiler made the answer is not trusted.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from app.operators import _layouts as layouts
from app.operators import _programs as programs
from app.operators._operator import Arrays, Tensors, Work
from models.gradcheck import TOLERANCES, Tolerances, difference_step, largest
from models.model import Model

# Roundings of a value, in units of its last place, that a difference of two values may hold.
_ROUNDINGS = 4.0

# Beside a kink a difference is off by half of what the slopes on both sides differ by, and a little by rounding.
_KINK = 0.55


@dataclass(frozen=True)
class Compared:
    """Differences of one output, or of a slice.

    Attributes:
        found: central differences along v; where a kink spoils them, J v in forward mode.
        kinks: where that is.
        floor: the magnitude below which rounding alone makes them intolerable.
    """

    found: np.ndarray
    kinks: np.ndarray
    floor: float

    def error(self, pushed: np.ndarray) -> float | None:
        """Return the largest error of tangents, relative to the largest number; None if there are kinks only."""
        if self.kinks.all():
            return None
        gap = np.abs(pushed - self.found)[~self.kinks].max()
        scale = max(largest({"pushed": pushed, "found": self.found}), self.floor)
        return float(gap / scale) if scale else float(gap)


@dataclass(frozen=True)
class Measured:
    """What the program found, in double precision.

    Attributes:
        forward: J v by output, in forward mode.
        reverse: Jᵀ u by input, in reverse mode.
        differences: J v by output, by differences.
        step: of the differences.
        tolerances: of the coarsest dtype that the model computes in.
    """

    forward: Arrays
    reverse: Arrays
    differences: Mapping[str, Compared]
    step: float
    tolerances: Tolerances

    def report(self, adjoint: float, difference: float | None, compared: Iterable[Compared]) -> dict[str, Any]:
        """Make `info.check`.

        Args:
            adjoint: the error of the adjoint identity, NaN if it can't be told.
            difference: that against differences; None if nothing but kinks was found.
            compared: the differences that were looked at.
        """
        spoilt = [c.kinks for c in compared]
        kinks, count = sum(int(k.sum()) for k in spoilt), sum(k.size for k in spoilt)
        notes: list[str] = []
        if not all(np.isfinite(x) for x in (adjoint, difference or 0.0)):
            notes.append("an error is null where inputs, directions, the answer or the differences are not finite")
        if kinks:
            notes.append(
                f"{kinks} of {count} numbers have a kink within the step, as relu has at 0, where differences tell "
                "nothing: they are checked by the adjoint identity alone"
            )
        passed = adjoint <= self.tolerances.adjoint and (difference or 0.0) <= self.tolerances.difference
        return {
            "adjoint": _number(adjoint),
            "difference": _number(difference),
            "step": _number(self.step),
            "tolerance": {"adjoint": self.tolerances.adjoint, "difference": self.tolerances.difference},
            "passed": passed,
            **({"note": "; ".join(notes)} if notes else {}),
        }


def measure(model: Model, inputs: Arrays, v: Arrays, u: Arrays) -> Generator[Work, Arrays, Measured]:
    """Yield the work of a check, and return what it found.

    Args:
        model: the model.
        inputs: the point, by name.
        v: the direction, by the input-side names that move.
        u: the codirection, by the output-side names to look at.
    """
    dtype = _coarsest(model)
    step = difference_step({name: value_of(model, inputs, name) for name in v}, v, dtype=dtype)
    fields = {"inputs": inputs, "directions": v, "codirections": u}
    feeds = {f"{field}.{name}": array for field, group in fields.items() for name, array in group.items()}
    shapes = layouts.free_shapes(model, feeds)
    found = yield Work(
        key=("check",),
        build=lambda: _program(model),
        feeds={**feeds, "step": np.asarray(step)},
        shapes={**shapes, "step": ()},
        rows=1,
        strategy="scan",
        casts=[],
        compile=False,
    )
    forward, reverse, value, slope, bend = (
        {name: np.asarray(a, np.float64) for name, a in of_field(found, field).items()}
        for field in ("forward", "reverse", "value", "slope", "bend")
    )
    tolerances, epsilon = TOLERANCES[dtype], float(np.finfo(dtype).eps)
    differences: dict[str, Compared] = {}
    for name, f in forward.items():
        # The step is 0 along a direction that is not finite.
        noise = np.divide(_ROUNDINGS * epsilon * largest({name: value[name]}), step)
        floor = float(noise / tolerances.difference)
        gap, scale = np.abs(f - slope[name]), max(largest({"forward": f, "slope": slope[name]}), floor)
        kinks = (gap > tolerances.difference * scale) & (gap <= _KINK * bend[name])
        differences[name] = Compared(np.where(kinks, f, slope[name]), kinks, floor)
    return Measured(forward, reverse, differences, step, tolerances)


def value_of(model: Model, inputs: Arrays, name: str) -> np.ndarray:
    """Return where an array of the input side stands; of a perturbation, which is zero, any zero."""
    if name in inputs:
        return inputs[name]
    if name.startswith("hidden."):
        return np.zeros(())
    return model.default(name, {n: tf.convert_to_tensor(a) for n, a in inputs.items()}).numpy()


def of_field(arrays: Arrays, field: str) -> dict[str, np.ndarray]:
    """Select the arrays of one field, by name."""
    return {path.partition(".")[2]: a for path, a in arrays.items() if path.startswith(f"{field}.")}


def _program(model: Model) -> Callable[[Tensors], Tensors]:
    def program(arrays: Tensors) -> Tensors:
        given, v, u = (programs.primals_of(arrays, field) for field in ("inputs", "directions", "codirections"))
        step = arrays["step"]

        def run(point: Tensors) -> Tensors:
            return model.run({**given, **point}, list(u))

        def beside(point: Tensors, sign: int) -> Tensors:
            ends = {n: tf.cast(t, step.dtype) + sign * step * tf.cast(v[n], step.dtype) for n, t in point.items()}
            return _widened(run({n: tf.cast(t, v[n].dtype) for n, t in ends.items()}), step.dtype)

        with model.holding_masks():
            value, pushed = programs.push(run, programs.point_of(model, given, list(v)), v, stacked=False)
            point = programs.point_of(model, given, list(v))
            _, pulled = programs.pull(run, point, u, list(v), stacked=False)
            up, down = beside(point, 1), beside(point, -1)
        middle = _widened(value, step.dtype)
        return programs.by_field(
            forward=pushed,
            reverse=pulled,
            value=value,
            slope={n: (up[n] - down[n]) / (2 * step) for n in u},
            # By how much the slopes to the right and to the left differ.
            bend={n: tf.abs(up[n] - 2 * middle[n] + down[n]) / step for n in u},
        )

    return program


def _widened(tensors: Tensors, dtype: tf.DType) -> Tensors:
    return {n: tf.cast(t, dtype) for n, t in tensors.items()}


def _coarsest(model: Model) -> str:
    """Name the coarsest dtype that the model computes in; its outputs may be finer."""
    s = model.signature
    arrays = [a for a in (*s.inputs, *s.hidden, *s.parameters, *s.outputs) if a.differentiable]
    return max((a.dtype for a in arrays), key=lambda dtype: float(np.finfo(dtype).eps))


def _number(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
