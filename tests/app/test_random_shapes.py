"""Two thousand requests of random sizes: programs stay few, memory stays, and probes are answered meanwhile."""

import json
import re
import subprocess
import sys
import time

import httpx2
import numpy as np
import pytest

from pushforward.wire import Message, codecs
from tests.app.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

REQUESTS, TIME, ROWS = 2000, 2000, 64
MOST_COMPILED = 40
CODEC = codecs()["safetensors"]

# A process of its own, so that it waits for nothing but the server.
PROBE = """
import http.client, json, sys, threading, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
done, waits = threading.Event(), []
threading.Thread(target=lambda: (sys.stdin.read(), done.set())).start()
while not done.wait(0.02):
    start = time.perf_counter()
    connection.request("GET", "/health/live")
    assert connection.getresponse().read() == b'{"status":"live"}'
    waits.append(time.perf_counter() - start)
print(json.dumps(waits))
"""


@pytest.fixture(scope="module")
def server():
    with serving(models="stacked-rnn", timeout_s=300) as server:
        yield server


@pytest.fixture(scope="module")
def waits(server):
    """Begin to probe; called in the end, it returns the seconds that each probe took."""
    command = [sys.executable, "-c", PROBE, str(server.port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield lambda: np.array(json.loads(process.communicate()[0]))
    if process.poll() is None:
        process.kill()
        process.communicate()


def gauge(server, name):
    page = httpx2.get(f"{server.url}/metrics").text
    return float(re.search(rf"^pushforward_{name} (\S+)$", page, re.MULTILINE)[1])


def test_random_shapes(server, waits):
    rng, memory, compiled, start = np.random.default_rng(0), [], [], time.perf_counter()
    graphs = gauge(server, "programs_graph")
    with httpx2.Client(base_url=server.url, timeout=300) as http:
        for i in range(REQUESTS):
            x = rng.normal(size=(rng.integers(1, ROWS + 1), rng.integers(1, TIME + 1), 4))
            content = CODEC.encode(Message({"model": "stacked-rnn"}, {"inputs.x": x, "tangents.x": x}))
            response = http.post("/jvp", content=content, headers={"Content-Type": CODEC.media_type})
            assert response.status_code == 200, response.text
            if i % 20 == 19:
                memory.append(server.resident)
                compiled.append(gauge(server, "programs_compiled"))
    took, probes = time.perf_counter() - start, waits()
    half = len(memory) // 2
    first, later = memory[half - 1], np.array(memory[half:])
    slow = np.quantile(probes, [0.5, 0.99, 1.0]) * 1e3
    print(
        f"{REQUESTS} requests in {took:.0f} s; memory {first / 1e6:.0f} MB after the first half, then "
        f"{later.min() / 1e6:.0f} to {later.max() / 1e6:.0f} MB; up to {max(compiled):.0f} programs compiled, "
        f"{gauge(server, 'compiles'):.0f} in all; {len(probes)} probes: median {slow[0]:.1f} ms, p99 {slow[1]:.1f} ms, "
        f"slowest {slow[2]:.0f} ms; memory every 100: {[round(m / 1e6) for m in memory[4::5]]}"
    )
    assert max(compiled) <= MOST_COMPILED
    # The graph program of this one call takes any size, and XLA makes a few times as many as are kept, then no more.
    assert gauge(server, "programs_graph") <= graphs + 1
    assert gauge(server, "compiles") <= 5 * MOST_COMPILED
    assert later.max() < 1.05 * first
    assert np.quantile(probes, 0.99) < 0.1
