"""How many requests a second does the server answer, against a Tesseract with the same layer in JAX?

Both are real servers on the same cores, of which only one has work at a time; wrk sends one request again and again on
1 to 128 connections. Tesseract is asked for arrays in base64, the fastest that it offers over HTTP, and so are we; a
second column has our own binary format. Ours answers with the outputs and their tangents, Tesseract with the tangents
alone. Beside this stands what the functions behind the servers can do in process, one request at a time and many as
rows of one call: what is lost between the two is the cost of serving.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _servers, _wrk
from benchmarks._gru import WORKLOADS
from benchmarks._harness import ROOT, Benchmark, Quartiles, Worker, WorkerError, machine, short, table
from benchmarks._rounds import difference, prepare, take_turns

ROUNDS = 5
AT_ONCE = 32
"""Requests that are rows of one call, in process."""
CONNECTIONS = (1, 8, 32, 128)
SHORTEST = 3
"""Seconds of a round at least: with 128 connections a slow server answers each of them a few times only."""
TOLERANCE = 1e-5
"""Largest difference allowed, relative to the array's largest element: float32 along 64 steps."""
HEAD = ("connections, server", "requests/s", "p50, ms", "p99, ms", "errors", "/ Tesseract", "required")


@dataclass
class Served:
    """One server at one number of connections, round by round."""

    name: str
    rounds: list[_wrk.Load] = field(default_factory=list)

    @property
    def rate(self) -> Quartiles:
        """Requests per second."""
        return Quartiles.of(load.rate for load in self.rounds)

    @property
    def errors(self) -> int:
        """Requests that were not served, in all rounds."""
        return sum(load.errors for load in self.rounds)

    def latency(self, which: str) -> float:
        """Return the median over the rounds of `p50` or `p99`, in seconds."""
        return float(np.median([getattr(load, which) for load in self.rounds]))

    def ratio(self, baseline: "Served") -> Quartiles:
        """Return own rate / that of `baseline`: of the medians, with the quartiles of the rounds' ratios."""
        pairs = zip(self.rounds, baseline.rounds, strict=True)
        each = Quartiles.of(own.rate / theirs.rate for own, theirs in pairs)
        return each._replace(median=self.rate.median / baseline.rate.median)

    @property
    def figures(self) -> dict[str, Any]:
        """What was measured, as JSON."""
        return {"name": self.name, "rate": self.rate._asdict(), "rounds": [asdict(load) for load in self.rounds]}


def measure(targets: list[_servers.Target], connections: int, seconds: float) -> list[Served]:
    """Put the servers under load in turns, whose order alternates, after a round of each that does not count."""
    served = [Served(target.name) for target in targets]
    pairs = list(zip(targets, served, strict=True))
    for turn in range(-1, ROUNDS):
        for target, results in pairs if turn % 2 == 0 else reversed(pairs):
            load = _wrk.load(target.request, connections, max(SHORTEST, round(seconds)))
            # wrk leaves in the middle of its last requests; once this one is answered the server is done with them.
            target.ask()
            if turn >= 0:
                results.rounds.append(load)
    for results in served:
        print(f"  {connections} connections, {results.name}: {short(results.rate.median)}/s", file=sys.stderr)
    return served


def limits(workload: str, jax: Worker, tf: Worker, seconds: float) -> dict[str, dict[str, Quartiles]]:
    """Measure the functions in process: requests per second by server, one at a time and `AT_ONCE` in one call.

    Raises:
        WorkerError: if one fails, or they disagree.
    """
    found: dict[str, dict[str, Quartiles]] = {}
    for title, requests in (("one by one", 1), (f"{AT_ONCE} in one call", AT_ONCE)):
        variants = prepare({"Tesseract": jax, "ours": tf}, workload, WORKLOADS[workload].arrays(requests), {})
        if failed := [variant for variant in variants if variant.failure]:
            raise WorkerError(f"{workload} in process, {failed[0].name}: {failed[0].failure}")
        error = difference(variants[1], variants[0])
        if not error <= TOLERANCE:
            raise WorkerError(f"{workload} in process: ours differs from Tesseract's by {error:.1e}")
        take_turns(variants, seconds)
        # The quickest calls come last: a rate is the inverse of a time.
        rates = {v.name: Quartiles(*(requests / t for t in reversed(v.spread))) for v in variants}
        found[title] = rates
    return found


def rows(
    served: Mapping[int, list[Served]], limits: Mapping[str, Mapping[str, Quartiles]], minimum: Mapping[int, float]
) -> Iterator[list[str]]:
    """Write the table of a workload: for each number of connections Tesseract and ours, then the limits in process."""
    for connections, results in served.items():
        for result in results:
            latencies = [short(1e3 * result.latency(which)) for which in ("p50", "p99")]
            row = [f"{connections}, {result.name}", _spread(result.rate), *latencies, str(result.errors)]
            yield row + (["", ""] if result is results[0] else _compared(result, results[0], minimum.get(connections)))
    for title, rates in limits.items():
        for name, rate in rates.items():
            ratio = "" if name == "Tesseract" else f"**{short(rate.median / rates['Tesseract'].median)}**"
            yield [f"in process, {title}, {name}", _spread(rate), "", "", "", ratio, ""]


def _compared(result: Served, baseline: Served, minimum: float | None) -> list[str]:
    low, ratio, high = result.ratio(baseline)
    missed = ", missed" if minimum and ratio < minimum else ""
    return [f"**{short(ratio)}** ({short(low)} to {short(high)}){missed}", f"{minimum:g}" if minimum else "-"]


def _spread(rate: Quartiles) -> str:
    return f"{short(rate.median)} ({short(rate.low)} to {short(rate.high)})"


def _disagreements(workload: str, targets: list[_servers.Target]) -> list[str]:
    reference = targets[0].ask()
    wrong = []
    for target in targets[1:]:
        tangents = target.ask()
        if tangents.shape != reference.shape:
            wrong.append(f"{workload}, {target.name}: shape {tangents.shape}, Tesseract's is {reference.shape}")
        elif not (error := np.abs(tangents - reference).max() / np.abs(reference).max()) <= TOLERANCE:
            wrong.append(f"{workload}, {target.name}: differs from Tesseract by {error:.1e}")
    return wrong


def _errors(workload: str, served: Mapping[int, list[Served]]) -> list[str]:
    every = [(connections, result) for connections, results in served.items() for result in results]
    return [
        f"{workload}, {c} connections, {result.name}: {result.errors} errors" for c, result in every if result.errors
    ]


def _draw(figures: Mapping[str, Any], path: Path, python: Path) -> None:
    command = [str(python), "-m", "benchmarks._plot", str(path.resolve())]
    drawn = subprocess.run(command, input=json.dumps(figures), cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if drawn.returncode:
        raise WorkerError(f"the plot can't be drawn:\n{drawn.stderr[-2000:]}")


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Measure, print the tables, draw the plot, and return all figures and what went wrong."""
    python: Path = options.tesseract_python
    if missing := [line for line in (_wrk.missing_wrk(), _servers.missing_tesseract(python)) if line]:
        return {}, missing
    figures, wrong = {}, []
    try:
        with ExitStack() as stack:
            tf = stack.enter_context(closing(Worker(sys.executable, "benchmarks._tf_service")))
            jax = stack.enter_context(closing(Worker(python, "benchmarks._jax_service")))
            figures["machine"] = host = machine({**tf("versions"), **jax("versions")})
            print("\n## Requests, float32\n\n" + ", ".join(f"{k} {v}" for k, v in host.items()))
            compute = {name: limits(name, jax, tf, options.seconds) for name in WORKLOADS}
        with ExitStack() as stack:
            archives, leavings = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
            ours = stack.enter_context(_servers.ours(archives))
            theirs = stack.enter_context(_servers.theirs(python, leavings))
            for name, workload in WORKLOADS.items():
                targets = _servers.targets(ours, theirs, name)
                wrong += _disagreements(name, targets)
                served = {c: measure(targets, c, options.seconds) for c in options.connections}
                wrong += _errors(name, served)
                print(f"\n### {workload.title}: medians of {ROUNDS} rounds (quartiles)\n")
                print(table(HEAD, rows(served, compute[name], workload.minimum)))
                figures[name] = {
                    "served": {c: [result.figures for result in results] for c, results in served.items()},
                    "in process": {how: {k: q._asdict() for k, q in r.items()} for how, r in compute[name].items()},
                }
        if options.plot:
            _draw(figures, options.plot, python)
    except WorkerError as error:
        wrong.append(str(error))
    return figures, wrong


def _arguments(parser: argparse._ArgumentGroup) -> None:
    every = ",".join(map(str, CONNECTIONS))
    parser.add_argument("--connections", type=_counts, default=CONNECTIONS, metavar=every, help="how many at once")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw requests/s against connections, as PNG")
    python = ROOT / ".venv-tesseract/bin/python"
    parser.add_argument(
        "--tesseract-python", type=Path, default=python, help="the interpreter beside tesseract-runtime"
    )


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"a number of connections is 1 or more, got {text}")
    return counts


BENCHMARK = Benchmark("service", "requests per second over HTTP against a Tesseract in JAX", _arguments, run)
