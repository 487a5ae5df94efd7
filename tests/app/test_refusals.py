"""Under a real server: what finds no place is refused before it is read, over a connection that stays if it can."""

import json
import socket

import pytest

from app import middleware
from app.connection import impatient
from pushforward.errors import Draining, Overloaded

CONTENT = b'{"model": "echo", "inputs": {"x": [1.0]}}'
FULL = Overloaded("2 calls are waiting, as many as may; try again later", retry_after_s=1)


@pytest.fixture
def connect(fake_app, listening):
    """Connect to the server over a socket that waits for a bounded time."""
    with listening(fake_app, http=impatient(60.0, 60.0), timeout_keep_alive=30) as server:
        address = server.servers[0].sockets[0].getsockname()
        yield lambda: socket.create_connection(address, timeout=10)


def head(*headers):
    lines = ["POST /evaluate HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


def read(connection):
    """Status, headers and body of one answer."""
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


def post(connection, content):
    connection.sendall(head(f"Content-Length: {len(content)}"))
    connection.sendall(content)
    return read(connection)


@pytest.mark.parametrize(("refusal", "kind"), [(FULL, "overloaded"), (Draining("going", retry_after_s=5), "draining")])
def test_a_body_is_not_looked_at(connect, fake_engine, refusal, kind):
    fake_engine.refusal = refusal
    with connect() as connection:
        for content in (CONTENT, b"{"):
            status, headers, problem = post(connection, content)
            assert (status, problem["type"]) == (503, f"/problems/{kind}")
            assert headers["retry-after"] == str(refusal.retry_after_s)
    assert fake_engine.calls == []
    assert [status for _, status in fake_engine.counted] == [503, 503]


@pytest.mark.parametrize("size", [len(CONTENT), middleware._SHORT])
def test_the_next_request_over_the_same_connection_is_answered(connect, fake_engine, size):
    with connect() as connection:
        fake_engine.refusal = FULL
        status, headers, _ = post(connection, CONTENT.ljust(size))
        assert status == 503
        assert "connection" not in headers
        fake_engine.refusal = None
        assert post(connection, CONTENT)[2]["outputs"] == {"y": [2.0]}


@pytest.mark.parametrize("name", ["long", "chunked", "late"])
def test_what_can_not_be_let_in_soon_closes_the_connection(connect, fake_engine, monkeypatch, name):
    monkeypatch.setattr(middleware, "LINGER_S", 0.2)
    fake_engine.refusal = FULL
    length = {"long": f"Content-Length: {middleware._SHORT + 1}", "chunked": "Transfer-Encoding: chunked"}
    with connect() as connection:
        connection.sendall(head(length.get(name, "Content-Length: 100")))
        status, headers, _ = read(connection)
        assert status == 503
        assert headers["connection"] == "close"
        assert connection.recv(1) == b""


def test_a_body_that_would_be_asked_for_is_refused_at_once(connect, fake_engine):
    fake_engine.refusal = FULL
    with connect() as connection:
        connection.sendall(head("Expect: 100-continue", "Content-Length: 100"))
        status, headers, _ = read(connection)
        assert (status, headers["connection"]) == (503, "close")
