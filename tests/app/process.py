"""The server as a process of its own, talked to through bare sockets, for tests of what clients can do to it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np

LIMIT = 16_000_000
# What a body at the limit may take for a while: itself in pieces and in one, arrays of its size, and objects parsed.
GROWTH = 6 * LIMIT
X = np.linspace(-1, 1, 20).reshape(1, 5, 4)
JSON = "application/json"
REQUEST = json.dumps({"model": "stacked-rnn", "inputs": {"x": X.tolist()}, "tangents": {"x": X.tolist()}}).encode()


class Server:
    """The process, its address and what it holds."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = probe.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        settings = {"MODELS": "stacked-rnn", "PORT": self.address[1], "LOG_LEVEL": "error"}
        # Compiled programs round differently, and what is compiled meanwhile would pass for a leak.
        settings |= {"MAX_BODY_MB": LIMIT / 1e6, "MAX_RESPONSE_MB": 1, "COMPILED_PROGRAMS": 0}
        environment = os.environ | {f"PUSHFORWARD_{name}": str(value) for name, value in settings.items()}
        self.process = subprocess.Popen([sys.executable, "-m", "app"], env=environment, stderr=subprocess.PIPE)
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()

    def wait(self):
        while True:
            assert self.process.poll() is None, self.log
            try:
                httpx2.get(f"{self.url}/health/ready").raise_for_status()
                return
            except httpx2.TransportError:
                time.sleep(0.2)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) in (0, -signal.SIGTERM)
        self.reader.join()
        self.process.stderr.close()

    def connect(self):
        return socket.create_connection(self.address, timeout=60)

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
def running():
    """A server that is warm, and whose log must hold no error in the end."""
    server = Server()
    try:
        server.wait()
        server.jvp()
        # Codecs' threads and XLA's are there from the first use on.
        for _ in range(4):
            httpx2.post(f"{server.url}/jvp", content=b" " * 10**6 + REQUEST, headers={"Content-Type": JSON})
        yield server
    finally:
        server.stop()
    # TensorFlow has errors of its own, about GPUs.
    assert not [line for line in server.log if re.search(rb"ERROR (app|uvicorn|asyncio)|Traceback", line)]


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
