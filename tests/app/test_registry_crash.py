"""A server that is killed while models are registered, and one that registers and removes for long."""

import threading

import httpx2
import numpy as np
import pytest

from tests.app.process import Server
from tests.app.serving import serving

X = np.linspace(-1, 1, 6).reshape(1, 3, 2)
SETTINGS = {"models": "none", "warm": "false", "compiled_programs": 0, "log_level": "error"}


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Archives of models that differ in their weights, and what each answers to X, in the same order."""
    import keras

    path, found = tmp_path_factory.mktemp("archives") / "m.keras", []
    for seed in range(5):
        keras.utils.set_random_seed(seed)
        network = keras.Sequential([keras.Input((None, 2)), keras.layers.GRU(3)])
        network.save(path)
        found.append((path.read_bytes(), network(X).numpy()))
    return found


def evaluated(url, model):
    response = httpx2.post(f"{url}/evaluate", json={"model": model, "inputs": {"x": X.tolist()}}, timeout=60)
    assert response.status_code == 200, response.text
    return np.array(response.json()["outputs"]["y"], np.float32)


class Uploads(threading.Thread):
    """Registers archives under a few names until the server is gone; keeps what was acknowledged."""

    def __init__(self, url, archives, most):
        super().__init__()
        self.url, self.archives, self.most = url, archives, most
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.progress = threading.Condition()

    def run(self):
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            for i in range(self.most):
                try:
                    response = client.put(f"/models/m{i % 3}", content=self.archives[i % len(self.archives)][0])
                except httpx2.TransportError:
                    return
                assert response.status_code == 201, response.text
                with self.progress:
                    self.acknowledged[f"m{i % 3}", response.json()["version"]] = i % len(self.archives)
                    self.progress.notify_all()

    def wait_for(self, count):
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.acknowledged) >= count, 600)


def kill_and_check(tmp_path, archives, uploads_before_each_kill):
    expected, total = {}, 0
    for round_, count in enumerate(uploads_before_each_kill):
        with (
            (tmp_path / f"log{round_}").open("w") as log,
            serving(log, model_dir=tmp_path / "kept", **SETTINGS) as server,
        ):
            found = {(m["name"], v) for m in httpx2.get(f"{server.url}/models").json() for v in m["versions"]}
            # Of a registration that was going on, nobody was told; it may have been complete.
            assert expected.keys() <= found
            assert len(found) <= total + round_
            for (name, version), which in expected.items():
                answer = evaluated(server.url, f"{name}@{version}")
                np.testing.assert_allclose(answer, archives[which][1], rtol=1e-5, atol=1e-6)
            assert "pushforward_archives_skipped 0.0" in httpx2.get(f"{server.url}/metrics").text
            uploads = Uploads(server.url, archives, 1000)
            uploads.start()
            uploads.wait_for(count)
            server.process.kill()
            uploads.join()
            expected |= uploads.acknowledged
            total += len(uploads.acknowledged)
    assert total >= sum(uploads_before_each_kill)


@pytest.mark.slow
def test_what_was_acknowledged_outlasts_a_kill(tmp_path, archives):
    kill_and_check(tmp_path, archives, [2, 1, 0])


@pytest.mark.slow
def test_a_hundred_uploads_and_kills_between(tmp_path, archives):
    kill_and_check(tmp_path, archives, [25, 1, 30, 7, 20, 17, 0])


@pytest.mark.slow
def test_two_hundred_cycles(tmp_path, archives):
    request = {"model": "stacked-rnn", "inputs": {"x": np.ones((2, 5, 4)).tolist()}}
    settings = {**SETTINGS, "models": "stacked-rnn"}
    with (tmp_path / "log").open("w") as log, serving(log, **settings) as served:
        server = Server(served.process, served.port)
        with httpx2.Client(base_url=server.url, timeout=120) as client:
            before = client.post("/evaluate", json=request).json()["outputs"]

            def cycle(i):
                archive, wanted = archives[i % len(archives)]
                assert client.put(f"/models/m{i}", content=archive).status_code == 201
                np.testing.assert_allclose(evaluated(server.url, f"m{i}"), wanted, rtol=1e-5, atol=1e-6)
                assert client.delete(f"/models/m{i}").status_code == 204

            for i in range(10):  # What every model shares is there after a few.
                cycle(i)
            memory = [server.memory()]
            for i in range(10, 210):
                cycle(i)
                if i % 10 == 9:
                    memory.append(server.memory())
            print("MB, every ten cycles:", [m // 10**6 for m in memory])
            assert client.post("/evaluate", json=request).json()["outputs"] == before
            assert memory[-1] - memory[0] < 100e6
            assert client.get("/models/m7").status_code == 404
