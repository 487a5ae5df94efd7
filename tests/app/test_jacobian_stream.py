"""Jacobians that are computed while they are sent, by the real engine under a real server and with the real client."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
import uvicorn

import app.engine
from app.main import create_app
from app.operators import jacobian
from app.settings import Settings
from pushforward import Client
from pushforward.errors import ConnectionFailed, DeadlineExceeded, Draining
from pushforward.wire import Message, codecs

CODEC = codecs()["safetensors"]
STEPS = 14
X = np.random.default_rng(0).normal(size=(1, STEPS, 4))
# One block and one chunk to a time step; in this mode they share one program, but for the first.
ASKED = {"of": "y[2:]", "wrt": "x", "mode": "reverse"}
BLOCKS = STEPS - 2
BLOCK_BYTES = 4 * STEPS * 4 * 8


class Slow:
    """Lets programs of the server take a while, and notes in which order they end."""

    def __init__(self, programs):
        self.real, self.order, self.seconds, self.before = programs.run_group, [], 0.0, lambda number: None
        programs.run_group = self.run

    def run(self, model, operator, works):
        if operator == "jacobian":
            self.before(self.order.count("jacobian"))
            time.sleep(self.seconds)
        found = self.real(model, operator, works)
        self.order.append(operator)
        return found

    @property
    def chunks(self):
        return self.order.count("jacobian")


class Live:
    """A server in a thread of its own."""

    def __init__(self):
        self.app = create_app(Settings(models=("stacked-rnn",), warm=False, compiled_programs=0))
        config = uvicorn.Config(self.app, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=30)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        self.engine = self.app.state.engine
        self.programs = self.engine._runs.programs

    def stop(self):
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()

    def counter(self, name):
        page = httpx2.get(f"{self.url}/metrics").text
        found = re.search(rf'^pushforward_{name}_total{{model="stacked-rnn",operator="jacobian"}} (\S+)$', page, re.M)
        return float(found[1]) if found else 0.0


@pytest.fixture(scope="module")
def shared():
    live = Live()
    yield live
    live.stop()


@pytest.fixture
def live(shared):
    real = shared.programs.run_group
    shared.slow = Slow(shared.programs)
    yield shared
    shared.programs.run_group = real


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Everything is streamed, in small blocks and chunks."""
    monkeypatch.setattr(app.engine, "AT_ONCE_BYTES", 1000)
    monkeypatch.setattr(jacobian, "BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture
def client(live):
    with Client(live.url) as client:
        client.jacobian("stacked-rnn", X, **ASKED)  # traced once for all
        live.slow.order.clear()
        yield client


def raw(live, method=httpx2.post, accept=CODEC.media_type, **more):
    content = CODEC.encode(Message({"model": "stacked-rnn", **ASKED, **more}, {"inputs.x": X}))
    headers = {"Content-Type": CODEC.media_type, "Accept": accept}
    return method(f"{live.url}/jacobian", content=content, headers=headers, timeout=60)


def stream(live, **more):
    return raw(live, method=lambda *a, **k: httpx2.stream("POST", *a, **k), **more)


def wait(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_bytes_are_those_of_an_answer_that_is_not_streamed(live, client, monkeypatch):
    response = raw(live)
    streamed = CODEC.decode(response.content)
    assert live.slow.chunks == BLOCKS
    assert int(response.headers["content-length"]) == len(response.content)
    assert streamed.envelope["info"]["streamed"] is True
    monkeypatch.setattr(app.engine, "AT_ONCE_BYTES", 10**9)
    whole = CODEC.decode(raw(live).content)
    assert "streamed" not in whole.envelope["info"]
    assert streamed.arrays["jacobian"].tobytes() == whole.arrays["jacobian"].tobytes()
    assert streamed.arrays["jacobian"].shape == (1, BLOCKS, 4, STEPS, 4)
    assert streamed.envelope["axes"] == whole.envelope["axes"]
    monkeypatch.undo()
    one = CODEC.decode(raw(live).content)
    np.testing.assert_allclose(one.arrays["jacobian"], whole.arrays["jacobian"], rtol=0, atol=1e-13)


@pytest.mark.parametrize("accept", ["application/json", "application/x-npz"])
def test_formats_that_need_the_whole_array_gather_it(live, client, accept):
    found = next(c for c in codecs().values() if c.media_type == accept).decode(raw(live, accept=accept).content)
    wanted = CODEC.decode(raw(live).content)
    np.testing.assert_array_equal(found.arrays["jacobian"], wanted.arrays["jacobian"])


@pytest.mark.parametrize("kind", ["file", "array", "memory"])
def test_the_client_writes_to_a_file_or_an_array(client, tmp_path, monkeypatch, kind):
    plan = client.plan("stacked-rnn", X, **ASKED)
    out = {"file": tmp_path / "j.npy", "array": np.zeros(plan.shape), "memory": None}[kind]
    answer = client.jacobian("stacked-rnn", X, **ASKED, out=out)
    monkeypatch.undo()
    wanted = client.jacobian("stacked-rnn", X, **ASKED).jacobian
    np.testing.assert_allclose(answer.jacobian, wanted, rtol=0, atol=1e-13)
    assert answer.jacobian.shape == tuple(plan.shape)
    assert answer.jacobian.nbytes == plan.bytes
    if kind == "file":
        np.testing.assert_array_equal(np.load(out), answer.jacobian)
    if kind == "array":
        assert answer.jacobian is out


def test_a_batch_comes_sample_by_sample(client, monkeypatch):
    x = np.random.default_rng(1).normal(size=(3, STEPS, 4))
    found = client.jacobian("stacked-rnn", x, **ASKED).jacobian
    monkeypatch.undo()
    np.testing.assert_allclose(found, client.jacobian("stacked-rnn", x, **ASKED).jacobian, rtol=0, atol=1e-13)


def test_a_deadline_midway_cuts_the_connection(live, client, tmp_path):
    abandoned = live.counter("abandoned")
    live.slow.before = lambda number: time.sleep(3 if number == 4 else 0)
    with pytest.raises(ConnectionFailed):
        client.jacobian("stacked-rnn", X, **ASKED, out=tmp_path / "j.npy", timeout_s=1.5)
    assert list(tmp_path.iterdir()) == []
    wait(lambda: live.counter("abandoned") == abandoned + 1)
    wait(lambda: live.slow.chunks == 5)
    time.sleep(0.2)
    assert live.slow.chunks == 5


def test_a_deadline_before_the_first_block_is_a_504(live, client):
    live.slow.before = lambda number: time.sleep(1)
    with pytest.raises(DeadlineExceeded, match=r"not ready within 0\.3 s"):
        client.jacobian("stacked-rnn", X, **ASKED, timeout_s=0.3)


def test_an_error_midway_cuts_the_connection(live, client):
    def fail(number):
        if number == 3:
            raise ZeroDivisionError("oh")

    live.slow.before = fail
    with stream(live) as response:
        assert response.status_code == 200
        with pytest.raises(httpx2.RemoteProtocolError):
            response.read()
    live.slow.before = lambda number: None
    assert client.jacobian("stacked-rnn", X, **ASKED).jacobian.shape == (1, BLOCKS, 4, STEPS, 4)


def test_leaving_midway_stops_the_work_within_a_chunk(live, client):
    abandoned, chunks = live.counter("abandoned"), live.counter("chunks")
    live.slow.seconds = 0.2
    with stream(live) as response:
        next(response.iter_raw())
        at_most = live.slow.chunks + 2  # the one that was on its way, and a turn that began as the connection closed
    wait(lambda: live.counter("abandoned") == abandoned + 1)
    time.sleep(0.6)
    assert 1 <= live.slow.chunks <= at_most < BLOCKS
    assert live.counter("chunks") - chunks == live.slow.chunks


def test_a_whole_answer_is_not_abandoned(live, client):
    abandoned, chunks = live.counter("abandoned"), live.counter("chunks")
    client.jacobian("stacked-rnn", X, **ASKED)
    assert live.counter("abandoned") == abandoned
    assert live.counter("chunks") == chunks + BLOCKS


def test_small_requests_are_served_between_chunks(live, client):
    client.jvp("stacked-rnn", X, X)
    live.slow.order.clear()
    live.slow.seconds = 0.15
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(client.jacobian, "stacked-rnn", X, **ASKED)
        for sent in range(3):
            wait(lambda: live.slow.chunks >= 2)
            before = live.slow.chunks
            client.jvp("stacked-rnn", X, X)
            # The chunk that ran when it came, and perhaps one that began while it was on its way.
            assert live.slow.chunks - before <= 2
            assert not large.done(), sent
        assert large.result(60).jacobian.shape == (1, BLOCKS, 4, STEPS, 4)
    assert live.slow.order.count("jvp") == 3
    assert live.slow.order[-1] == "jacobian"


def test_two_streams_take_turns(live, client):
    live.slow.seconds = 0.05
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: client.jacobian("stacked-rnn", X, **ASKED).jacobian, range(2)))
    np.testing.assert_array_equal(answers[0], answers[1])
    assert live.slow.chunks == 2 * BLOCKS


def test_draining_waits_for_the_stream_and_refuses_new_ones():
    live = Live()
    with Client(live.url) as client:
        client.jacobian("stacked-rnn", X, **ASKED)
        live.slow = Slow(live.programs)
        live.slow.seconds = 0.15
        with ThreadPoolExecutor(1) as pool:
            large = pool.submit(client.jacobian, "stacked-rnn", X, **ASKED)
            wait(lambda: live.slow.chunks >= 2)
            live.server.should_exit = True
            assert large.result(60).jacobian.shape == (1, BLOCKS, 4, STEPS, 4)
        live.stop()
    assert live.slow.chunks == BLOCKS
    assert live.engine._draining


async def test_an_engine_that_closes_waits_for_its_streams(monkeypatch):
    import asyncio

    from app.calls import Call

    engine = app.engine.Engine.from_settings(Settings(models=("stacked-rnn",), warm=False, compiled_programs=0))
    await engine.start()
    call = Call("stacked-rnn", "jacobian", {"inputs": {"x": X}}, dict(ASKED))
    answer = await engine(call)
    blocks = answer.streamed.blocks
    parts = [await anext(blocks)]
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0.1)
    assert not closing.done()
    with pytest.raises(Draining):
        await engine(call)
    parts += [block async for block in blocks]
    await asyncio.wait_for(closing, 20)
    assert sum(part.size for part in parts) == BLOCKS * 4 * STEPS * 4
