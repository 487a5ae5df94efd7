"""The server as a process of its own, talked to through bare sockets, for tests of what clients can do to it."""

import json
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import pytest

from tests.app.serving import Served, serving

LIMIT = 16_000_000
# What a body at the limit may take for a while: itself in pieces and in one, arrays of its size, and objects parsed.
GROWTH = 6 * LIMIT
X = np.linspace(-1, 1, 20).reshape(1, 5, 4)
JSON = "application/json"
REQUEST = json.dumps({"model": "stacked-rnn", "inputs": {"x": X.tolist()}, "tangents": {"x": X.tolist()}}).encode()


@dataclass(frozen=True)
class Server(Served):
    """The process, and what is told through sockets of its own."""

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def jvp(self):
        response = httpx2.post(f"{self.url}/jvp", content=REQUEST, headers={"Content-Type": JSON})
        assert response.status_code == 200, response.text
        return response.json()["tangents"]["y"]

    def memory(self, kind="VmRSS"):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{kind}:\s+(\d+) kB", status)[1]) * 1024

    def forget_peak(self):
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def handles(self):
        """Open files and threads."""
        return tuple(len(os.listdir(f"/proc/{self.process.pid}/{kind}")) for kind in ("fd", "task"))


@contextmanager
def running(log):
    """A server that is warm, and whose log, a file's path, must hold no error in the end."""
    # Compiled programs round differently, and what is compiled meanwhile would pass for a leak.
    settings = {"max_body_mb": LIMIT / 1e6, "max_response_mb": 1, "compiled_programs": 0, "log_level": "error"}
    with log.open("wb") as written, serving(written, models="stacked-rnn", **settings) as served:
        server = Server(served.process, served.port)
        server.jvp()
        # Codecs' threads and XLA's are there from the first use on.
        for _ in range(4):
            httpx2.post(f"{server.url}/jvp", content=b" " * 10**6 + REQUEST, headers={"Content-Type": JSON})
        yield server
        assert server.stop() == 0
    # TensorFlow has errors of its own, about GPUs.
    errors = re.compile(rb"ERROR (app|uvicorn|asyncio)|Traceback")
    assert not [line for line in log.read_bytes().splitlines() if errors.search(line)]


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture
def target(process):
    """The same for all tests of a file, and unharmed after each."""
    with unharmed(process):
        yield process


@contextmanager
def unharmed(server):
    """Check that the server is as it was afterwards: in memory, and in what it answers."""
    wanted, before = server.jvp(), server.memory()
    server.forget_peak()
    yield server
    assert server.memory("VmHWM") - before < GROWTH
    assert server.jvp() == wanted


def head(length, media_type=JSON, *headers, path="/jvp"):
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {media_type}", size, *headers, "", ""]
    ).encode()


def answer(connection):
    """Status and body of one answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (piece := connection.recv(2**16))
        assert piece, received
    start, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", start.lower())
    while length is None or len(body) < int(length[1]):
        body += (piece := connection.recv(2**16))
        if not piece:
            break
    return int(start.split()[1]), body


def send(server, content, media_type=JSON, *headers, path="/jvp"):
    with server.connect() as connection:
        connection.sendall(head(len(content), media_type, *headers, path=path) + content)
        return answer(connection)
