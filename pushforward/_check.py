"""Are a server's derivatives right? Asked over HTTP only, as anybody can.

Three questions for every name of a model's input side, at one random point. Do JVP and VJP belong together: the adjoint
identity ⟨u, J v⟩ = ⟨Jᵀ u, v⟩, the dot-product test of Claerbout, Earth Soundings Analysis (1992), ch. 5. Do forward and
reverse mode agree. And, for what a request can move, inputs and initial states: do differences of the outputs say the
same, by the five-point stencil (Abramowitz and Stegun, Handbook of Mathematical Functions, formula 25.3.6).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pushforward._results import Arrays

if TYPE_CHECKING:
    from pushforward.client import Client


@dataclass(frozen=True)
class Tolerance:
    """What may be left over in one dtype, relative to the largest number compared."""

    adjoint: float
    strategies: float
    differences: float


# Below a thousandth, so that no derivative that is wrong by as much passes; float16 has too few digits for that.
TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-12, 1e-6),
    "float32": Tolerance(1e-5, 1e-5, 5e-4),
    "float16": Tolerance(1e-2, 1e-2, 5e-1),
}


@dataclass(frozen=True)
class Finding:
    """What one name's derivatives were held against.

    Attributes:
        name: The input-side name.
        adjoint: How far the two sides of the adjoint identity are apart.
        strategies: How far forward and reverse mode are apart.
        differences: How far the JVP is from differences; None where a request can't move the array.
        tolerance: What each may be.
    """

    name: str
    adjoint: float
    strategies: float
    differences: float | None
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        """Whether all is within its tolerance; NaN is not."""
        kinds = ("adjoint", "strategies", "differences")
        errors = [(getattr(self, kind), getattr(self.tolerance, kind)) for kind in kinds]
        return all(error is None or error <= limit for error, limit in errors)


class Inconclusive(Exception):
    """All derivatives are zero at every point that was tried, so nothing can be said of them."""


def check(client: "Client", name: str, *, batch: int = 2, steps: int = 5, seed: int = 0) -> Iterator[Finding]:
    """Check the derivatives of a model's outputs and states with respect to everything.

    Args:
        client: Asks the server.
        name: The model's name, or `name@version`.
        batch: Sequences of the random point.
        steps: Steps of these, where the model leaves that free.
        seed: Of the point and the directions.

    Yields:
        A finding for each differentiable name of the input side.

    Raises:
        Inconclusive: if the derivatives are zero.
        PushforwardError: if the server refuses or fails.
    """
    description = client.model(name)
    tolerance = TOLERANCES[description["dtype"]]
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "time": steps}
    given, inner, targets = _groups(description)
    point = {a["name"]: _draw(a, sizes, rng) for a in given}
    directions = {a["name"]: _draw(a, sizes, rng) for a in (*given, *inner) if a["differentiable"]}
    zeros = {n: np.zeros_like(v) for n, v in directions.items()}
    names = [a["name"] for a in targets]
    asked = Asked(client, f"{description['name']}@{description['version']}", point, names)
    outputs = asked.evaluate(point)
    weights = {n: rng.normal(size=array.shape).astype(array.dtype) for n, array in outputs.items()}
    pulled = client.vjp(asked.model, point, weights, wrt=list(directions)).cotangents
    largest = 0.0
    for direction, v in directions.items():
        along = {**zeros, direction: v}
        pushed = asked.jvp(along, "scan")
        largest = max(largest, _largest(pushed))
        noise = 10 * np.finfo(description["dtype"]).eps
        differences = None
        if direction in point:
            tries = (asked.difference(direction, v, pushed, noise, root, tolerance.differences) for root in (3, 4, 5))
            differences = min(tries)
        yield Finding(
            direction,
            _adjoint(weights, pushed, pulled[direction], v),
            distance(
                asked.jvp(along, "reverse"),
                pushed,
                {n: noise * _size(outputs[n]) for n in pushed},
                tolerance.strategies,
            ),
            differences,
            tolerance,
        )
    if not largest:
        raise Inconclusive(f"all derivatives of {name!r} are zero at the random point; try another seed")


@dataclass(frozen=True)
class Asked:
    """The server, asked about one model at one point.

    Attributes:
        client: Asks it.
        model: The model and its version.
        point: The inputs and initial states.
        targets: The outputs and states that are differentiated.
    """

    client: "Client"
    model: str
    point: Arrays
    targets: list[str]

    def evaluate(self, point: Arrays) -> Arrays:
        """The outputs at a point."""
        return self.client.evaluate(self.model, point, outputs=self.targets).outputs

    def jvp(self, tangents: Arrays, strategy: str) -> Arrays:
        """The outputs' tangents."""
        return self.client.jvp(self.model, self.point, tangents, outputs=self.targets, strategy=strategy).tangents

    def difference(self, name: str, v: Any, pushed: Arrays, noise: float, root: int, limit: float) -> float:
        """How far `pushed` is from differences along `v`, whose step is a root of the machine epsilon.

        A kink within the step spoils a difference, rounding one of a smaller step: the best of several roots tells.
        """
        x = self.point[name]
        step = float(np.finfo(x.dtype).eps) ** (1 / root) / max(_size(v), 1.0)
        ends = {k: self.evaluate({**self.point, name: (x + k * step * v).astype(x.dtype)}) for k in (-2, -1, 1, 2)}
        found: dict[str, Any] = {}
        rounding: dict[str, float] = {}
        for n in pushed:
            low, less, more, high = (ends[k][n].astype(np.float64) for k in (-2, -1, 1, 2))
            found[n] = (8 * (more - less) - (high - low)) / (12 * step)
            rounding[n] = noise * _size(high) / step
        return distance(found, pushed, rounding, limit)


def distance(found: Arrays, wanted: Arrays, noise: Mapping[str, float], limit: float) -> float:
    """The largest difference in any array, relative to that array's largest number; NaN if there is a NaN.

    Numbers that are so small that noise of this size could be over the limit count as larger.
    """
    worst = 0.0
    for name, array in wanted.items():
        gap = float(np.max(np.abs(found[name].astype(np.float64) - array), initial=0.0))
        if not np.isfinite(gap):
            return float("nan")
        worst = max(worst, gap / max(_size(array), noise[name] / limit, np.finfo(np.float64).tiny))
    return worst


def _groups(description: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """What a request gives, what it can only move, and what comes out, of real numbers."""
    states = [a for a in description["states"] if a["name"] not in description.get("wired", ())]
    given = [*description["inputs"], *states]
    inner = [*description["hidden"], *description["parameters"]]
    outputs = [*description["outputs"], *description["states"], *description["hidden"]]
    return given, inner, [a for a in outputs if a["differentiable"]]


def _draw(array: Mapping[str, Any], sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    shape = [sizes.get(a, 4) if n is None else n for n, a in zip(array["shape"], array["axes"], strict=True)]
    if np.dtype(array["dtype"]).kind != "f":
        return rng.integers(0, 2, shape).astype(array["dtype"])
    return rng.normal(size=shape).astype(array["dtype"])


def _adjoint(weights: Arrays, pushed: Arrays, pulled: Any, v: Any) -> float:
    left = sum(_inner(weights[n], pushed[n]) for n in weights)
    sizes = [_inner(a, a) ** 0.5 for a in (pulled, v)]
    outer = [sum(_inner(a, a) for a in arrays.values()) ** 0.5 for arrays in (weights, pushed)]
    size = max(outer[0] * outer[1], sizes[0] * sizes[1])
    gap = abs(left - _inner(pulled, v))
    return gap / size if size else gap


def _inner(a: Any, b: Any) -> float:
    return float(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64)))


def _size(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def _largest(arrays: Arrays) -> float:
    return max((_size(a) for a in arrays.values()), default=0.0)
