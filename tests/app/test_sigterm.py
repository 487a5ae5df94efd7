"""SIGTERM under load: what was accepted is answered in full, what was not is told so by a closed connection."""

import http.client
import json
import threading
import time

import numpy as np
import pytest

from pushforward.wire import Message, codecs
from tests.app.serving import serving

CLIENTS = 16
CODEC = codecs()["safetensors"]


def request(rows, time):
    x = np.random.default_rng(rows).normal(size=(rows, time, 1))
    return CODEC.encode(Message({"model": "seed-gru"}, {"inputs.x": x, "tangents.x": x}))


class Client(threading.Thread):
    """Sends one request after another until the server is gone, and keeps what came."""

    def __init__(self, port, body):
        super().__init__()
        self.port, self.body = port, body
        self.answers, self.failure = [], None
        self.sent = threading.Event()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while True:
            try:
                connection.request("POST", "/jvp", self.body, {"Content-Type": CODEC.media_type})
                self.sent.set()
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                return  # Not a byte of an answer came.
            except Exception as error:
                self.failure = error
                return
            try:
                self.answers.append((response.status, CODEC.decode(response.read())))
            except Exception as error:  # Half an answer, or none that can be read.
                self.failure = error
                return


@pytest.mark.parametrize("wait", [0.0, pytest.param(0.3, marks=pytest.mark.slow)], ids=["at once", "later"])
def test_what_was_accepted_is_answered(tmp_path, wait):
    with (tmp_path / "log").open("w") as log, serving(log, models="seed-gru", log_format="json") as server:
        small = [Client(server.port, request(1 + i % 3, 5 + i)) for i in range(CLIENTS)]
        # Takes seconds, so that others wait behind it and it is itself unfinished when the signal comes.
        long = Client(server.port, request(512, 150))
        for client in small:
            client.start()
        for client in small:
            client.sent.wait(60)
        long.start()
        long.sent.wait(60)
        time.sleep(0.2 + wait)  # Until the long one is read; it runs until after the signal.
        code = server.stop()
        for client in (*small, long):
            client.join()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    answered = [line for line in lines if line["logger"] == "app.access" and line["path"] == "/jvp"]
    assert not [client.failure for client in (*small, long) if client.failure]
    assert [status for status, _ in long.answers] == [200]
    got = [status for client in (*small, long) for status, _ in client.answers]
    assert set(got) == {200}
    # As many as the server says it has answered: none was lost on its way.
    assert [line["status"] for line in answered] == [200] * len(got)
    assert not [line for line in lines if line["level"] in ("error", "critical")]
    assert code == 0
