"""How fast are the JVP and the VJP of one GRU layer, against JAX and against stock TensorFlow?

Both sides compute the same function of the same float32 arrays: x (batch, time, features) -> y (batch, time, units)
with gates in Keras order, reset after, tanh and sigmoid, from a given initial state. The transposes to and from
time-major order are part of it. The JVP takes a tangent of x and returns y and its tangent; the VJP takes a
cotangent of y and returns y and the cotangents of x, the initial state and the three weights.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks._harness import Benchmark, Worker, WorkerError, geometric_mean, machine, missing_jax, short, table
from benchmarks._rounds import ROUNDS, Measured, difference, prepare, take_turns

SIZES = ((1, 100, 8, 64), (8, 64, 4, 32), (128, 64, 1, 32), (32, 100, 16, 256), (1, 200, 32, 512), (64, 50, 64, 1024))
"""(batch, time, features, units)"""

Results = dict[tuple[int, ...], list[Measured]]
SHAPE = "batch,time,features,units"
JAX = ("unroll=1", "unroll=2", "unroll=4", "unroll=8")
OURS = ("ours, XLA", "ours, graph")
STOCK = {
    "jvp": ("stock double VJP, XLA", "stock double VJP, graph", "stock unrolled, graph", "stock eager"),
    "vjp": ("stock, XLA", "stock, graph"),
}
TRACING_LIMIT = {"stock unrolled, graph": 60.0}
TOLERANCE = 1e-4
"""Largest difference allowed, relative to an array's largest element: float32 sums of up to batch x time terms."""


def arrays(size: Sequence[int]) -> dict[str, np.ndarray]:
    """Return sequence, state, weights, tangent and cotangent of the magnitudes met in trained models."""
    batch, time, features, units = size
    random = np.random.default_rng(units)
    made = {
        "x": random.normal(size=(batch, time, features)),
        "dx": random.normal(size=(batch, time, features)),
        "dy": random.normal(size=(batch, time, units)),
        "h0": random.normal(size=(batch, units)) * 0.5,
        "kernel": random.normal(size=(features, 3 * units)) / np.sqrt(features),
        "recurrent": random.normal(size=(units, 3 * units)) / np.sqrt(units),
        "bias": random.normal(size=(2, 3 * units)) * 0.1,
    }
    return {name: value.astype(np.float32) for name, value in made.items()}


def measure(
    operator: str, size: Sequence[int], tf: Worker, jax: Worker | None, options: argparse.Namespace
) -> list[Measured]:
    """Measure one operator at one size; JAX, with its fastest unrolling, comes first."""
    print(f"{operator} at {size}", file=sys.stderr)
    names = OURS if options.no_stock else (*OURS, *STOCK[operator])
    workers = dict.fromkeys(names, tf) | (dict.fromkeys(JAX, jax) if jax else {})
    variants = prepare(workers, operator, arrays(size), TRACING_LIMIT)
    chosen, rivals = [v for v in variants if v.worker is tf], [v for v in variants if v.worker is jax]
    if failed := [v for v in rivals if v.failure]:
        raise WorkerError(f"JAX, {failed[0].name}: {failed[0].failure}")
    if rivals:
        take_turns(rivals, options.seconds / 4, rounds=3)
        # The choice is made on timings of its own: the best of four noisy figures is biased.
        chosen.insert(0, min(rivals, key=lambda v: v.spread.median))
    take_turns([v for v in chosen if not v.failure], options.seconds, rough=STOCK[operator])
    for worker in {*workers.values()}:
        worker("drop")
    return chosen


def show(operator: str, results: Results, jax: bool) -> None:
    """Print the tables of one operator."""
    head = [SHAPE, *(v.name for v in next(iter(results.values())) if v.name not in JAX)]
    if jax:
        print(
            f"\n### {operator.upper()}: JAX time / our time (quartiles of {ROUNDS} rounds); above 1: faster than JAX\n"
        )
        print(table(head, [*_rows(results, _ratios), ["geometric mean", *_means(results)]]))
        head.insert(1, "JAX")
    print(f"\n### {operator.upper()}: milliseconds a call, median (quartiles)\n")
    print(table(head, _rows(results, lambda variants: map(_milliseconds, variants))))
    print(f"\n### {operator.upper()}: seconds to the first result (trace, compile, run)\n")
    print(table(head, _rows(results, lambda variants: map(_first, variants))))


def _rows(results: Results, cells: Callable[[list[Measured]], Iterable[str]]) -> list[list[str]]:
    return [[",".join(map(str, size)), *cells(variants)] for size, variants in results.items()]


def _ratios(variants: list[Measured]) -> Iterator[str]:
    for variant in variants[1:]:
        if variant.failure:
            yield "-"
            continue
        low, ratio, high = variant.ratio(variants[0])
        spread = "once" if len(variant.rounds) == 1 else f"{short(low)} to {short(high)}"
        yield f"**{short(ratio)}** ({spread})"


def _means(results: Results) -> Iterator[str]:
    for column in range(1, len(next(iter(results.values())))):
        pairs = [(variants[column], variants[0]) for variants in results.values() if not variants[column].failure]
        mean = f"**{short(geometric_mean(own.ratio(jax).median for own, jax in pairs))}**" if pairs else "-"
        yield mean if len(pairs) in (0, len(results)) else f"{mean} of {len(pairs)}"


def _milliseconds(variant: Measured) -> str:
    if variant.failure:
        return "-"
    low, median, high = (short(1e3 * t) for t in variant.spread)
    which = f" {variant.name}" if variant.name in JAX else ""
    return f"{median} (once)" if len(variant.rounds) == 1 else f"{median} ({low} to {high}){which}"


def _first(variant: Measured) -> str:
    if variant.gave_up:
        return f"over {TRACING_LIMIT[variant.name]:.0f}"
    return "-" if variant.failure else f"{variant.first:.1f}"


def check(operator: str, results: Results) -> tuple[list[float], list[str]]:
    """Compare every variant with the first that worked; return all differences and what is wrong or missing."""
    differences, wrong = [], []
    for size, variants in results.items():
        worked = [v for v in variants if not v.failure]
        for variant in worked[1:]:
            error = difference(variant, worked[0])
            differences.append(error)
            if not error <= TOLERANCE:
                wrong.append(f"{operator} at {size}: {variant.name} differs from {worked[0].name} by {error:.1e}")
        failed = [v for v in variants if v.failure and not v.gave_up]
        wrong += [f"{operator} at {size}: {v.name}: {v.failure}" for v in failed]
    return differences, wrong


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Measure, print the tables, and return all figures and what went wrong."""
    if not options.no_jax and (missing := missing_jax(options.jax_python)):
        return {}, [f"{missing}, --no-jax leaves it out"]
    tf = Worker(sys.executable, "benchmarks._tf_kernels")
    jax = None if options.no_jax else Worker(options.jax_python, "benchmarks._jax_kernels")
    workers = [worker for worker in (tf, jax) if worker]
    try:
        host = machine({name: version for worker in workers for name, version in worker("versions").items()})
        print("\n## One GRU layer, float32\n\n" + ", ".join(f"{k} {v}" for k, v in host.items()))
        figures, wrong, differences = {"machine": host}, [], []
        for operator in (options.only,) if options.only else STOCK:
            results = {SIZES[i]: measure(operator, SIZES[i], tf, jax, options) for i in options.sizes}
            show(operator, results, jax is not None)
            for total, part in zip((differences, wrong), check(operator, results), strict=True):
                total += part
            figures[operator] = {",".join(map(str, s)): [v.figures for v in vs] for s, vs in results.items()}
    except WorkerError as error:
        return {}, [str(error)]
    finally:
        for worker in workers:
            worker.close()
    worst = f"{max(differences, default=0):.1e} of the array's largest element (allowed {TOLERANCE:.0e})"
    print(f"\nresults checked: {len(differences)} comparisons, largest difference {worst}")
    return figures, wrong


def _arguments(parser: argparse._ArgumentGroup) -> None:
    sizes = "; ".join(f"{i}: {','.join(map(str, size))}" for i, size in enumerate(SIZES))
    parser.add_argument("--sizes", type=_indices, default=range(len(SIZES)), metavar="0,1,..", help=f"which of {sizes}")
    parser.add_argument("--only", choices=tuple(STOCK), help="one operator")
    parser.add_argument("--no-stock", action="store_true", help="leave out stock TensorFlow: quick comparisons")
    parser.add_argument("--no-jax", action="store_true", help="leave out JAX")


def _indices(text: str) -> list[int]:
    indices = [int(part) for part in text.split(",")]
    if any(not 0 <= i < len(SIZES) for i in indices):
        raise argparse.ArgumentTypeError(f"sizes are numbered 0 to {len(SIZES) - 1}, got {text}")
    return indices


BENCHMARK = Benchmark("kernels", "JVP and VJP of one GRU layer against JAX and stock TensorFlow", _arguments, run)
