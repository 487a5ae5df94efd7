"""What becomes of a server that is asked for ten times as much as it can compute?

A server with a short queue is first asked by as many clients as the queue has places, without a pause: what it answers
then is its capacity. Then many more clients ask, ten times its capacity in all, whatever they are told: it should
answer as many requests as before, and refuse the rest at once. Then the first clients ask again. The request is small
and takes a while to compute: the load generator runs on the same cores, and a refusal costs a fraction of a
millisecond, so who asks for less than that gets less under overload.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _servers, _wrk
from benchmarks._harness import Benchmark, Quartiles, WorkerError, machine, short, table
from pushforward.wire import Codec, Message, codecs

ROUNDS = 5
PLACES = 8
TIMES = 10
CLIENTS = 64
STEPS = 800
KEPT = 0.8
"""Of its capacity, under overload and after it."""
HEAD = ("load", "answered/s", "p50, ms", "p99, ms", "refused/s", "broken", "processor, ms", "/ capacity", "required")


@dataclass(frozen=True)
class Turn:
    """A load, and the seconds of processor time that the server took meanwhile."""

    load: _wrk.Load
    processor_s: float

    @property
    def each(self) -> float:
        """Processor time for each answer, with what refusals took."""
        return self.processor_s / (self.load.answers - self.load.refused)


def request(server: _servers.Server, codec: Codec) -> _wrk.Request:
    """Make a small request that takes a while: a slice of a Jacobian over many steps."""
    x = np.random.default_rng(0).standard_normal((1, STEPS, 4)).astype(np.float32)
    envelope = {"model": "sequence", "of": "y[-1]", "wrt": "x[0]", "encoding": "base64"}
    body = codec.encode(Message(envelope, {"inputs.x": x}))
    return _wrk.Request(f"{server.url}/jacobian", body, codec.media_type, codec.media_type)


def measure(server: _servers.Server, request: _wrk.Request, seconds: int) -> dict[str, list[Turn]]:
    """Measure capacity, overload and recovery in turns."""

    def turn(clients: int, pause_s: float = 0.0) -> Turn:
        before = server.processor_s
        load = _wrk.load(request, clients, seconds, pause_s)
        return Turn(load, server.processor_s - before)

    turn(PLACES)
    found: dict[str, list[Turn]] = {"capacity": [], "overload": [], "after it": []}
    for _ in range(ROUNDS):
        capacity = turn(PLACES)
        found["capacity"].append(capacity)
        found["overload"].append(turn(CLIENTS, CLIENTS / (TIMES * capacity.load.rate)))
        # The very next request may find the last of them still being computed.
        found["after it"].append(turn(PLACES))
    return found


def rows(found: dict[str, list[Turn]]) -> Iterator[list[str]]:
    """Write the table: a row for each load, medians of all rounds."""
    for name, turns in found.items():
        answered = Quartiles.of(turn.load.rate for turn in turns)
        latencies = (np.median([getattr(turn.load, which) for turn in turns]) for which in ("p50", "p99"))
        yield [
            name,
            f"{short(answered.median)} ({short(answered.low)} to {short(answered.high)})",
            *(short(1e3 * float(latency)) for latency in latencies),
            short(Quartiles.of(turn.load.refused / turn.load.seconds for turn in turns).median),
            str(sum(turn.load.broken for turn in turns)),
            short(1e3 * Quartiles.of(turn.each for turn in turns).median),
            "" if name == "capacity" else f"**{short(kept(found, name))}**",
            "" if name == "capacity" else f"{KEPT:g}",
        ]


def kept(found: dict[str, list[Turn]], name: str) -> float:
    """Return what a load was answered at, of the capacity: the median over the rounds."""
    pairs = zip(found[name], found["capacity"], strict=True)
    return Quartiles.of(turn.load.rate / capacity.load.rate for turn, capacity in pairs).median


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Measure, print a table for each format, and return all figures and what went wrong."""
    if missing := _wrk.missing_wrk():
        return {}, [missing]
    figures: dict[str, Any] = {"machine": machine({})}
    wrong: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as folder, _servers.ours(Path(folder), queue_size=str(PLACES)) as server:
            for codec in (codecs()[name] for name in ("json", "safetensors")):
                found = measure(server, request(server, codec), max(2, round(options.seconds)))
                print(f"\n### Overload, {codec.name}: medians of {ROUNDS} rounds (quartiles)\n")
                print(table(HEAD, rows(found)))
                figures[codec.name] = {name: [asdict(turn) for turn in turns] for name, turns in found.items()}
                wrong += [
                    f"{codec.name}, {name}: {kept(found, name):.2f} of the capacity, at least {KEPT} are required"
                    for name in ("overload", "after it")
                    if kept(found, name) < KEPT
                ]
                if broken := sum(turn.load.broken for turns in found.values() for turn in turns):
                    wrong.append(f"{codec.name}: {broken} requests were not answered at all")
                if not any(turn.load.refused for turn in found["overload"]):
                    wrong.append(f"{codec.name}: nothing was refused, so this was no overload")
                print(f"  {codec.name}: done", file=sys.stderr)
    except WorkerError as error:
        wrong.append(str(error))
    return figures, wrong


def _arguments(parser: argparse._ArgumentGroup) -> None:
    """There are none."""


BENCHMARK = Benchmark("overload", "a server that is asked for ten times what it can compute", _arguments, run)
