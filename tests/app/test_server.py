"""Under a real server: what only sockets show."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest


@pytest.fixture
def server(fake_app, listening):
    with listening(fake_app, timeout_graceful_shutdown=5) as server:
        yield server


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def head(length):
    lines = [
        "POST /evaluate HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def test_a_departed_client_s_call_is_cancelled(url, fake_engine):
    content = b'{"model": "slow", "inputs": {"x": [1.0]}}'
    with connect(url) as connection:
        connection.sendall(head(len(content)) + content)
        while not fake_engine.calls:
            time.sleep(0.01)
        assert not fake_engine.cancelled.is_set()
    assert fake_engine.cancelled.wait(5)


def test_a_client_that_leaves_while_it_sends_is_no_error(url, caplog):
    with connect(url) as connection:
        connection.sendall(head(99) + b"{")
        time.sleep(0.2)
    time.sleep(0.2)
    assert httpx2.get(f"{url}/health/live").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_body_over_the_limit_is_answered_before_it_is_read(url):
    with connect(url) as connection:
        connection.sendall(head(999_999_999_999))
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_call_in_flight_is_finished_before_the_engine_closes(server, url, fake_engine):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx2.post, f"{url}/evaluate", json={"model": "short", "inputs": {"x": [1.0]}})
        while not fake_engine.calls:
            time.sleep(0.01)
        server.should_exit = True
        assert answer.result().status_code == 200
    while "close" not in fake_engine.log:
        time.sleep(0.01)
    assert fake_engine.log == ["start", "short", "close"]
