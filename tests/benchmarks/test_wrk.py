"""The load generator: what wrk reports, what it really counts, and what happens without it."""

import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import _wrk
from benchmarks._harness import WorkerError
from benchmarks._wrk import Load, Request, load

REPORT = """Running 3s test @ http://127.0.0.1:8000/jvp
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    81.04ms   12.30ms 192.60ms   91.20%
    Req/Sec   356.00     40.10   400.00     80.00%
  1081 requests in 3.04s, 180.20MB read
  Non-2xx or 3xx responses: 81
Requests/sec:    355.59
Transfer/sec:     59.28MB

{"answers": 1081, "seconds": 2.5, "p50": 0.081043, "p99": 0.192599, "refused": 81, "broken": 2}
"""

needs_wrk = pytest.mark.skipif(not shutil.which("wrk"), reason="needs wrk")


def test_a_report_is_read():
    found = Load.parse(REPORT)
    assert found == Load(answers=1081, seconds=2.5, p50=0.081043, p99=0.192599, refused=81, broken=2)
    # A refusal is quick, and no request served.
    assert found.rate == 400
    assert found.errors == 83


@pytest.mark.parametrize("report", ["", "unable to connect", REPORT.rpartition("{")[0], '{"answers": 1}', "3", "null"])
def test_another_report_is_an_error_that_shows_it(report):
    with pytest.raises(WorkerError, match="answers, seconds, p50, p99, refused, broken from wrk, got"):
        Load.parse(report)


def test_the_script_prints_what_a_load_has():
    assert re.findall(r'"(\w+)": %', _wrk.SCRIPT.read_text()) == list(Load.__annotations__)


def test_without_wrk_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install wrk" in _wrk.missing_wrk()


class _Picky(BaseHTTPRequestHandler):
    """Refuses every fourth request, and all that are not what the test sends."""

    protocol_version = "HTTP/1.1"
    served = 0
    refused = 0
    lock = threading.Lock()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        right = (body, self.headers["Content-Type"], self.headers["Accept"]) == (BODY, "application/x", "application/y")
        with self.lock:
            type(self).served += 1
            status = 200 if right and self.served % 4 else 503
            type(self).refused += status == 503
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


BODY = bytes(range(256)) + b"\n--\r\n"


@pytest.fixture
def picky():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Picky)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_wrk
def test_a_body_of_any_bytes_arrives_and_refusals_are_counted(picky):
    found = load(Request(picky, BODY, "application/x", "application/y"), connections=2, seconds=1)
    # The last two may have been on their way when wrk left.
    assert 0 <= _Picky.served - found.answers <= 2
    assert 0 <= _Picky.refused - found.refused <= 2
    assert found.refused == pytest.approx(found.answers / 4, abs=2)
    assert 0 < found.p50 <= found.p99 < 1
    assert found.broken == 0


@needs_wrk
def test_a_server_that_is_not_there_is_an_error():
    with pytest.raises(WorkerError, match="failed: unable to connect"):
        load(Request("http://127.0.0.1:9", b"", "application/json", "application/json"), connections=1, seconds=1)
