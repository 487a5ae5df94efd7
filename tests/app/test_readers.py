"""Clients that ask and do not read the answer, under a server process: what they hold is soon given back."""

import json
import os
import re
import socket
import time

import httpx2
import numpy as np
import pytest

from tests.app.process import head
from tests.app.serving import serving

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has the limit")

TIMEOUT_S = 1.5
STEPS = 280
SIZE = (STEPS * 4) ** 2 * 8  # 10 MB: more than is computed before the answer begins


@pytest.fixture(scope="module")
def server():
    with serving(models="stacked-rnn", warm=False, compiled_programs=0, send_timeout_s=TIMEOUT_S) as server:
        yield server


def gauge(server, name):
    page = httpx2.get(f"{server.url}/metrics").text
    found = re.search(rf"^pushforward_{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def jacobian(server, accept="application/x-safetensors"):
    """A connection over which a large Jacobian has been asked for, and nothing read yet."""
    x = np.random.default_rng(0).normal(size=(1, STEPS, 4)).tolist()
    asked = {"model": "stacked-rnn", "inputs": {"x": x}, "of": "hidden.rnn_2.h", "wrt": "x"}
    content = json.dumps(asked).encode()
    connection = socket.socket()
    # Otherwise the system takes megabytes on the client's behalf.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    connection.settimeout(90)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(head(len(content), "application/json", f"Accept: {accept}", path="/jacobian") + content)
    return connection


def settle(what, wanted):
    end = time.monotonic() + 10 * TIMEOUT_S
    while (found := what()) != wanted:
        assert time.monotonic() < end, found
        time.sleep(0.1)


def read(connection):
    """All that still comes, however it ends."""
    size = 0
    try:
        while piece := connection.recv(2**16):
            size += len(piece)
    except ConnectionResetError:
        return size
    return size


def test_a_jacobian_that_is_not_read_is_dropped(server):
    abandoned = gauge(server, "abandoned_total")
    with jacobian(server) as connection:
        assert connection.recv(100)
        time.sleep(TIMEOUT_S / 3)
        assert gauge(server, "calls") == 1
        settle(lambda: gauge(server, "calls"), 0)
        assert gauge(server, "abandoned_total") == abandoned + 1
        assert read(connection) < SIZE / 2


@pytest.mark.slow
def test_an_answer_that_is_read_slowly_comes_whole(server):
    with jacobian(server) as connection:
        size, start = 0, time.monotonic()
        while time.monotonic() - start < 3 * TIMEOUT_S:
            size += len(connection.recv(2**14))
            time.sleep(0.05)
        assert size + read(connection) > SIZE


def test_an_answer_that_was_whole_at_once_is_not_kept_either(server):
    def files():
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    before = files()
    with jacobian(server, accept="application/x-npz") as connection:
        assert connection.recv(100)
        assert files() == before + 1
        settle(files, before)
        assert read(connection) < SIZE / 2
