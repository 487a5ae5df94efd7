"""A Jacobian larger than the server may grow: streamed to a file, with others served meanwhile, stopped by leaving."""

import re
import threading
import time

import httpx2
import numpy as np
import pytest

from pushforward import Client
from tests.app.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# dh_t/dx_s of two SimpleRNN(4) with 4 inputs at all t and s: 16,000 x 16,000 numbers of 8 bytes, 2.05 GB.
STEPS = 4000
OF, WRT = "hidden.rnn_2.h", "x"
GROWTH_BYTES = 300e6


@pytest.fixture(scope="module")
def server():
    with serving(models="stacked-rnn") as served:
        yield served
        assert served.stop() == 0


def counter(url, name):
    page = httpx2.get(f"{url}/metrics").text
    found = re.search(rf'^{name}{{model="stacked-rnn",operator="jacobian"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def inputs(steps):
    return np.random.default_rng(0).normal(size=(1, steps, 4))


class Watch(threading.Thread):
    """Sends small JVPs one after another, and looks at the server's memory, until it is told to stop."""

    def __init__(self, server):
        super().__init__()
        self.server, self.over = server, threading.Event()
        self.waits, self.largest = [], 0

    def run(self):
        x = inputs(5)
        with Client(self.server.url) as client:
            while not self.over.wait(0.05):
                start = time.perf_counter()
                client.jvp("stacked-rnn", x, x)
                self.waits.append(time.perf_counter() - start)
                self.largest = max(self.largest, self.server.resident)


def test_memory_stays_and_others_are_served(server, tmp_path):
    url = server.url
    with Client(url, timeout=None) as client:
        client.jvp("stacked-rnn", inputs(5), inputs(5))
        client.jacobian("stacked-rnn", inputs(400), of=OF, wrt=WRT)
        plan = client.plan("stacked-rnn", inputs(STEPS), of=OF, wrt=WRT)
        assert plan.bytes == 2_048_000_000
        before = server.resident
        watch = Watch(server)
        watch.start()
        start = time.perf_counter()
        answer = client.jacobian("stacked-rnn", inputs(STEPS), of=OF, wrt=WRT, out=tmp_path / "jacobian.npy")
        took = time.perf_counter() - start
        watch.over.set()
        watch.join()
    assert answer.jacobian.shape == (1, STEPS, 4, STEPS, 4)
    chunk = took / plan.info["chunks"]
    print(
        f"{took:.1f} s in {plan.info['chunks']} chunks; memory +{(watch.largest - before) / 1e6:.0f} MB; "
        f"{len(watch.waits)} JVPs, slowest {max(watch.waits):.2f} s, median {np.median(watch.waits):.3f} s"
    )
    assert watch.largest - before < GROWTH_BYTES
    assert len(watch.waits) >= plan.info["chunks"] / 2
    # One chunk may be longer than others, and what it computed is then written by the same thread.
    assert np.quantile(watch.waits, 0.9) < 3 * chunk
    j = answer.jacobian
    assert not j[0, :2000, :, 2000:].any()
    # d h_t / d x_t of a late step, against a chunk of its own.
    with Client(url) as client:
        few = client.jacobian("stacked-rnn", inputs(STEPS), of=f"{OF}[3990:]", wrt="x[3985:]").jacobian
    np.testing.assert_allclose(j[:, 3990:, :, 3985:], few, rtol=1e-10, atol=1e-14)


def test_leaving_stops_the_work(server):
    url = server.url
    abandoned = counter(url, "pushforward_abandoned_total")
    body = {"model": "stacked-rnn", "inputs": {"x": inputs(STEPS).tolist()}, "of": OF, "wrt": WRT}
    headers = {"Accept": "application/x-safetensors"}
    with httpx2.stream("POST", f"{url}/jacobian", json=body, headers=headers, timeout=None) as response:
        assert response.status_code == 200
        next(response.iter_raw())
    end = time.monotonic() + 60
    while counter(url, "pushforward_abandoned_total") == abandoned:
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(0.2)
    chunks = counter(url, "pushforward_chunks_total")
    time.sleep(3)
    assert counter(url, "pushforward_chunks_total") == chunks
