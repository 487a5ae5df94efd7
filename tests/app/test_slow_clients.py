"""Under a real server: clients that are slow to send, and answers that come before the body's end."""

import gzip
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from app import middleware
from app.connection import impatient
from app.main import create_app
from app.settings import Settings

TIMEOUT_S = 0.4
LIMIT = 1_000_000
CONTENT = b'{"model": "echo", "inputs": {"x": [1.0]}}'


@pytest.fixture
def serve(fake_engine, fake_operators, listening):
    """A server with these settings; gives a function that connects to it."""

    @contextmanager
    def serve(**settings):
        settings = Settings(**settings)
        app = create_app(settings, engine_factory=lambda _: fake_engine, operators=fake_operators)
        with listening(
            app, http=impatient(settings.body_timeout_s, settings.send_timeout_s), timeout_keep_alive=30
        ) as server:
            address = server.servers[0].sockets[0].getsockname()
            yield lambda: socket.create_connection(address, timeout=10)

    return serve


@pytest.fixture
def connect(serve):
    """Connect to a server that is soon out of patience."""
    with serve(body_timeout_s=TIMEOUT_S, max_body_mb=LIMIT / 1e6) as connect:
        yield connect


def head(*headers, path="/evaluate", method="POST"):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


def read_answer(connection):
    """Status, headers and body of one answer, without waiting for the connection's end."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (piece := connection.recv(2**16))
        assert piece, received
    start, _, body = received.partition(b"\r\n\r\n")
    status, *lines = start.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += connection.recv(2**16)
    return int(status.split()[1]), headers, json.loads(body)


def trickle(connection, data, stop):
    for byte in data:
        if stop.wait(0.02):
            return
        try:
            connection.sendall(bytes([byte]))
        except OSError:  # the server has closed
            return


@pytest.fixture
def trickling():
    """Send bytes one by one beside the test, until it ends."""
    stop, threads = threading.Event(), []

    def start(connection, data):
        threads.append(threading.Thread(target=trickle, args=(connection, data, stop)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def post(connection, content=CONTENT):
    connection.sendall(head(f"Content-Length: {len(content)}") + content)
    return read_answer(connection)


SLOW = {
    "nothing": (b"", b"POST /evaluate HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 1000),
    "half the headers": (b"POST /evaluate HTTP/1.1\r\nHost: x\r\nX-Long: ", b"x" * 1000),
    "half a body": (head("Content-Length: 9999") + CONTENT, b" " * 1000),
    "half a chunked body": (head("Transfer-Encoding: chunked") + b"4\r\n[1.0\r\n", b"1\r\n \r\n" * 200),
    "half a gzipped body": (head("Content-Length: 9999", "Content-Encoding: gzip"), gzip.compress(bytes(10**6))),
}
BODIES, HEADERS = list(SLOW)[2:], list(SLOW)[:2]
slowly = pytest.mark.parametrize("slowly", [False, True], ids=["stalled", "trickling"])


@pytest.mark.parametrize("name", BODIES)
@slowly
def test_a_slow_body(connect, trickling, fake_engine, name, slowly):
    first, later = SLOW[name]
    with connect() as connection:
        connection.sendall(first)
        if slowly:
            trickling(connection, later)
        status, headers, problem = read_answer(connection)
    assert status == 408
    assert headers["connection"] == "close"
    assert problem["type"] == "/problems/too-slow"
    assert problem["path"] == "body"
    assert f"within {TIMEOUT_S:g} s" in problem["detail"]
    assert "PUSHFORWARD_BODY_TIMEOUT_S" in problem["detail"]
    assert fake_engine.calls == []


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("number", [1, 2], ids=["first request", "second request"])
@slowly
def test_slow_headers(connect, trickling, name, number, slowly):
    first, later = SLOW[name]
    with connect() as connection:
        if number == 2:
            assert post(connection)[0] == 200
        # After an answer, the time starts with the first byte: until then the connection is idle.
        early = 1 if number == 2 and not first else 0
        connection.sendall(first + later[:early])
        if slowly:
            trickling(connection, later[early:])
        assert is_closed(connection)


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # bytes were under way when the server closed
        return True


def test_others_are_served_meanwhile(serve):
    with serve() as connect, ExitStack() as stack:
        slow = [stack.enter_context(connect()) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.sendall(SLOW[list(SLOW)[number % len(SLOW)]][0])
        with connect() as connection:
            for _ in range(50):
                assert post(connection)[2]["outputs"] == {"y": [2.0]}
        for connection in slow:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_calls_and_idle_connections_may_take_longer(connect):
    with connect() as connection:
        for _ in range(2):
            assert post(connection, CONTENT.replace(b"echo", b"short"))[0] == 200
            time.sleep(2 * TIMEOUT_S)


EARLY = {
    "too large": (413, head(f"Content-Length: {2 * LIMIT}")),
    "no such route": (404, head("Content-Length: 100", path="/nowhere")),
    "no such method": (405, head("Content-Length: 100", method="PUT")),
    "no such format": (415, head("Content-Length: 100", "Content-Type: text/plain").replace(b"json", b"jsen", 1)),
    "no such encoding": (415, head("Content-Length: 100", "Content-Encoding: br")),
}


@pytest.mark.parametrize("name", EARLY)
def test_an_answer_before_the_body_closes_the_connection(connect, monkeypatch, name):
    monkeypatch.setattr(middleware, "LINGER_S", 0.2)
    status, sent = EARLY[name]
    with connect() as connection:
        connection.sendall(sent)
        answer = read_answer(connection)
        assert answer[0] == status
        assert answer[1]["connection"] == "close"
        assert connection.recv(1) == b""


def test_a_client_that_sends_on_comes_to_read_the_answer(connect, monkeypatch):
    monkeypatch.setattr(middleware, "LINGER_S", 60)
    with connect() as connection:
        connection.sendall(head(f"Content-Length: {2 * LIMIT}"))
        connection.sendall(bytes(2 * LIMIT))
        assert read_answer(connection)[0] == 413
        assert connection.recv(1) == b""


def test_a_client_that_sends_on_forever_is_cut_off(connect, monkeypatch):
    monkeypatch.setattr(middleware, "LINGER_S", 60)
    with connect() as connection:
        connection.sendall(head("Transfer-Encoding: chunked"))
        sent = flood(connection, b"10000\r\n" + bytes(2**16) + b"\r\n", 10**9)
    # Twice the limit, and what lies in the buffers of the system.
    assert sent < 2 * LIMIT + 20e6


def flood(connection, chunk, size):
    """Send until the server closes; the bytes sent."""
    for sent in range(0, size, len(chunk)):
        try:
            connection.sendall(chunk)
        except ConnectionError:
            return sent
    return size


def test_an_answer_after_the_body_leaves_the_connection_open(connect):
    with connect() as connection:
        for content in (CONTENT, b"{", CONTENT.replace(b"echo", b"boom"), CONTENT):
            status, headers, _ = post(connection, content)
            assert "connection" not in headers
        assert status == 200


@pytest.mark.parametrize("headers", [(), ("Content-Length: 0",)])
def test_without_a_body_the_connection_stays_open(connect, headers):
    with connect() as connection:
        for _ in range(2):
            connection.sendall(head(*headers, path="/health/live", method="GET"))
            status, answered, _ = read_answer(connection)
            assert status == 200
            assert "connection" not in answered


def test_expect_100_continue(connect):
    with connect() as connection:
        connection.sendall(head("Expect: 100-continue", f"Content-Length: {len(CONTENT)}"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(CONTENT)
        assert read_answer(connection)[0] == 200
        connection.sendall(head("Expect: 100-continue", f"Content-Length: {2 * LIMIT}"))
        assert read_answer(connection)[0] == 413
