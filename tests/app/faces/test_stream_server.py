"""Arrays that are computed while they are sent, under a real server: clients that leave or are slow, broken answers."""

import asyncio
import logging
import socket
import threading
import time

import httpx2
import numpy as np
import pytest

from app.calls import Streamed
from app.middleware import RequestIdFilter
from pushforward.errors import DeadlineExceeded
from pushforward.wire import codecs

CONTENT = b'{"model": "echo", "inputs": {"x": [1.0]}}'
HEADERS = {"Content-Type": "application/json", "Accept": "application/x-safetensors", "X-Request-Id": "r1"}


class Source:
    """Yields `count` blocks; instead of the one with number `last`, fails or takes forever."""

    def __init__(self, block, count, *, last=None, error=None):
        self.block, self.count, self.last, self.error = block, count, last, error
        self.asked = 0
        self.waiting = threading.Event()
        self.closed = threading.Event()
        self.streamed = Streamed("jacobian", (count, *block.shape), block.dtype.name, self._generate())

    async def _generate(self):
        try:
            for number in range(self.count):
                self.asked += 1
                if number == self.last:
                    if self.error:
                        raise self.error
                    self.waiting.set()
                    await asyncio.sleep(60)
                yield self.block
        finally:
            self.closed.set()


SMALL = np.arange(1000.0)
LARGE = np.ones((4, 2**20))  # 32 MB: more than the system's buffers take.


@pytest.fixture
def server(fake_app, listening):
    with listening(fake_app, timeout_graceful_shutdown=1) as server:
        yield server


@pytest.fixture
def address(server):
    return server.servers[0].sockets[0].getsockname()


@pytest.fixture
def records(caplog):
    with_id = RequestIdFilter()
    caplog.handler.addFilter(with_id)
    yield lambda: [record for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.handler.removeFilter(with_id)


@pytest.fixture
def post(address, fake_engine):
    def post(source):
        fake_engine.streamed = source.streamed
        return httpx2.post(f"http://127.0.0.1:{address[1]}/jacobian", content=CONTENT, headers=HEADERS)

    return post


@pytest.fixture
def connect(address, fake_engine):
    """A connection over which the request has been sent, and nothing read yet."""

    def connect(source, **headers):
        fake_engine.streamed = source.streamed
        connection = socket.socket()
        connection.settimeout(10)
        # Otherwise the system lets it grow to tens of megabytes on the client's behalf.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
        connection.connect(address)
        head = [f"{name}: {value}" for name, value in (HEADERS | {"Content-Length": len(CONTENT)} | headers).items()]
        connection.sendall("\r\n".join(["POST /jacobian HTTP/1.1", "Host: x", *head, "", ""]).encode() + CONTENT)
        return connection

    return connect


def read(connection):
    """The bytes announced, and the body as far as it came."""
    received = b""
    while piece := connection.recv(2**20):
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]), body


def test_whole(post, records):
    source = Source(SMALL, 5)
    response = post(source)
    assert len(response.content) == int(response.headers["content-length"])
    array = codecs()["safetensors"].decode(response.content).arrays["jacobian"]
    np.testing.assert_array_equal(array, np.broadcast_to(SMALL, (5, 1000)))
    assert source.closed.wait(5)
    assert records() == []


def test_the_connection_serves_further_requests(address, fake_engine):
    with httpx2.Client(base_url=f"http://127.0.0.1:{address[1]}") as client:
        streams = []
        for _ in range(2):
            fake_engine.streamed = Source(SMALL, 2).streamed
            response = client.post("/jacobian", content=CONTENT, headers=HEADERS)
            streams.append(response.extensions["network_stream"].get_extra_info("socket"))
    assert streams[0] is streams[1]


@pytest.mark.parametrize("error", [DeadlineExceeded("10 s have passed"), ZeroDivisionError("oh")])
@pytest.mark.parametrize("last", [1, 4], ids=["midway", "at the end"])
def test_a_broken_answer_is_cut_short_and_logged_once(connect, records, error, last):
    source = Source(SMALL, 5, last=last, error=error)
    with connect(source) as connection:
        announced, body = read(connection)
    assert announced - len(body) == (5 - last) * SMALL.nbytes
    assert source.closed.wait(5)
    (record,) = records()
    assert record.request_id == "r1"
    assert record.exc_info[1].__cause__ is error
    assert "request r1 failed after" in str(record.exc_info[1])


def test_a_broken_answer_is_an_error_to_clients(post):
    with pytest.raises(httpx2.RemoteProtocolError):
        post(Source(SMALL, 5, last=2, error=ZeroDivisionError("oh")))


def test_blocks_are_sent_as_they_come(connect):
    source = Source(SMALL, 3, last=2)
    received = b""
    with connect(source) as connection:
        while len(received.partition(b"\r\n\r\n")[2]) < 2 * SMALL.nbytes:
            received += connection.recv(2**20)
        assert source.waiting.wait(5)


@pytest.mark.parametrize("last", [0, 1], ids=["before the first block", "midway"])
@pytest.mark.parametrize("codec", codecs().values(), ids=lambda codec: codec.name)
def test_a_departed_client_s_block_is_cancelled(connect, records, codec, last):
    source = Source(SMALL, 3, last=last)
    with connect(source, Accept=codec.media_type):
        assert source.waiting.wait(5)
        assert not source.closed.wait(0.1)
    assert source.closed.wait(5)
    assert records() == []


def test_a_client_that_leaves_while_it_is_slow(connect, records):
    source = Source(LARGE, 50)
    with connect(source) as connection:
        assert connection.recv(100)
        time.sleep(0.5)
        assert not source.closed.is_set()
    assert source.closed.wait(5)
    assert source.asked <= 3
    assert records() == []


def settle(source, *, asked):
    while source.asked < asked:
        time.sleep(0.01)
    time.sleep(0.5)
    assert source.asked == asked


def test_nothing_is_computed_ahead_of_a_slow_client(connect):
    source = Source(LARGE, 4)
    with connect(source) as connection:
        settle(source, asked=1)
        taken = 0
        while taken < LARGE.nbytes:
            taken += len(connection.recv(2**20))
        settle(source, asked=2)
        while taken < 4 * LARGE.nbytes:
            taken += len(connection.recv(2**20))
    assert source.closed.wait(5)
    assert source.asked == 4


def test_a_server_that_stops_does_not_wait_for_blocks(server, connect):
    source = Source(SMALL, 3, last=1)
    with connect(source) as connection:
        assert source.waiting.wait(5)
        server.should_exit = True
        announced, body = read(connection)
    assert len(body) < announced
    assert source.closed.wait(5)
