"""The two servers of the load benchmark, as real processes, and what is sent to them."""

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx2
import numpy as np

from benchmarks._gru import WORKLOADS
from benchmarks._harness import ROOT, WorkerError
from benchmarks._wrk import PATIENCE_S, Request
from pushforward.wire import Codec, Message, safetensors
from pushforward.wire import json as plain

START_S = 120
STOP_S = 30


def missing_tesseract(python: Path) -> str:
    """Say what to do if Tesseract's environment is not there; return nothing if it is."""
    there = python.with_name("tesseract-runtime").exists()
    return "" if there else f"no Tesseract beside {python}: `make bench` makes it, --tesseract-python names another"


class Server:
    """A server on a free port of this machine, from its start to its end: ready inside of `with`, gone after it.

    Args:
        command: what starts it, given the port.
        ready: the path that answers 200 once it serves.
        environment: variables to set for it.
    """

    def __init__(self, command: Callable[[int], list[str]], ready: str, environment: Mapping[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._command, self._ready = command(port), ready
        self._environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", **environment}

    def __enter__(self) -> "Server":
        """Start the process and wait until it serves.

        Raises:
            WorkerError: if it ends or is not ready in time (with the end of its log).
        """
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT
        )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process."""
        self._stop()

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < end:
            try:
                if httpx2.get(self.url + self._ready).status_code == 200:
                    return
            except httpx2.TransportError:
                pass  # It does not listen yet.
            time.sleep(0.2)
        self._log.seek(0)
        raise WorkerError(f"{' '.join(self._command)} was not ready within {START_S} s:\n{self._log.read()[-2000:]}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def ours(folder: Path, **settings: str) -> Server:
    """Describe our server, with the models of the workloads as archives in a folder, and further settings.

    Raises:
        WorkerError: if they can't be saved.
    """
    saved = subprocess.run(
        [sys.executable, "-m", "benchmarks._tf_service", folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if saved.returncode:
        raise WorkerError(f"the models can't be saved:\n{saved.stderr[-2000:]}")
    given = {"watch_dir": str(folder), "models": "none", **settings}
    environment = {f"PUSHFORWARD_{name.upper()}": value for name, value in given.items()}
    return Server(lambda port: [sys.executable, "-m", "app", "--port", str(port)], "/health/ready", environment)


def theirs(python: Path, folder: Path) -> Server:
    """Describe Tesseract's server; it leaves a folder per request, which go into the one given."""
    environment = {
        "TESSERACT_API_PATH": str(ROOT / "benchmarks/_tesseract_api.py"),
        "TESSERACT_OUTPUT_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    runtime = str(python.with_name("tesseract-runtime"))
    return Server(lambda port: [runtime, "serve", "--port", str(port)], "/health", environment)


@dataclass(frozen=True)
class Target:
    """A request to one of the servers, and how the tangents in its answer are read."""

    name: str
    request: Request
    read: Callable[[bytes], np.ndarray]

    def ask(self) -> np.ndarray:
        """Send the request once and return the tangents.

        Raises:
            WorkerError: if the server does not answer with 200.
        """
        headers = {"Content-Type": self.request.content_type, "Accept": self.request.accept}
        answer = httpx2.post(self.request.url, content=self.request.body, headers=headers, timeout=PATIENCE_S)
        if answer.status_code != 200:
            raise WorkerError(f"{self.name}: {self.request.url} answered {answer.status_code}: {answer.text[:500]}")
        return self.read(answer.content)


def to_ours(server: Server, workload: str, codec: Codec, requests: int = 1) -> Target:
    """Make a request for our server, of the rows of so many, in one of its formats; JSON with arrays in base64."""
    arrays = WORKLOADS[workload].arrays(requests)
    envelope = {"model": workload, **({"encoding": "base64"} if codec is plain.CODEC else {})}
    body = codec.encode(Message(envelope, {"inputs.x": arrays["x"], "tangents.x": arrays["dx"]}))

    def read(answer: bytes) -> np.ndarray:
        return codec.decode(answer).arrays["tangents.y"]

    return Target(f"ours, {codec.name}", Request(f"{server.url}/jvp", body, codec.media_type, codec.media_type), read)


def to_theirs(server: Server, workload: str) -> Target:
    """Make the request for Tesseract, whose JSON has arrays in base64 if `Accept` asks for it."""
    arrays = {name: _tesseract_array(array) for name, array in WORKLOADS[workload].arrays().items()}
    request = {
        "inputs": {"x": arrays["x"]},
        "jvp_inputs": ["x"],
        "jvp_outputs": [workload],
        "tangent_vector": {"x": arrays["dx"]},
    }

    def read(answer: bytes) -> np.ndarray:
        array = json.loads(answer)[workload]
        data = base64.b64decode(array["data"]["buffer"])
        return np.frombuffer(data, array["dtype"]).reshape(array["shape"])

    url, body = f"{server.url}/jacobian_vector_product", json.dumps(request).encode()
    return Target("Tesseract", Request(url, body, "application/json", "application/json+base64"), read)


def _tesseract_array(array: np.ndarray) -> dict[str, object]:
    data = {"buffer": base64.b64encode(array.tobytes()).decode(), "encoding": "base64"}
    return {"object_type": "array", "shape": array.shape, "dtype": array.dtype.name, "data": data}


def targets(ours: Server, theirs: Server, workload: str) -> list[Target]:
    """List the requests to compare: Tesseract's, ours with the same kind of body, ours in binary."""
    return [
        to_theirs(theirs, workload),
        *(to_ours(ours, workload, codec) for codec in (plain.CODEC, safetensors.CODEC)),
    ]
