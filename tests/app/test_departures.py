"""Clients that leave at every stage of a request: the server process keeps no thread, no socket and no memory."""

import socket
import struct
import time

import pytest

from tests.app.process import REQUEST, head

pytestmark = pytest.mark.timeout(300)


STAGES = ["headers", "body", "waiting", "answer"]


def leave(target, stage, abruptly):
    """Start a request and go, at some stage of it; abruptly: with a reset instead of an end."""
    content = b" " * 100_000 + REQUEST
    whole = head(len(content)) + content
    with target.connect() as connection:
        if abruptly:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(whole[:40] if stage == "headers" else whole[: len(whole) // 2] if stage == "body" else whole)
        if stage == "answer":
            assert connection.recv(10)


def settle(target, handles):
    """Wait until nothing more is open than there was, but for a few threads of pools that start them as they need."""
    end = time.monotonic() + 30
    most = handles[0], handles[1] + 3
    while any(now > before for now, before in zip(target.handles(), most, strict=True)):
        assert time.monotonic() < end, (handles, target.handles())
        time.sleep(0.1)


def many_leave(target, count):
    for number in range(100):  # some threads are only started when several have something to do
        leave(target, STAGES[number % 4], abruptly=number % 8 >= 4)
    target.jvp()
    before, handles = target.memory(), target.handles()
    for number in range(count):
        leave(target, STAGES[number % 4], abruptly=number % 8 >= 4)
        if number % 100 == 0:
            target.jvp()
    settle(target, handles)
    assert target.memory() - before < 50e6


def test_clients_that_leave(target):
    many_leave(target, 400)


@pytest.mark.slow
def test_10_000_clients_that_leave(target):
    many_leave(target, 10_000)


def test_many_connections_at_once_that_leave(target):
    handles = target.handles()
    connections = [target.connect() for _ in range(300)]
    for connection in connections:
        connection.sendall(head(len(REQUEST)) + REQUEST[:10])
    target.jvp()
    assert target.handles()[0] > handles[0]
    for connection in connections:
        connection.close()
    settle(target, handles)
