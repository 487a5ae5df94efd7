"""POST /jacobian over HTTP: names, axes, plans, limits, and what is said about requests that are wrong."""

import keras
import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.registry import Version
from app.settings import Settings
from models.model import Model
from pushforward.wire import Message, codecs

CODEC = codecs()["safetensors"]
X = {"x": [[[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1.0, 1.1, 1.2]]]}
REQUEST = {"model": "stacked-rnn", "inputs": X, "of": "y[-1, :]", "wrt": "x[1:3, 0]"}


def refused(server, status=422, **changes):
    request = {name: value for name, value in (REQUEST | changes).items() if value is not None}
    response = server.post("/jacobian", json=request)
    assert response.status_code == status, response.text
    return response.json()


def test_axes_and_info(server):
    answer = server.post("/jacobian", json=REQUEST).json()
    assert answer["axes"] == ["batch", "y.feature", "x.time"]
    assert np.shape(answer["jacobian"]) == (1, 4, 2)
    assert "order" not in answer
    info = answer["info"]
    assert (info["mode"], info["passes"], info["steps"], info["chunks"]) == ("forward", 2, 4, 1)
    assert (info["shape"], info["bytes"]) == ([1, 4, 2], 64)
    assert (
        info["why"] == "forward mode takes 2 passes over 4 steps per sample, reverse mode takes 4 passes over 8 steps"
    )
    assert (info["dtype"], info["rows"], info["nonfinite"], info["compiled"]) == ("float64", 2, 0, False)


@pytest.mark.parametrize(
    ("of", "wrt", "axes", "order"),
    [
        ("state.rnn_1.h", "x", ["state.rnn_1.h.unit", "x.time", "x.feature"], None),
        ("hidden.rnn_2.h[1:]", "state.rnn_1.h[0]", ["hidden.rnn_2.h.time", "hidden.rnn_2.h.unit"], None),
        ("y[0, 0]", "param.rnn_1.kernel", ["param.rnn_1.kernel.in", "param.rnn_1.kernel.out"], None),
        ("y[0, 0]", "hidden.rnn_1.h[0, 0]", [], None),
        ("state", "state.rnn_2.h[1:]", ["state.unit", "state.rnn_2.h.unit"], {"of": ["rnn_1.h[0:4]", "rnn_2.h[4:8]"]}),
        (
            "state[2:6]",
            "state",
            ["state.unit", "state.unit"],
            {side: ["rnn_1.h[0:4]", "rnn_2.h[4:8]"] for side in ("of", "wrt")},
        ),
    ],
)
def test_names_axes_and_order(server, of, wrt, axes, order):
    response = server.post("/jacobian", json=REQUEST | {"of": of, "wrt": wrt})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["axes"] == ["batch", *axes]
    assert answer.get("order") == order
    assert np.shape(answer["jacobian"]) == tuple(answer["info"]["shape"])
    assert np.ndim(answer["jacobian"]) == 1 + len(axes)


def test_the_order_of_an_lstm_s_slots(server):
    x = np.linspace(-1, 1, 16).reshape(1, 2, 8).tolist()
    request = {"model": "lstm-last", "inputs": {"x": x}, "of": "state.lstm[:3]", "wrt": "state.lstm[64:66]"}
    answer = server.post("/jacobian", json=request).json()
    assert answer["order"] == {side: ["lstm.h[0:64]", "lstm.c[64:128]"] for side in ("of", "wrt")}
    single = server.post("/jacobian", json=request | {"of": "state.lstm.h[:3]", "wrt": "state.lstm.c[:2]"}).json()
    np.testing.assert_allclose(answer["jacobian"], single["jacobian"], rtol=0, atol=1e-7)
    assert "order" not in single
    assert np.any(np.array(single["jacobian"]) != 0)


def test_a_plan_computes_nothing_and_is_what_is_done(server, engine):
    before = len(engine._runs.programs._graphs)
    request = REQUEST | {"of": "y[::-1, 1]", "wrt": "x[:, ::3]"}
    plan = server.post("/jacobian", json=request | {"plan": True}).json()
    assert len(engine._runs.programs._graphs) == before
    assert "jacobian" not in plan
    assert plan["info"]["seconds"] > 0
    done = server.post("/jacobian", json=request).json()
    assert done["axes"] == plan["axes"]
    same = ("mode", "passes", "steps", "chunks", "shape", "bytes", "why", "rows")
    assert {name: done["info"][name] for name in same} == {name: plan["info"][name] for name in same}


def test_a_plan_of_known_zeros_is_whole(server):
    info = server.post("/jacobian", json=REQUEST | {"of": "y[0]", "wrt": "x[2]", "plan": True}).json()["info"]
    assert (info["passes"], info["steps"], info["seconds"]) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_mode_that_is_asked_for(server, mode):
    info = server.post("/jacobian", json=REQUEST | {"mode": mode}).json()["info"]
    assert info["mode"] == mode
    assert info["why"] == f"{mode} mode was asked for"


@pytest.mark.parametrize("path", ["of", "wrt"])
@pytest.mark.parametrize(
    ("text", "position", "piece"),
    [
        ("{}[1.5]", 2, "an integer, start:stop:step or :"),
        ("{}[...]", 2, "an ellipsis is not supported"),
        ("{}[[0, 1]]", 2, "lists, tuples and masks are not supported"),
        ("{}[None]", 2, "None is not supported"),
        ("{}[0, ]", 5, "an index must not be empty"),
        ("{}[0", 3, "a closing bracket ]"),
        ("{}[0][1]", 4, "one pair of brackets"),
        ("{}[0] x", 5, "nothing after the closing bracket"),
        ("{}[::0]", 4, "a step other than 0"),
        ("{}[0, 0, 0]", 8, "at most 2 indices, for time, feature"),
        ("{}[3]", 2, "an index from -3 to 2 along axis time, which has size 3"),
        ("{}[:, 2:1]", 5, "a slice that takes something of axis feature"),
        ("[0]", 0, "an array's name before the bracket"),
        ("", 0, "an array's name"),
    ],
)
def test_bad_slices(server, path, text, position, piece):
    problem = refused(server, **{path: text.format({"of": "y", "wrt": "x"}[path])})
    assert problem["type"] == "/problems/invalid-slice"
    assert problem["path"] == path
    assert f"at character {position} expected " in problem["detail"]
    assert piece in problem["detail"]
    example = problem["detail"].rpartition("write it like ")[2]
    assert problem["expected"] == example
    response = server.post("/jacobian", json=REQUEST | {path: example})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("changes", "path", "kind", "piece"),
    [
        ({"of": 7}, "of", "invalid-slice", "as text, got int; write it like y[-1, :]"),
        ({"of": "z[0]"}, "of", "unknown-name", "there is no 'z' on the output side"),
        ({"of": "x"}, "of", "unknown-name", "there is no 'x' on the output side"),
        ({"wrt": "y"}, "wrt", "unknown-name", "there is no 'y' on the input side"),
        ({"wrt": "param.rnn_1.kernl"}, "wrt", "unknown-name", "did you mean param.rnn_1.kernel?"),
        ({"wrt": "state.rnn_3"}, "wrt", "unknown-name", "there is no 'state.rnn_3'"),
        ({"mode": "sideways"}, "mode", "unknown-name", "auto, forward, reverse"),
        ({"mode": ["forward"]}, "mode", "unknown-name", "auto, forward, reverse"),
        ({"plan": "yes"}, "plan", "invalid-request", "expected true or false"),
        ({"plan": 1}, "plan", "invalid-request", "expected true or false"),
        ({"of": None}, "of", "invalid-request", ""),
        ({"wrt": None}, "wrt", "invalid-request", ""),
        ({"inputs": {"x": X["x"][0]}}, "inputs.x", "invalid-array", "add a batch axis"),
        ({"strategy": "scan"}, "strategy", "unknown-name", ""),
    ],
)
def test_wrong_requests(server, changes, path, kind, piece):
    problem = refused(server, **changes)
    assert (problem["type"], problem["path"]) == (f"/problems/{kind}", path)
    assert piece in problem["detail"]


def test_integers_have_no_derivative(archive_server):
    request = {"model": "tokens", "inputs": {"x": [[1, 2, 3]]}, "of": "y[-1]"}
    response = archive_server.post("/jacobian", json=request | {"wrt": "x"})
    assert response.status_code == 422
    assert response.json()["type"] == "/problems/not-differentiable"
    assert "hidden.embedding.output" in response.json()["detail"]
    answer = archive_server.post("/jacobian", json=request | {"wrt": "hidden.embedding.output[1]"}).json()
    # The last LSTM gives its last output only, of which -1 is the last number.
    assert answer["axes"] == ["batch", "hidden.embedding.output.unit"]
    assert np.any(np.array(answer["jacobian"]) != 0)


# 44.9 GB.


BIG = {"of": "hidden.rnn.h", "wrt": "state.rnn.h"}
BYTES = 1403 * 200 * 200 * 100 * 8


@pytest.fixture(scope="module")
def big_server():
    network = keras.Sequential(
        [
            keras.Input((None, 1), dtype="float64"),
            keras.layers.SimpleRNN(200, return_sequences=True, dtype="float64", name="rnn"),
        ]
    )
    with TestClient(create_app(Settings(models=("stacked-rnn",), warm=False, compiled_programs=0))) as client:
        client.app.state.engine._registry.add(Version.of(Model("big", network), "a test's", {}))
        yield client


def send(server, operator, arrays, accept="application/json", **options):
    headers = {"Content-Type": CODEC.media_type, "Accept": accept}
    return server.post(
        f"/{operator}", content=CODEC.encode(Message({"model": "big"} | options, arrays)), headers=headers
    )


def graphs(server):
    return len(server.app.state.engine._runs.programs._graphs)


def test_a_jacobian_of_44_gigabytes_is_planned_and_refused(big_server):
    x = {"inputs.x": np.zeros((100, 1403, 1))}
    info = send(big_server, "jacobian", x, **BIG, plan=True).json()["info"]
    assert info["bytes"] == BYTES == 44_896_000_000
    assert info["shape"] == [100, 1403, 200, 200]
    assert (info["mode"], info["passes"]) == ("forward", 200)
    for accept in ("application/json", CODEC.media_type):
        response = send(big_server, "jacobian", x, accept, **BIG)
        assert response.status_code == 413
        problem = response.json()
        assert problem["type"] == "/problems/too-large"
        assert str(BYTES) in problem["detail"]
        assert "44.9 GB" in problem["detail"]
        assert "POST /jvp" in problem["detail"]
    assert graphs(big_server) == 0


def test_the_jvp_along_one_direction_of_it(big_server):
    x = np.random.default_rng(1).normal(size=(2, 1403, 1))
    v = np.zeros((2, 200))
    v[:, 17] = 1
    arrays = {"inputs.x": x, "tangents.state.rnn.h": v}
    found = send(big_server, "jvp", arrays, CODEC.media_type, outputs=["hidden.rnn.h"])
    assert found.status_code == 200, found.text
    pushed = CODEC.decode(found.content).arrays["tangents.hidden.rnn.h"]
    assert pushed.shape == (2, 1403, 200)
    column = send(big_server, "jacobian", {"inputs.x": x[:, :40]}, of="hidden.rnn.h[:40]", wrt="state.rnn.h[17]").json()
    np.testing.assert_allclose(column["jacobian"], pushed[:, :40], rtol=0, atol=1e-12)
