"""Ten times as many clients as the queue holds: the server works as fast as before, and refuses the rest at once."""

import asyncio
import time
from dataclasses import dataclass

import httpx2
import numpy as np
import pytest

from pushforward.wire import Message, codecs
from tests.app.serving import serving

pytestmark = pytest.mark.slow

QUEUE = 8
CODEC = codecs()["safetensors"]
HEADERS = {"Content-Type": CODEC.media_type}
# How much more of the processor an answer may take when most requests are refused. Answers per second would tell the
# same, had the server its processor for itself: here the many clients take of the same cores.
DEARER = 0.25


def content():
    """A request that takes about as long as its clients take to send some."""
    x = np.random.default_rng(0).normal(size=(16, 64, 1))
    return CODEC.encode(Message({"model": "seed-gru"}, {"inputs.x": x, "tangents.x": x}))


@pytest.fixture(scope="module")
def server():
    # Nothing is compiled: the server shall be as fast at the end as it was at the start.
    with serving(models="seed-gru", queue_size=QUEUE, compiled_programs=0) as server:
        yield server


@dataclass(frozen=True)
class Load:
    """What came of clients that sent for a while."""

    answers: list[httpx2.Response]
    took: float
    computed: float

    @property
    def served(self):
        return [answer for answer in self.answers if answer.status_code == 200]

    @property
    def rate(self):
        return len(self.served) / self.took

    @property
    def cost(self):
        """Seconds of the server's processor time for each answer, with what refusals took."""
        return self.computed / len(self.served)


def load(server, count, seconds=8):
    """Let clients send one request after another, all until the time is over."""
    body, answers = content(), []
    start, before = time.perf_counter(), server.computed

    async def client():
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
            while time.perf_counter() - start < seconds:
                answers.append(await http.post("/jvp", content=body, headers=HEADERS))
                if answers[-1].status_code == 503:
                    # Sooner than Retry-After asks for, so that they stay a load.
                    await asyncio.sleep(0.2)

    async def clients():
        await asyncio.gather(*(client() for _ in range(count)))

    asyncio.run(clients())
    return Load(answers, time.perf_counter() - start, server.computed - before)


@pytest.mark.slow
def test_overload(server):
    load(server, QUEUE, 2)
    before, over, after = load(server, QUEUE), load(server, 10 * QUEUE), load(server, QUEUE)
    refused = [answer for answer in over.answers if answer.status_code != 200]
    print(
        f"{before.rate:.0f} answers a second by {QUEUE} clients, {over.rate:.0f} by {10 * QUEUE} with "
        f"{len(refused) / over.took:.0f} refusals, {after.rate:.0f} afterwards; of the processor "
        f"{before.cost * 1e3:.1f}, {over.cost * 1e3:.1f}, {after.cost * 1e3:.1f} ms for each"
    )
    assert len(refused) > 10
    for answer in refused:
        assert answer.status_code == 503
        assert answer.json()["type"] == "/problems/overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    # What was accepted is answered in full, and no exception came to a client: none was lost.
    expected = CODEC.decode(before.served[0].content).arrays
    for answer in over.served:
        arrays = CODEC.decode(answer.content).arrays
        assert arrays.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_allclose(arrays[path], array, rtol=1e-12, atol=1e-14)
    # At once normal: not a single refusal once there are no more clients than places.
    assert len(after.served) == len(after.answers)
    assert max(over.cost, after.cost) < (1 + DEARER) * before.cost


def test_who_finds_no_place_is_refused_and_the_next_is_not(server):
    body = content()

    async def at_once(count):
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
            return await asyncio.gather(*(http.post("/jvp", content=body, headers=HEADERS) for _ in range(count)))

    answers = asyncio.run(at_once(10 * QUEUE))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= QUEUE
    assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 503)
    assert {answer.status_code for answer in asyncio.run(at_once(QUEUE))} == {200}
