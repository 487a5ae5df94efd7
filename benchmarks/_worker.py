"""The inside of a measuring process: builds programs, times them one command at a time, and needs nothing but NumPy."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Program = Callable[[], Sequence[Any]]
"""Computes once and returns the outputs, ready to be read; everything it needs is already on the device."""
Build = Callable[[str, str, Arrays], Program]
"""`build(variant, operator, arrays)`; compilation may happen at the first call of the program."""


def _too_late(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError("gave up: tracing took too long")


def _timed(program: Program) -> tuple[float, Sequence[Any]]:
    start = time.perf_counter()
    outputs = program()
    return time.perf_counter() - start, outputs


class _Bench:
    """The programs of one process; each public method is a command."""

    def __init__(self, build: Build, versions: Mapping[str, str]) -> None:
        self._build, self._versions = build, versions
        self._programs: dict[str, Program] = {}

    def versions(self) -> Mapping[str, str]:
        """Say which software computes here."""
        return self._versions

    def prepare(self, variant: str, operator: str, arrays: str, outputs: str, limit: float) -> dict[str, float]:
        """Build a program, store its outputs, and time its first call (with tracing and compilation) and its second."""
        with np.load(arrays) as loaded:
            given = dict(loaded)
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            program = self._build(variant, operator, given)
            results = program()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        first = time.perf_counter() - start
        np.savez(outputs, *map(np.asarray, results))
        del results
        second, _ = _timed(program)
        self._programs[variant] = program
        return {"first": first, "second": second}

    def run(self, variant: str, times: int) -> list[float]:
        """Time `times` calls one by one, after an untimed one that refills the caches when the calls are short."""
        program = self._programs[variant]
        if times > 1:
            program()
        return [_timed(program)[0] for _ in range(times)]

    def drop(self) -> None:
        """Forget all programs and what they hold."""
        self._programs.clear()


def serve(build: Build, versions: Mapping[str, str], lines: Iterable[str] = sys.stdin) -> None:
    """Answer commands, one line of JSON each, until the input ends."""
    # Libraries print to standard output, too; the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, _too_late)
    bench = _Bench(build, versions)
    for line in lines:
        command, arguments = json.loads(line)
        try:
            answer = {"value": getattr(bench, command)(**arguments)}
        except Exception as error:  # the caller decides whether a variant that fails matters
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
