"""A fake engine, for tests of the shell of the server without TensorFlow; the real server with its built-in models."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.calls import Answer, Call, Streamed
from app.main import create_app
from app.settings import Settings
from pushforward.errors import DeadlineExceeded, Overloaded, UnknownModel
from pushforward.wire import Message, codecs
from tests.app.process import process, target  # noqa: F401  # fixtures


@dataclass(frozen=True)
class FakeOperator:
    name: str
    request_fields: tuple[str, ...]
    response_fields: tuple[str, ...]
    required: tuple[str, ...]
    summary: str = "A fake"
    description: str = "Doubles what it gets."
    options: dict[str, Any] = field(
        default_factory=lambda: {
            "outputs": {"type": "array", "items": {"type": "string"}, "description": "Which outputs."}
        }
    )

    answer_members: dict[str, Any] = field(default_factory=dict)

    def example(self, model: Any) -> dict[str, Any]:
        return {"model": model.name} | {name: {"x": [[[0.5], [1.0]]]} for name in self.request_fields}


@dataclass
class FakeEngine:
    """Answers `echo` with twice its arrays, and with `streamed`; other models misbehave as their names say."""

    log: list[str] = field(default_factory=list)
    counted: list[tuple[str, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    models: dict[str, Any] = field(default_factory=lambda: {"echo": SimpleNamespace(name="echo", version=1)})
    streamed: Streamed | None = None
    refusal: Exception | None = None

    async def start(self) -> None:
        self.log.append("start")

    async def close(self) -> None:
        self.log.append("close")

    def listing(self) -> list[dict[str, Any]]:
        return [{"name": model.name, "version": model.version} for model in self.models.values()]

    async def describe(self, name: str) -> dict[str, Any]:
        if name not in ("echo", "echo@1"):
            raise UnknownModel(f"no model {name!r}; there is echo", path="model")
        x = {"name": "x", "shape": [None, None, 1], "dtype": "float64", "axes": ["batch", "time", "feature"]}
        return {
            "name": "echo",
            "version": 1,
            "dtype": "float64",
            "inputs": [x | {"differentiable": True}],
            "states": [],
            "parameters": [],
            "outputs": [x | {"name": "y", "differentiable": True}],
            "hidden": [],
            "causal": True,
            "ragged": True,
            "strategies": ["scan"],
            "notes": [],
            "versions": [{"version": 1}],
        }

    def metrics_page(self) -> bytes:
        return b"# no counters\n"

    def count(self, operator: str, model: str, status: int, seconds: float) -> None:
        self.counted.append((operator, status))

    def admit(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def __call__(self, call: Call) -> Answer:
        self.calls.append(call)
        match call.model:
            case "boom":
                raise RuntimeError("a secret of the server")
            case "busy":
                raise Overloaded("256 calls wait already; send it again later", retry_after_s=3.2)
            case "late":
                raise DeadlineExceeded("10 s have passed")
            case "slow":
                await self._wait(30.0)
            case "short":
                await self._wait(0.5)
                self.log.append("short")
            case "computing":
                await asyncio.to_thread(_burn, 3.0)
            case "echo" | "echo@1":
                pass
            case _:
                raise UnknownModel(f"no model {call.model!r}; there is echo", path="model")
        outputs = {"outputs": {"y": 2 * call.arrays["inputs"]["x"]}}
        tangents = {"tangents": {"y": 2 * call.arrays["tangents"]["x"]}} if "tangents" in call.arrays else {}
        info = {"rows": object() if call.options.get("outputs") == ["unspeakable"] else 1}
        return Answer("echo", 1, outputs | tangents, info, extra={}, streamed=self.streamed)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def _burn(seconds: float) -> None:
    stop = time.perf_counter() + seconds
    array = np.ones(100_000)
    while time.perf_counter() < stop:
        np.sin(array, out=array)  # Without the interpreter's lock, as TensorFlow computes.


@pytest.fixture
def fake_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def fake_operators() -> dict[str, FakeOperator]:
    return {
        "evaluate": FakeOperator("evaluate", ("inputs",), ("outputs",), ("inputs",)),
        "jvp": FakeOperator("jvp", ("inputs", "tangents"), ("outputs", "tangents"), ("inputs", "tangents")),
        "jacobian": FakeOperator(
            "jacobian",
            ("inputs",),
            ("outputs", "jacobian"),
            ("inputs",),
            answer_members={"axes": {"type": "array", "items": {"type": "string"}}},
        ),
    }


@pytest.fixture
def make_shell(fake_engine, fake_operators) -> Callable[..., AbstractContextManager[TestClient]]:
    """A client of the server around the fake engine, for settings that differ from the defaults."""

    @contextmanager
    def make(**settings: Any) -> Iterator[TestClient]:
        app = create_app(Settings(**settings), engine_factory=lambda _: fake_engine, operators=fake_operators)
        with TestClient(app) as client:
            yield client

    return make


@pytest.fixture
def shell(make_shell) -> Iterator[TestClient]:
    with make_shell() as client:
        yield client


@pytest.fixture
def fake_app(fake_engine, fake_operators):
    return create_app(Settings(), engine_factory=lambda _: fake_engine, operators=fake_operators)


@pytest.fixture(scope="session")
def server() -> Iterator[TestClient]:
    """The real server; programs are built when a test needs them, none with XLA, which takes seconds for each shape."""
    with TestClient(create_app(Settings(warm=False, compiled_programs=0, timeout_s=300))) as client:
        yield client


@pytest.fixture(scope="session")
def engine(server):
    return server.app.state.engine


@pytest.fixture(scope="session")
def ask(server) -> Callable[..., Message]:
    """Ask the real server: `ask("jvp", "seed-gru", {"inputs.x": x, "tangents.x": v}, outputs=["y"])`."""

    def ask(operator: str, model: str, arrays: dict[str, np.ndarray], *, codec: str = "safetensors", **options: Any):
        writer = codecs()[codec]
        content = writer.encode(Message({"model": model} | options, arrays))
        response = server.post(f"/{operator}", content=content, headers={"Content-Type": writer.media_type})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == writer.media_type
        return writer.decode(response.content)

    return ask


@pytest.fixture(scope="session")
def archives(tmp_path_factory):
    """A directory with one `.keras` archive, `tokens`: integers in, an embedding inside."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(1)
    tokens = [
        keras.Input((None,), dtype="int32"),
        layers.Embedding(5, 3, name="embedding"),
        layers.LSTM(4, name="lstm"),
    ]
    directory = tmp_path_factory.mktemp("archives")
    keras.Sequential(tokens).save(directory / "tokens.keras")
    return directory


@pytest.fixture(scope="session")
def archive_server(archives) -> Iterator[TestClient]:
    """The real server with `stacked-rnn` and the archives."""
    with TestClient(
        create_app(Settings(models=("stacked-rnn",), watch_dir=archives, warm=False, compiled_programs=0))
    ) as client:
        yield client


@pytest.fixture(scope="session")
def listening() -> Callable[..., AbstractContextManager[Any]]:
    """Serve an application under a real uvicorn: `with listening(app) as server: ...`."""
    import uvicorn

    @contextmanager
    def listening(app: Any, **options: Any) -> Iterator[uvicorn.Server]:
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, **options))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield server
        server.should_exit = True
        thread.join()

    return listening
