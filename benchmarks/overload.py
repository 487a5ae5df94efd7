"""What becomes of a server that is asked for ten times as much as it can compute?

A server with a short queue is first asked by as many clients as the queue has places, without a pause: what it answers
then is its capacity. Then many more clients ask, ten times its capacity in all, whatever they are told: it should
answer as many requests as before, and refuse the rest at once. Then the first clients ask again. A refusal costs a
fraction of a millisecond, so what is asked for takes some: whoever computes less than it takes to say no can't win.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import _servers, _wrk
from benchmarks._harness import Benchmark, Quartiles, WorkerError, machine, short, table
from pushforward.wire import codecs

ROUNDS = 5
PLACES = 8
TIMES = 10
CLIENTS = 64
REQUESTS = 8
"""Of those of the other benchmark, as rows of each request here."""
KEPT = 0.8
"""Of its capacity, under overload and after it."""
HEAD = ("load", "answered/s", "p50, ms", "p99, ms", "refused/s", "broken", "/ capacity", "required")


def measure(target: _servers.Target, seconds: int) -> dict[str, list[_wrk.Load]]:
    """Measure capacity, overload and recovery in turns."""
    _wrk.load(target.request, PLACES, seconds)
    found: dict[str, list[_wrk.Load]] = {"capacity": [], "overload": [], "after it": []}
    for _ in range(ROUNDS):
        capacity = _wrk.load(target.request, PLACES, seconds)
        pause = CLIENTS / (TIMES * capacity.rate)
        overload = _wrk.load(target.request, CLIENTS, seconds, pause)
        # The very next request may find the last of them still being computed.
        found["after it"].append(_wrk.load(target.request, PLACES, seconds))
        found["capacity"].append(capacity)
        found["overload"].append(overload)
    return found


def rows(found: dict[str, list[_wrk.Load]]) -> Iterator[list[str]]:
    """Write the table: a row for each load, medians of all rounds."""
    for name, loads in found.items():
        answered, refused = (Quartiles.of(f(load) for load in loads) for f in (_rate, _refused))
        latencies = [
            short(1e3 * sorted(getattr(load, which) for load in loads)[ROUNDS // 2]) for which in ("p50", "p99")
        ]
        yield [
            name,
            f"{short(answered.median)} ({short(answered.low)} to {short(answered.high)})",
            *latencies,
            short(refused.median),
            str(sum(load.broken for load in loads)),
            "" if name == "capacity" else f"**{short(kept(found, name))}**",
            "" if name == "capacity" else f"{KEPT:g}",
        ]


def kept(found: dict[str, list[_wrk.Load]], name: str) -> float:
    """Return what a load was answered at, of the capacity: the median over the rounds."""
    pairs = zip(found[name], found["capacity"], strict=True)
    return Quartiles.of(load.rate / capacity.rate for load, capacity in pairs).median


def _rate(load: _wrk.Load) -> float:
    return load.rate


def _refused(load: _wrk.Load) -> float:
    return load.refused / load.seconds


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Measure, print a table for each format, and return all figures and what went wrong."""
    if missing := _wrk.missing_wrk():
        return {}, [missing]
    figures: dict[str, Any] = {"machine": machine({})}
    wrong: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as folder, _servers.ours(Path(folder), queue_size=str(PLACES)) as server:
            for codec in (codecs()[name] for name in ("json", "safetensors")):
                target = _servers.to_ours(server, "sequence", codec, REQUESTS)
                target.ask()
                found = measure(target, max(2, round(options.seconds)))
                print(f"\n### Overload, {codec.name}: medians of {ROUNDS} rounds (quartiles)\n")
                print(table(HEAD, rows(found)))
                figures[codec.name] = {name: [asdict(load) for load in loads] for name, loads in found.items()}
                wrong += [
                    f"{codec.name}, {name}: {kept(found, name):.2f} of the capacity, at least {KEPT} are required"
                    for name in ("overload", "after it")
                    if kept(found, name) < KEPT
                ]
                if broken := sum(load.broken for loads in found.values() for load in loads):
                    wrong.append(f"{codec.name}: {broken} requests were not answered at all")
                if not any(load.refused for load in found["overload"]):
                    wrong.append(f"{codec.name}: nothing was refused, so this was no overload")
                print(f"  {codec.name}: done", file=sys.stderr)
    except WorkerError as error:
        wrong.append(str(error))
    return figures, wrong


def _arguments(parser: argparse._ArgumentGroup) -> None:
    """There are none."""


BENCHMARK = Benchmark("overload", "a server that is asked for ten times what it can compute", _arguments, run)
