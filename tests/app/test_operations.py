"""What an operator relies on: measures of real requests, readiness, programs that are compiled before the start."""

import re

import numpy as np
import pytest
from fastapi.testclient import TestClient

import app.__main__
from app.main import create_app
from app.settings import Settings

X = np.ones((2, 6, 4)).tolist()


@pytest.fixture(scope="module")
def server():
    settings = Settings(models=("stacked-rnn",), warm=True, warm_shapes=((2, 6),), compiled_programs=8)
    with TestClient(create_app(settings)) as client:
        yield client


def measure(server, line):
    found = re.search(rf"^{re.escape(line)} (\S+)$", server.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def requests(status, operator="jvp", model="stacked-rnn"):
    return f'pushforward_requests_total{{model="{model}",operator="{operator}",status="{status}"}}'


def test_sizes_told_at_the_start_are_compiled_then(server):
    # jvp, vjp and evaluate; the others have no rows that others could share.
    assert measure(server, "pushforward_programs_compiled") == 3
    for operator, field in (("evaluate", None), ("jvp", "tangents")):
        directions = {} if field is None else {field: {"x": X}}
        body = {"model": "stacked-rnn", "inputs": {"x": X}, **directions}
        assert server.post(f"/{operator}", json=body).json()["info"]["compiled"] is True
    assert measure(server, "pushforward_compiles") == 3


def test_requests_are_counted_by_operator_model_and_status(server):
    body = {"model": "stacked-rnn", "inputs": {"x": X}, "tangents": {"x": X}}
    before = [measure(server, requests(status)) for status in (200, 422)]
    unknown = measure(server, requests(404, model="unknown"))
    assert server.post("/jvp", json=body).status_code == 200
    assert server.post("/jvp", json=body | {"outputs": ["z"]}).status_code == 422
    assert server.post("/jvp", json=body | {"model": "no-such"}).status_code == 404
    assert [measure(server, requests(status)) for status in (200, 422)] == [n + 1 for n in before]
    assert measure(server, requests(404, model="unknown")) == unknown + 1
    assert "no-such" not in server.get("/metrics").text
    labels = '{model="stacked-rnn",operator="jvp"}'
    for name in ("queue_seconds", "compute_seconds", "request_seconds", "batch_rows"):
        assert measure(server, f"pushforward_{name}_count{labels}") > 0
    assert measure(server, f"pushforward_batch_rows_sum{labels}") >= 2


def test_not_ready_while_draining(server):
    assert server.get("/health/ready").json() == {"status": "ready"}
    server.app.state.draining = True
    try:
        response = server.get("/health/ready")
        assert (response.status_code, response.json()["type"]) == (503, "/problems/draining")
        assert "Retry-After" in response.headers
        assert server.get("/health/live").status_code == 200
    finally:
        server.app.state.draining = False


def test_the_first_sigterm_drains_and_the_second_stops(monkeypatch):
    import signal
    from types import SimpleNamespace

    stops, timers = [], []
    monkeypatch.setattr("uvicorn.Server.handle_exit", lambda self, sig, frame: stops.append(sig))
    timer = lambda seconds, function, args: timers.append((seconds, function, args)) or SimpleNamespace(start=int)  # noqa: E731
    monkeypatch.setattr(app.__main__.threading, "Timer", timer)
    served = SimpleNamespace(state=SimpleNamespace(draining=False))
    server = app.__main__.Server(app.__main__.uvicorn.Config(served), served, 3.0)
    server.handle_exit(signal.SIGTERM, None)
    assert (served.state.draining, stops, timers[0][0]) == (True, [], 3.0)
    timers[0][1](*timers[0][2])
    assert stops == [signal.SIGTERM]
    server.handle_exit(signal.SIGTERM, None)
    assert stops == [signal.SIGTERM] * 2


@pytest.mark.parametrize("text", ["8", "8x", "0x4", "8x64;1x2", "axb"])
def test_sizes_that_can_not_be_read(text, monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_WARM_SHAPES", text)
    with pytest.raises(ValueError, match="rows x steps such as 8x64"):
        Settings()


def test_sizes(monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_WARM_SHAPES", "8x64, 1x200")
    assert Settings().warm_shapes == ((8, 64), (1, 200))


def test_the_readme_names_every_measure(server):
    from pathlib import Path

    names = set(re.findall(r"^# TYPE (pushforward_\w+) \w+$", server.get("/metrics").text, re.MULTILINE))
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert len(names) > 10
    assert {n for n in names if not n.endswith("_created") and f"`{n}`" not in readme} == set()
