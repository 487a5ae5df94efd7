"""A server process of its own, for tests of what only a process shows."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    process: subprocess.Popen
    port: int

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def resident(self):
        """Bytes of memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1000

    @property
    def computed(self):
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ask it to stop; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)


@contextmanager
def serving(log=None, **settings) -> Iterator[Served]:
    """Serve in a process of its own until it listens; `serving(models="stacked-rnn", queue_size=8)`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {f"PUSHFORWARD_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**os.environ, **variables, "PUSHFORWARD_PORT": str(port)}
    process = subprocess.Popen([sys.executable, "-m", "app"], env=environment, stderr=log or subprocess.DEVNULL)
    served = Served(process, port)
    try:
        while True:
            assert process.poll() is None
            try:
                httpx2.get(f"{served.url}/health/ready").raise_for_status()
                break
            except httpx2.TransportError:
                time.sleep(0.2)
        yield served
        if process.poll() is None:
            served.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
