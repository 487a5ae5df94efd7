"""What every benchmark shares: its declaration, measuring processes, statistics and markdown tables."""

import argparse
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Benchmark:
    """An entry of this package: a question, its command-line arguments, and what answers it."""

    name: str
    summary: str
    arguments: Callable[[argparse._ArgumentGroup], None]
    run: Callable[[argparse.Namespace], tuple[dict[str, Any], list[str]]]
    """Prints tables; returns all figures, as JSON, and a line for each thing that went wrong."""


class WorkerError(RuntimeError):
    """A measuring process could not be started, or a command failed in it."""


def missing_jax(python: Path) -> str:
    """Say what to do if JAX's interpreter is not there; return nothing if it is."""
    return (
        "" if python.exists() else f"no JAX environment at {python}: `make bench` makes it, --jax-python names another"
    )


class Worker:
    """A long-lived process that computes only while a command is being answered, so that two of them can take turns."""

    def __init__(self, python: str | Path, module: str) -> None:
        self._log = tempfile.TemporaryFile("w+")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [python, "-m", module],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer.

        Raises:
            WorkerError: if the command failed, or the process is gone (with the end of its log).
        """
        try:
            print(json.dumps([command, arguments]), file=self._process.stdin)
            line = self._process.stdout.readline() if self._process.stdout else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            raise WorkerError(f"the measuring process ended unexpectedly:\n{self._log.read()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End the process by ending its input."""
        self._process.communicate()


class Quartiles(NamedTuple):
    """A median and its spread."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Quartiles":
        """Compute the quartiles of at least one value."""
        return cls(*(float(q) for q in np.quantile(list(values), (0.25, 0.5, 0.75))))


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean, the right one for ratios."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table: the first column is text, the others are figures."""
    rules = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rules, *rows))


def short(figure: float) -> str:
    """Round to what the noise lets one believe."""
    return f"{figure:.2g}" if figure < 0.1 else f"{figure:.2f}" if figure < 100 else f"{figure:.0f}"


def machine(versions: Mapping[str, str]) -> dict[str, Any]:
    """Describe what the figures depend on: processor, usable cores, other work going on, software."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    software = {"python": platform.python_version(), **versions}
    return {"processor": _processor(), "cores": cores, "load before": round(os.getloadavg()[0], 1), **software}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
