"""Fair timing on a noisy machine: the variants of a case take turns, and only one of them computes at a time."""

import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Quartiles, Worker, WorkerError

ROUNDS = 8
SLOW = 1.5
"""Seconds a call may take and still be repeated, for the variants that need no precise figure."""


@dataclass
class Measured:
    """One variant of one case: how long it took to be ready, its outputs, and its calls, grouped by round."""

    name: str
    worker: Worker
    first: float = 0.0
    estimate: float = 0.0
    outputs: list[np.ndarray] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)
    failure: str = ""

    @property
    def gave_up(self) -> bool:
        """Whether tracing went over its time limit."""
        return self.failure.startswith(TimeoutError.__name__)

    @property
    def spread(self) -> Quartiles:
        """Seconds a call, over all rounds."""
        return Quartiles.of(t for times in self.rounds for t in times)

    @property
    def figures(self) -> dict[str, Any]:
        """What was measured, as JSON."""
        if self.failure:
            return {"name": self.name, "failure": self.failure}
        calls = sum(map(len, self.rounds))
        return {"name": self.name, "first": self.first, "seconds": self.spread._asdict(), "calls": calls}

    def ratio(self, baseline: "Measured") -> Quartiles:
        """Return `baseline` time / own time: of the medians, with the quartiles of the rounds' ratios."""
        pairs = zip(baseline.rounds, self.rounds, strict=False)
        each = Quartiles.of(np.median(theirs) / np.median(own) for theirs, own in pairs)
        return each._replace(median=baseline.spread.median / self.spread.median)


def prepare(
    workers: Mapping[str, Worker], operator: str, arrays: Mapping[str, np.ndarray], limits: Mapping[str, float]
) -> list[Measured]:
    """Build every variant in its process; one that fails is kept, with the reason."""
    done = []
    with tempfile.TemporaryDirectory() as folder:
        given, results = str(Path(folder, "arrays.npz")), str(Path(folder, "outputs.npz"))
        np.savez(given, **arrays)
        for name, worker in workers.items():
            variant = Measured(name, worker)
            arguments = {"variant": name, "operator": operator, "arrays": given, "outputs": results}
            try:
                seconds = worker("prepare", limit=limits.get(name, 0.0), **arguments)
            except WorkerError as error:
                variant.failure = str(error)
            else:
                variant.first, variant.estimate = seconds["first"], seconds["second"]
                with np.load(results) as loaded:
                    variant.outputs = [loaded[key] for key in loaded.files]
            done.append(variant)
            print(f"  {operator} {name}: {variant.failure or f'ready in {variant.first:.1f} s'}", file=sys.stderr)
    return done


def take_turns(variants: Sequence[Measured], seconds: float, rounds: int = ROUNDS, rough: Collection[str] = ()) -> None:
    """Time all variants, for `seconds` each (at least once a round), in turns whose order alternates.

    Those named in `rough` are not repeated when they are slow.
    """
    for variant in variants:
        once = variant.name in rough and variant.estimate > SLOW
        variant.rounds = [[variant.estimate]] if once else []
    repeated = [variant for variant in variants if not variant.rounds]
    for turn in range(rounds):
        for variant in repeated if turn % 2 == 0 else reversed(repeated):
            times = max(1, min(2000, round(seconds / rounds / variant.estimate)))
            # The other process's idle threads spin for a moment before they sleep.
            time.sleep(0.02)
            variant.rounds.append(variant.worker("run", variant=variant.name, times=times))
            # The first estimate may have been disturbed, and would then cost calls in every round.
            variant.estimate = min(variant.estimate, float(np.median(variant.rounds[-1])))


def difference(variant: Measured, reference: Measured) -> float:
    """Return the largest difference of any output, relative to that output's largest element."""
    pairs = list(zip(variant.outputs, reference.outputs, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)
