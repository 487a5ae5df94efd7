"""The log as the command configures it: what a request leaves in it, and what it must not."""

import json
import logging
import logging.config
import os
import re
import subprocess
import sys
import time

import httpx2
import pytest
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from app import keys
from app.logs import JsonFormatter, TextFormatter, configuration
from app.main import create_app
from app.settings import Settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = "1234.56789"


@pytest.fixture
def written(capsys, monkeypatch):
    """Two functions: one configures the log as the command does, for a format; one reads its new lines."""
    monkeypatch.setattr(logging.getLogger("httpx2"), "propagate", False)  # The tests' client is no part of it.
    # Configuring closes all handlers that there are, and TensorFlow's would close pytest's stderr.
    monkeypatch.setattr(logging, "_handlerList", [])
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    root.handlers[:] = []

    def configure(form):
        logging.config.dictConfig(configuration("info", form))
        root.handlers[0].setStream(sys.stderr)

    def read():
        return capsys.readouterr().err.splitlines()

    yield configure, read
    root.handlers[:] = before[1]
    root.setLevel(before[0])


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_line_for_each_request(make_shell, written, form):
    configure, read = written
    with make_shell() as client:
        configure(form)
        body = {"model": "echo", "inputs": {"x": [float(SECRET)]}}
        headers = {"X-Request-Id": "r-7", "traceparent": TRACEPARENT}
        assert client.post("/evaluate?token=hidden", json=body, headers=headers).status_code == 200
    (line,) = [line for line in read() if "app.access" in line]
    assert SECRET not in line
    assert "hidden" not in line
    if form == "text":
        assert f"INFO app.access [r-7 {TRACE}]" in line
        assert "method=POST path=/evaluate status=200 duration_ms=" in line
        assert "operator=evaluate model=echo" in line
    else:
        told = json.loads(line)
        assert (told["level"], told["logger"], told["request_id"], told["trace_id"]) == (
            "info",
            "app.access",
            "r-7",
            TRACE,
        )
        assert (told["method"], told["path"], told["status"]) == ("POST", "/evaluate", 200)
        assert (told["operator"], told["model"]) == ("evaluate", "echo")
        assert told["duration_ms"] > 0


def test_what_is_not_known_is_left_out(make_shell, written):
    configure, read = written
    with make_shell() as client:
        configure("json")
        client.get("/nowhere")
        client.post("/evaluate", content=b"{")
        client.post("/evaluate", json={"model": "boom", "inputs": {"x": [1.0]}})
    lines = [json.loads(line) for line in read()]
    unknown, malformed, failed = [line for line in lines if line["logger"] == "app.access"]
    assert "trace_id" not in unknown
    assert [(line["status"], line.get("operator"), line.get("model")) for line in (unknown, malformed, failed)] == [
        (404, None, None),
        (400, "evaluate", None),
        (500, "evaluate", "boom"),
    ]
    (error,) = [line for line in lines if "exception" in line]
    assert error["request_id"] == failed["request_id"]
    assert "RuntimeError: a secret of the server" in error["exception"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_request_can_t_forge_a_line(make_shell, written, form):
    configure, read = written
    with make_shell() as client:
        configure(form)
        client.get("/a%0aINFO app.access forged%1b[2K")
        client.post("/evaluate", json={"model": "a\nINFO app.access forged", "inputs": {"x": [1.0]}})
        client.post("/evaluate", json={"model": "m" * 10_000, "inputs": {"x": [1.0]}})
    lines = [line for line in read() if "app.access" in line]
    assert len(lines) == 3
    assert all(len(line) < 1000 and line.isprintable() for line in lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_keys_are_never_in_it(make_shell, tmp_path, written, form):
    configure, read = written
    text, key = keys.make("alice", "use")
    (tmp_path / "keys.txt").write_text(key.line)
    with make_shell(api_keys_file=tmp_path / "keys.txt", log_level="debug") as client:
        configure(form)
        logging.getLogger().setLevel("DEBUG")
        answers = [
            client.post("/evaluate", json={"model": model, "inputs": {"x": [1.0]}}, headers={"Authorization": given})
            for model in ("echo", "boom", "unknown")
            for given in (f"Bearer {text}", f"Bearer {text}-wrong", f"Basic {text}", text)
        ]
    log = "\n".join(read())
    assert log.count("app.access") == len(answers)
    assert "alice" in log
    for secret in (text, key.digest.hex()):
        assert secret not in log
        assert not any(secret in answer.text or secret in str(answer.headers) for answer in answers)


@pytest.fixture
def process(tmp_path):
    """The server as the command starts it, with a key; its address, the key, and its whole log once it has ended."""
    text, key = keys.make("alice", "use")
    (tmp_path / "keys.txt").write_text(key.line)
    set_up = {"PORT": "0", "LOG_FORMAT": "json", "API_KEYS_FILE": str(tmp_path / "keys.txt")}
    set_up |= {"MODELS": "stacked-rnn", "WARM": "false", "COMPILED_PROGRAMS": "0", "THREADS": "3"}
    environment = os.environ | {f"PUSHFORWARD_{name}": value for name, value in set_up.items()}
    command = [sys.executable, "-m", "app"]
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(command, stderr=log, env=environment) as running,
    ):
        try:
            while not (found := re.search(r"running on (http://[\d.:]+)", (tmp_path / "log").read_text())):
                assert running.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.05)

            def end():
                running.terminate()
                running.wait(60)
                return (tmp_path / "log").read_text()

            yield found[1], text, end
        finally:
            running.kill()


def test_a_real_server_writes_one_line_for_each_request(process):
    url, key, end = process
    body = {"model": "stacked-rnn", "inputs": {"x": [[[0.2503091, 0.5, 0.75, 1.0]]]}}
    assert httpx2.post(f"{url}/evaluate", json=body, timeout=60).status_code == 401
    authorized = {"Authorization": f"Bearer {key}"}
    assert httpx2.post(f"{url}/evaluate", json=body, headers=authorized, timeout=60).status_code == 200
    log = end()
    told = [json.loads(line) for line in log.splitlines() if line.startswith("{")]  # TensorFlow may write others.
    assert [(line["logger"], line["status"], line.get("caller")) for line in told if "/evaluate" in str(line)] == [
        ("app.access", 401, None),
        ("app.access", 200, "alice"),
    ]
    assert any("requests need an API key" in line["message"] for line in told)
    assert any(line["message"] == "threads of one operation on a CPU: 3" for line in told)
    assert any(line["logger"] == "uvicorn.error" for line in told)
    assert key not in log
    assert "0.2503091" not in log


def test_an_answer_that_is_cut_short_says_so(fake_engine, fake_operators, written):
    configure, read = written
    app = create_app(Settings(), engine_factory=lambda _: fake_engine, operators=fake_operators)

    @app.get("/cut")
    async def cut():
        async def body():
            yield b"one"
            raise LookupError("two")

        return StreamingResponse(body())

    with TestClient(app, raise_server_exceptions=False) as client:
        configure("json")
        client.get("/cut")
    (line,) = [told for told in map(json.loads, read()) if told["logger"] == "app.access"]
    assert (line["status"], line["failure"]) == (200, "LookupError")


def test_json_of_any_text_and_value():
    record = logging.LogRecord("x", logging.WARNING, "", 0, "half a pair \ud800, %s\n", (object,), None)
    record.fields = {"value": object}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == f"half a pair \ud800, {object}\n"
    assert told["value"] == str(object)
    assert told["time"].endswith("+00:00")
    assert "request_id" not in told


def test_the_time_is_written_as_logging_does():
    record = logging.LogRecord("x", logging.INFO, "", 0, "text", None, None)
    assert TextFormatter().formatTime(record) == logging.Formatter().formatTime(record)
