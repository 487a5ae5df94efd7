"""The Dockerfile, the requirements of the image, and the health check, without building anything."""

import re
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from app import health

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def pins(name):
    text = (ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)(?:\[.*\])?==(\S+)", text, re.MULTILINE))


def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [hadolint if hadolint.exists() else shutil.which("hadolint"), "Dockerfile"]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize(("name", "build"), [("image-cpu.txt", "tensorflow-cpu"), ("image-gpu.txt", "tensorflow")])
def test_the_image_has_the_versions_that_are_tested(name, build):
    tested, image = pins("server.txt"), pins(name)
    assert image.pop(build) == tested.pop("tensorflow")
    cuda = {package for package in image if package.startswith("nvidia-")}
    assert bool(cuda) == (build == "tensorflow")
    assert {package: version for package, version in image.items() if package not in cuda} == tested


def test_the_base_is_pinned_and_the_user_is_not_root():
    assert re.search(r"^ARG BASE=\S+:\S+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE) == [("10001", "10001")]
    assert re.search(r'^CMD \["', DOCKERFILE, re.MULTILINE)


def test_what_is_copied_is_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    assert {path.split("/")[0] for path in copied} == kept


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health(monkeypatch, capsys, status, code):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health/ready" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        monkeypatch.setenv("PUSHFORWARD_PORT", str(server.server_port))
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        assert health.main() == code
    assert ("503" in capsys.readouterr().err) == bool(code)


def test_health_without_a_server(monkeypatch, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PUSHFORWARD_PORT", str(unused.getsockname()[1]))
        assert health.main() == 1
    assert "refused" in capsys.readouterr().err
