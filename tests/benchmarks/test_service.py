"""The load benchmark without its servers: the turns, the table, and what it says when parts are missing."""

import argparse
import json
import sys

import numpy as np
import pytest

from benchmarks import _servers, _wrk, service
from benchmarks._gru import WORKLOADS
from benchmarks._harness import Quartiles, WorkerError, table
from benchmarks._wrk import Load


def served(name, *rates, refused=0, p50=0.01, p99=0.02):
    return service.Served(name, [Load(rate + refused, 1.0, p50, p99, refused, 0) for rate in rates])


def test_a_rate_is_compared_within_its_round():
    theirs, ours = served("Tesseract", 100, 200, 400), served("ours, json", 300, 400, 800)
    assert ours.rate == Quartiles(350, 400, 600)
    # Rounds: 3, 2 and 2 times; the ratio of the medians is 2.
    assert ours.ratio(theirs) == Quartiles(2, 2, 2.5)


def test_the_table_tells_what_is_missed():
    results = {
        1: [served("Tesseract", 100), served("ours, json", 140, p50=0.0071, p99=0.0152, refused=3)],
        8: [served("Tesseract", 100), served("ours, json", 90)],
        32: [served("Tesseract", 100), served("ours, json", 450)],
    }
    limits = {"one by one": {"Tesseract": Quartiles(900, 1000, 1100), "ours": Quartiles(450, 500, 550)}}
    assert table(service.HEAD, service.rows(results, limits, {1: 1.5, 32: 3})).splitlines() == [
        "| connections, server | requests/s | p50, ms | p99, ms | errors | / Tesseract | required |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 1, Tesseract | 100 (100 to 100) | 10.00 | 20.00 | 0 |  |  |",
        "| 1, ours, json | 140 (140 to 140) | 7.10 | 15.20 | 3 | **1.40** (1.40 to 1.40), missed | 1.5 |",
        "| 8, Tesseract | 100 (100 to 100) | 10.00 | 20.00 | 0 |  |  |",
        "| 8, ours, json | 90.00 (90.00 to 90.00) | 10.00 | 20.00 | 0 | **0.90** (0.90 to 0.90) | - |",
        "| 32, Tesseract | 100 (100 to 100) | 10.00 | 20.00 | 0 |  |  |",
        "| 32, ours, json | 450 (450 to 450) | 10.00 | 20.00 | 0 | **4.50** (4.50 to 4.50) | 3 |",
        "| in process, one by one, Tesseract | 1000 (900 to 1100) |  |  |  |  |  |",
        "| in process, one by one, ours | 500 (450 to 550) |  |  |  | **0.50** |  |",
    ]


class _Target:
    def __init__(self, name, log, tangents=None):
        self.name, self.request, self._log, self._tangents = name, name, log, tangents

    def ask(self):
        self._log.append(f"ask {self.name}")
        return self._tangents


def test_servers_take_turns_and_are_done_before_the_next_one_s(monkeypatch):
    log = []

    def load(request, connections, seconds):
        log.append(f"load {request} {connections} {seconds}")
        return Load(len(log), 1.0, 0.0, 0.0, 0, 0)

    monkeypatch.setattr(_wrk, "load", load)
    first, second = service.measure([_Target("a", log), _Target("b", log)], 8, 0.1)
    there, back = [["load a 8 3", "ask a", "load b 8 3", "ask b"], ["load b 8 3", "ask b", "load a 8 3", "ask a"]]
    assert log == [*back, *there, *back, *there, *back, *there]
    # The first two loads, of one and three lines, warm up.
    assert [load.answers for load in first.rounds] == [5, 11, 13, 19, 21]
    assert [load.answers for load in second.rounds] == [7, 9, 15, 17, 23]


def test_answers_that_differ_are_told():
    reference = np.full((1, 32), 2.0, "float32")
    right, off, shape = reference * (1 + 1e-6), reference * (1 + 1e-4), reference[0]
    arrays = {"Tesseract": reference, "right": right, "off": off, "nan": reference * np.nan, "shape": shape}
    wrong = service._disagreements("last", [_Target(name, [], array) for name, array in arrays.items()])
    assert wrong == [
        "last, off: differs from Tesseract by 1.0e-04",
        "last, nan: differs from Tesseract by nan",
        "last, shape: shape (32,), Tesseract's is (1, 32)",
    ]


def test_without_its_parts_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_wrk, "missing_wrk", lambda: "no wrk")
    parser = argparse.ArgumentParser()
    service.BENCHMARK.arguments(parser)
    options = parser.parse_args(["--tesseract-python", "nowhere/python"])
    expected = "no Tesseract beside nowhere/python: `make bench` makes it, --tesseract-python names another"
    assert service.run(options) == ({}, ["no wrk", expected])


@pytest.mark.parametrize("name", WORKLOADS)
def test_both_servers_are_asked_the_same(name):
    server = _servers.Server(lambda port: [], "/", {})
    theirs, *ours = _servers.targets(server, server, name)
    body = json.loads(theirs.request.body)
    assert theirs.request.url == f"{server.url}/jacobian_vector_product"
    arrays = WORKLOADS[name].arrays()
    for path, array in (("x", body["inputs"]["x"]), ("dx", body["tangent_vector"]["x"])):
        answer = json.dumps({name: array}).encode()
        np.testing.assert_array_equal(theirs.read(answer), arrays[path], strict=True)
    for target in ours:
        # Read as if it were an answer: its tangents have the name of the output.
        answer = target.request.body.replace(b'"tangents":{"x"', b'"tangents":{"y"').replace(
            b"tangents.x", b"tangents.y"
        )
        np.testing.assert_array_equal(target.read(answer), arrays["dx"], strict=True)


def test_a_server_that_does_not_start_shows_its_log():
    server = _servers.Server(lambda port: [sys.executable, "-c", "raise SystemExit('no luck today')"], "/", {})
    with pytest.raises(WorkerError, match="no luck today"), server:
        pass
