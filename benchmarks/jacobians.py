"""How fast are slices of Jacobians, and the matrices of single steps, against JAX?

Both sides go from NumPy arrays to NumPy arrays, float32, with the weights in place. Ours is an operator of the server
without its protocols and its queue: it checks the call, picks the program and runs it. JAX's is the derivative of one
sample, by `jacfwd` or `jacrev`, under `vmap` and `jit`, with the input's projection inside of the loop or before it and
several unrollings of the loop; the fastest of all is JAX's time.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._harness import Benchmark, Worker, WorkerError, machine, missing_jax, short, table
from benchmarks._rounds import ROUNDS, Measured, difference, prepare, take_turns


@dataclass(frozen=True)
class Case:
    """What is differentiated, the shapes that come out, and how many times as fast as JAX we have to be."""

    title: str
    cell: str
    batch: int
    time: int
    features: int
    units: int
    shapes: tuple[tuple[int, ...], ...]
    minimum: float | None = None


_WINDOW = ("gru", 1, 400, 8, 64, ((1, 10, 64, 20, 8),))
CASES = {
    "a": Case("dy/dx", "gru", 1, 64, 4, 32, ((1, 64, 32, 64, 4),), 2),
    "b": Case("dh_T/dx", "gru", 8, 200, 8, 64, ((8, 64, 200, 8),), 1),
    "c": Case("dy[100:110]/dx[90:110] of 400 steps", *_WINDOW, 4),
    # JAX can't know that y is causal, but its user may; how much that is worth belongs beside the figure above.
    "c-cut": Case("the same, cut to the 110 steps that matter by JAX's user", *_WINDOW),
    "d": Case("dh_T/dh_0", "gru", 32, 100, 8, 128, ((32, 128, 128),), 1),
    "e1": Case("A, B at 256 states", "lstm", 256, 1, 4, 16, ((256, 32, 32), (256, 32, 4)), 1),
    "e2": Case("A, B along 1000 steps", "gru", 1, 1000, 4, 64, ((1, 1000, 64, 64), (1, 1000, 64, 4)), 1),
}

MODES = ("jacfwd", "jacrev")
PROJECTIONS = ("inside", "hoisted")
UNROLLINGS = (2, 4, 8)
NEAR = 1.5
"""How much slower than the fastest a way to write the program may be, as a plain loop, and still be tried unrolled."""
TOLERANCE = 1e-4
"""Largest difference allowed, relative to an array's largest element: float32 products of up to 400 steps."""


def arrays(case: Case) -> dict[str, np.ndarray]:
    """Return sequence, state before it and weights of the magnitudes met in trained models.

    Those remember: with gates around a half, nothing that is worth computing is left of a state after 100 steps.
    """
    random = np.random.default_rng(case.units)
    gates, slots = {"gru": (3, 1), "lstm": (4, 2)}[case.cell]
    width = gates * case.units
    bias = random.normal(size=(2, width) if case.cell == "gru" else width) * 0.1
    if case.cell == "gru":
        bias[0, : case.units] += 3.0
    else:
        bias[case.units : 2 * case.units] += 1.0
    made = {
        "x": random.normal(size=(case.batch, case.time, case.features)),
        "state": random.normal(size=(case.batch, slots * case.units)) * 0.5,
        "kernel": random.normal(size=(case.features, width)) / np.sqrt(case.features),
        "recurrent": random.normal(size=(case.units, width)) / np.sqrt(case.units),
        "bias": bias,
    }
    return {name: value.astype(np.float32) for name, value in made.items()}


def fastest(name: str, given: Mapping[str, np.ndarray], jax: Worker, seconds: float) -> tuple[Measured, list[Measured]]:
    """Find JAX's best way to answer a case; return it, and all that were tried."""
    looped = CASES[name].time > 1
    ways = [f"{mode} {where}" for mode in MODES for where in (PROJECTIONS if looped else PROJECTIONS[:1])]
    tried = _raced([f"{way} unroll=1" for way in ways], name, given, jax, seconds)
    best = min(tried, key=_median)
    if looped:
        near = [way for way, v in zip(ways, tried, strict=True) if _median(v) <= NEAR * _median(best)]
        tried += _raced([f"{way} unroll={n}" for way in near for n in UNROLLINGS], name, given, jax, seconds)
    return min(tried, key=_median), tried


def _raced(names: list[str], case: str, given: Mapping[str, np.ndarray], jax: Worker, seconds: float) -> list[Measured]:
    variants = prepare(dict.fromkeys(names, jax), case, given, {})
    if failed := [v for v in variants if v.failure]:
        raise WorkerError(f"JAX, {case}, {failed[0].name}: {failed[0].failure}")
    take_turns(variants, seconds, rounds=3, rough=names)
    return variants


def _median(variant: Measured) -> float:
    return variant.spread.median


@dataclass
class Result:
    """One case: JAX's best, ours, and everything of JAX that was tried."""

    name: str
    best: Measured
    ours: Measured
    tried: list[Measured]
    error: float

    @property
    def row(self) -> Iterator[str]:
        """The cells of the table."""
        case = CASES[self.name]
        yield f"{self.name}: {case.title}"
        yield f"{_milliseconds(self.best)} {self.best.name}"
        if self.ours.failure:
            yield from "---"
        else:
            low, ratio, high = self.ours.ratio(self.best)
            yield _milliseconds(self.ours)
            missed = ", missed" if case.minimum and ratio < case.minimum else ""
            yield f"**{short(ratio)}** ({short(low)} to {short(high)}){missed}"
            yield f"{self.error:.1e}"
        yield f"{case.minimum:g}" if case.minimum else "-"

    @property
    def wrong(self) -> Iterator[str]:
        """What is wrong or missing."""
        if self.ours.failure:
            yield f"{self.name}: {self.ours.failure}"
        elif not self.error <= TOLERANCE:
            yield f"{self.name}: ours differs from JAX by {self.error:.1e}"
        for variant in self.tried:
            error = difference(variant, self.best)
            if not error <= TOLERANCE:
                yield f"{self.name}: JAX's {variant.name} differs from {self.best.name} by {error:.1e}"
        shapes = tuple(a.shape for a in self.best.outputs)
        if shapes != CASES[self.name].shapes:
            yield f"{self.name}: expected the shapes {CASES[self.name].shapes}, JAX's are {shapes}"

    @property
    def figures(self) -> dict[str, Any]:
        """All that was measured, as JSON; the choice among JAX's ways was made on `tried`."""
        tried = [v.figures for v in self.tried if v is not self.best]
        return {"ours": self.ours.figures, "jax": self.best.figures, "tried": tried, "difference": self.error}


def measure(name: str, tf: Worker, jax: Worker, seconds: float) -> Result:
    """Measure one case: first JAX's ways among themselves, then the best of them in turns with ours."""
    given = arrays(CASES[name])
    # The choice is made on timings of its own: the best of many noisy figures is biased.
    best, tried = fastest(name, given, jax, seconds / 4)
    (ours,) = prepare({"ours": tf}, name, given, {})
    take_turns([best] if ours.failure else [best, ours], seconds)
    for worker in (tf, jax):
        worker("drop")
    return Result(name, best, ours, tried, float("nan") if ours.failure else difference(ours, best))


def _milliseconds(variant: Measured) -> str:
    low, median, high = (short(1e3 * t) for t in variant.spread)
    return f"{median} ({low} to {high})"


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Measure, print the table, and return all figures and what went wrong."""
    if missing := missing_jax(options.jax_python):
        return {}, [missing]
    tf = Worker(sys.executable, "benchmarks._tf_jacobians")
    jax = Worker(options.jax_python, "benchmarks._jax_jacobians")
    try:
        host = machine({name: version for worker in (tf, jax) for name, version in worker("versions").items()})
        print("\n## Slices of Jacobians, float32\n\n" + ", ".join(f"{k} {v}" for k, v in host.items()))
        results = [measure(name, tf, jax, options.seconds) for name in options.cases]
    except WorkerError as error:
        return {}, [str(error)]
    finally:
        for worker in (tf, jax):
            worker.close()
    print(f"\n### Milliseconds a call, median (quartiles), and JAX time / our time (quartiles of {ROUNDS} rounds)\n")
    print(table(["case", "JAX", "ours", "JAX / ours", "largest difference", "required"], (r.row for r in results)))
    print(f"\ndifferences are relative to the array's largest element (allowed {TOLERANCE:.0e})")
    figures = {"machine": host, **{result.name: result.figures for result in results}}
    return figures, [line for result in results for line in result.wrong]


def _arguments(parser: argparse._ArgumentGroup) -> None:
    known = "; ".join(f"{name}: {case.title}" for name, case in CASES.items())
    parser.add_argument("--cases", type=_names, default=list(CASES), metavar="a,b,..", help=f"which of {known}")


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(CASES):
        raise argparse.ArgumentTypeError(f"no case named {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    return names


BENCHMARK = Benchmark("jacobians", "slices of Jacobians and matrices of single steps against JAX", _arguments, run)
