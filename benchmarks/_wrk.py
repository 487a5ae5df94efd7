"""The load generator: wrk, which costs next to nothing itself, sends one request again and again."""

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness import WorkerError

SCRIPT = Path(__file__).with_name("_wrk.lua")
PATIENCE_S = 60
"""A slow answer is a slow answer: wrk would count it as an error, after two seconds, as lost."""


@dataclass(frozen=True)
class Load:
    """What came back from a server under load.

    Attributes:
        answers: how many came, of any status.
        seconds: how long it took.
        p50: half of the answers came within these seconds.
        p99: 99 of 100 answers did.
        refused: answers whose status tells of an error.
        broken: requests without an answer: not connected, not sent, not read or out of time.
    """

    answers: int
    seconds: float
    p50: float
    p99: float
    refused: int
    broken: int

    @classmethod
    def parse(cls, report: str) -> "Load":
        """Read what wrk printed with our script.

        Raises:
            WorkerError: if it printed something else.
        """
        line = report.rstrip().rpartition("\n")[2]
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise WorkerError(
                f"expected a last line of JSON with {', '.join(cls.__annotations__)} from wrk, got {line!r}"
            ) from error

    @property
    def errors(self) -> int:
        """Requests that were not served."""
        return self.refused + self.broken

    @property
    def rate(self) -> float:
        """Requests served per second."""
        return (self.answers - self.refused) / self.seconds


def missing_wrk() -> str:
    """Say what to do if wrk is not there; return nothing if it is."""
    return "" if shutil.which("wrk") else "no wrk on the path: `apt-get install wrk` brings it"


@dataclass(frozen=True)
class Request:
    """A POST request, always the same."""

    url: str
    body: bytes
    content_type: str
    accept: str


def load(request: Request, connections: int, seconds: int, pause_s: float = 0.0) -> Load:
    """Send a request over and over, on that many connections, for so many seconds, with a pause after each answer.

    Raises:
        WorkerError: if wrk fails, as when nobody listens.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(request.body)
        file.flush()
        options = {"threads": 1, "connections": connections, "duration": f"{seconds}s", "timeout": f"{PATIENCE_S}s"}
        command = ["wrk", *(f"--{name}={value}" for name, value in options.items()), f"--script={SCRIPT}"]
        given = [request.url, "--", file.name, request.content_type, request.accept, str(round(1e3 * pause_s))]
        done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkerError(f"wrk against {request.url} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return Load.parse(done.stdout)
