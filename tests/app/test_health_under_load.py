"""The real server under a real uvicorn stays alive to its probes while it computes and while a large body arrives."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import uvicorn

from app.main import create_app
from app.settings import Settings
from pushforward.wire import Message, codecs

# Clients in processes of their own, so that only the server competes for this interpreter's lock.
POST = """
import http.client, sys, time
host, port, path, media_type = sys.argv[1:]
connection = http.client.HTTPConnection(host, int(port), timeout=300)
body = sys.stdin.buffer.read()
start = time.perf_counter()
connection.request("POST", path, body, {"Content-Type": media_type, "Accept": media_type})
answer = connection.getresponse()
print(answer.status, len(answer.read()), time.perf_counter() - start)
"""
PROBE = """
import http.client, sys, threading, time
host, port = sys.argv[1:]
connection = http.client.HTTPConnection(host, int(port), timeout=60)
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set())).start()
slowest = count = 0
while not done.is_set():
    start = time.perf_counter()
    connection.request("GET", "/health/live")
    assert connection.getresponse().read() == b'{"status":"live"}'
    slowest, count = max(slowest, time.perf_counter() - start), count + 1
    time.sleep(0.005)
print(slowest, count)
"""


@pytest.fixture(scope="module")
def address():
    settings = Settings(models=("seed-gru",), warm=False, timeout_s=300)
    server = uvicorn.Server(uvicorn.Config(create_app(settings), host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield "127.0.0.1", str(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


def start(script, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def computation(steps):
    """A JVP on a large batch, in safetensors."""
    x = np.random.default_rng(1).standard_normal((512, steps, 1))
    return codecs()["safetensors"].encode(Message({"model": "seed-gru"}, {"inputs.x": x, "tangents.x": x}))


def large_json():
    # One feature per step is the costliest nesting: a list around every number.
    x = np.random.default_rng(0).standard_normal((12_000, 64, 1))
    content = json.dumps({"model": "seed-gru", "inputs": {"x": x.tolist()}, "timeout_s": 300}).encode()
    assert len(content) > 16e6
    return content


def under_load(address, work, body):
    """Seconds that the slowest probe took, and the two requests."""
    probe, computing = start(PROBE, *address), start(POST, *address, "/jvp", codecs()["safetensors"].media_type)
    transfer = start(POST, *address, "/evaluate", codecs()["json"].media_type)
    sender = threading.Thread(target=lambda: (computing.stdin.write(work), computing.stdin.close()))
    sender.start()
    status, size, transferred = transfer.communicate(body)[0].split()
    sender.join()
    worked, _, computed = computing.stdout.read().split()
    computing.stdout.close()
    assert computing.wait() == 0
    assert (status, worked) == (b"200", b"200")
    assert int(size) > 16e6
    slowest, count = probe.communicate()[0].split()
    assert int(count) > 20
    return float(slowest), float(computed), float(transferred)


def rounds_until_alive(address, steps):
    """Up to three rounds: other processes can spoil one, a step that holds the interpreter's lock spoils them all."""
    rounds, body = [], large_json()
    while len(rounds) < 3 and not any(slowest < 0.1 for slowest, *_ in rounds):
        # Each with a shape of its own, so that nothing is compiled.
        rounds.append(under_load(address, computation(steps + len(rounds)), body))
    return rounds


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_alive_within_100_ms_under_load(address):
    rounds = rounds_until_alive(address, 200)
    assert rounds[-1][0] < 0.1, rounds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_alive_within_100_ms_during_30_s_of_computation(address):
    body = large_json()
    under_load(address, computation(100), body)
    _, computed, _ = under_load(address, computation(101), body)
    rounds = rounds_until_alive(address, int(100 * 40 / computed))
    assert rounds[-1][0] < 0.1, rounds
    assert rounds[-1][1] > 30, rounds
