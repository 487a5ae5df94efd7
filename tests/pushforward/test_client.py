import json
import threading

import httpx2
import numpy as np
import pytest

import pushforward
from pushforward.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArray,
    Overloaded,
    PushforwardError,
    by_slug,
)
from pushforward.wire import Message, codecs

CODEC = codecs()["safetensors"]
X = np.arange(6.0).reshape(1, 3, 2)
Y = np.ones((1, 3, 1), np.float32)


class Server:
    """Answers with whatever it was told to, and remembers what it was asked."""

    def __init__(self, answer: httpx2.Response | Exception | None = None) -> None:
        self.answer = answer
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        arrays = {
            "outputs.y": Y,
            "tangents.y": 2 * Y,
            "cotangents.x": X,
            "cotangents.param.gru.kernel": X,
            "jacobian": X,
        }
        envelope = {"model": "m", "version": 3, "info": {"strategy": "scan"}, "axes": ["batch"]}
        return httpx2.Response(
            200, content=CODEC.encode(Message(envelope, arrays)), headers={"Content-Type": CODEC.media_type}
        )

    @property
    def asked(self) -> Message:
        return CODEC.decode(self.requests[-1].read())


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def client(server):
    with pushforward.Client(
        "http://test/api/", transport=httpx2.MockTransport(server), headers={"Authorization": "key"}
    ) as client:
        yield client


def test_evaluate(client, server):
    answer = client.evaluate("m", X, outputs=["y"])
    assert isinstance(answer, pushforward.Evaluation)
    assert (answer.model, answer.version, answer.info) == ("m", 3, {"strategy": "scan"})
    np.testing.assert_array_equal(answer.outputs["y"], Y, strict=True)
    assert server.asked.envelope == {"model": "m", "outputs": ["y"]}
    np.testing.assert_array_equal(server.asked.arrays["inputs.x"], X, strict=True)
    request = server.requests[-1]
    assert (request.method, request.url.path) == ("POST", "/api/evaluate")
    assert request.headers["Content-Type"] == request.headers["Accept"] == CODEC.media_type
    assert request.headers["Authorization"] == "key"


def test_jvp(client, server):
    answer = client.jvp("m@3", {"x": X, "state.gru.h": [[0.5]]}, {"param.gru.kernel": X}, timeout_s=7, check=True)
    assert isinstance(answer, pushforward.JVP)
    np.testing.assert_array_equal(answer.tangents["y"], 2 * Y, strict=True)
    assert server.asked.envelope == {"model": "m@3", "strategy": "auto", "timeout_s": 7, "check": True}
    assert server.asked.arrays.keys() == {"inputs.x", "inputs.state.gru.h", "tangents.param.gru.kernel"}
    assert server.requests[-1].extensions["timeout"]["read"] > 7


def test_vjp(client, server):
    answer = client.vjp("m", X, Y, wrt=["x", "param.gru.kernel"], strategy="scan")
    assert isinstance(answer, pushforward.VJP)
    assert answer.cotangents.keys() == {"x", "param.gru.kernel"}
    np.testing.assert_array_equal(answer.outputs["y"], Y, strict=True)
    assert server.asked.envelope == {"model": "m", "wrt": ["x", "param.gru.kernel"], "strategy": "scan"}
    assert server.asked.arrays.keys() == {"inputs.x", "cotangents.y"}


def test_an_operator_without_a_method(client, server):
    answer = client.call("jacobian", "m", {"inputs": X}, of="y[-1]", wrt="x")
    assert server.requests[-1].url.path == "/api/jacobian"
    assert server.asked.envelope == {"model": "m", "of": "y[-1]", "wrt": "x"}
    assert answer.fields["axes"] == ["batch"]
    np.testing.assert_array_equal(answer.fields["jacobian"], X, strict=True)
    assert answer.named("nothing") == {}


PLAN = {"mode": "forward", "passes": 10, "steps": 3, "chunks": 1, "shape": [1, 1, 10], "bytes": 80, "seconds": 0.5}


def answered(envelope, **arrays):
    content = CODEC.encode(Message({"model": "m", "version": 3, **envelope}, arrays))
    return httpx2.Response(200, content=content, headers={"Content-Type": CODEC.media_type})


def test_plan(client, server):
    info = {**PLAN, "why": "fewer passes"}
    server.answer = answered({"axes": ["batch", "y.feature", "x.time"], "info": info})
    plan = client.plan("m", X, of="y[-1]", wrt="x[:, 0]", mode="forward", timeout_s=7, check=True)
    assert isinstance(plan, pushforward.Plan)
    assert (plan.shape, plan.bytes, plan.mode, plan.passes, plan.seconds) == ((1, 1, 10), 80, "forward", 10, 0.5)
    assert (plan.why, plan.axes, plan.info) == ("fewer passes", ["batch", "y.feature", "x.time"], info)
    assert (plan.model, plan.version) == ("m", 3)
    assert server.requests[-1].url.path == "/api/jacobian"
    asked = {"model": "m", "of": "y[-1]", "wrt": "x[:, 0]", "mode": "forward", "plan": True}
    assert server.asked.envelope == {**asked, "timeout_s": 7, "check": True}


@pytest.mark.parametrize(
    ("envelope", "missing"), [({"axes": [], "info": PLAN}, r"info\.why"), ({"info": {**PLAN, "why": ""}}, "axes")]
)
def test_a_plan_that_lacks_something(client, server, envelope, missing):
    server.answer = answered(envelope)
    with pytest.raises(PushforwardError, match=f"the server's answer has no {missing}; "):
        client.plan("m", X, of="y", wrt="x")


def test_transitions(client, server):
    a, d = np.ones((1, 3, 2, 2), np.float32), np.ones((1, 3, 1, 2), np.float32)
    server.answer = answered({"order": ["gru.h[0:2]"], "info": {"check": {}}}, A=a, D=d)
    answer = client.transitions("m", {"x": X, "state.gru.h": [[0.5]]}, parts=("A", "D"), timeout_s=7, check=True)
    assert isinstance(answer, pushforward.Transitions)
    np.testing.assert_array_equal(answer.A, a, strict=True)
    np.testing.assert_array_equal(answer.D, d, strict=True)
    assert (answer.B, answer.C) == (None, None)
    assert (answer.order, answer.info, answer.model, answer.version) == (["gru.h[0:2]"], {"check": {}}, "m", 3)
    assert server.requests[-1].url.path == "/api/transitions"
    assert server.asked.envelope == {"model": "m", "parts": ["A", "D"], "timeout_s": 7, "check": True}
    assert server.asked.arrays.keys() == {"inputs.x", "inputs.state.gru.h"}


def test_transitions_of_all_parts(client, server):
    parts = {part: np.full((1, 3, 2, 2), i) for i, part in enumerate("ABCD")}
    server.answer = answered({"order": ["gru.h[0:2]"]}, **parts)
    answer = client.transitions("m", X)
    assert server.asked.envelope == {"model": "m"}
    for part, array in parts.items():
        np.testing.assert_array_equal(getattr(answer, part), array, strict=True)


def test_models(client, server):
    server.answer = httpx2.Response(200, json=[{"name": "m"}])
    assert client.models() == [{"name": "m"}]
    assert server.requests[-1].url.path == "/api/models"
    server.answer = httpx2.Response(200, json={"name": "m", "version": 1})
    assert client.model("a b/c@1") == {"name": "m", "version": 1}
    assert server.requests[-1].url.raw_path == b"/api/models/a%20b%2Fc@1"


@pytest.mark.parametrize("slug", by_slug)
@pytest.mark.parametrize(
    "ask", [lambda client: client.models(), lambda client: client.jvp("m", X, X)], ids=["get", "post"]
)
def test_errors_are_rebuilt_from_their_type(client, server, ask, slug):
    problem = {
        "type": f"/problems/{slug}",
        "title": "t",
        "status": 422,
        "detail": "inputs.x: wrong",
        "path": "inputs.x",
        "request_id": "r",
    }
    server.answer = httpx2.Response(
        422, content=json.dumps(problem), headers={"Content-Type": "application/problem+json"}
    )
    with pytest.raises(PushforwardError) as caught:
        ask(client)
    assert type(caught.value) is by_slug[slug]
    assert (str(caught.value), caught.value.path, caught.value.request_id) == ("inputs.x: wrong", "inputs.x", "r")


def test_retry_after_is_read_from_the_header(client, server):
    problem = {"type": "/problems/overloaded", "detail": "queue full"}
    headers = {"Content-Type": "application/problem+json", "Retry-After": "3"}
    server.answer = httpx2.Response(503, content=json.dumps(problem), headers=headers)
    with pytest.raises(Overloaded) as caught:
        client.models()
    assert caught.value.retry_after_s == 3


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(502, text="<html>Bad gateway", headers={"Content-Type": "text/html"}),
        httpx2.Response(307, headers={"Location": "/elsewhere"}),
        httpx2.Response(500, text="{", headers={"Content-Type": "application/problem+json"}),
        httpx2.Response(500, text="[]", headers={"Content-Type": "application/problem+json"}),
        httpx2.Response(404),
        httpx2.Response(200, text="<html>Welcome", headers={"Content-Type": "text/html"}),
        httpx2.Response(200, text="short", headers={"Content-Type": CODEC.media_type}),
    ],
)
@pytest.mark.parametrize(
    "ask", [lambda client: client.models(), lambda client: client.evaluate("m", X)], ids=["get", "post"]
)
def test_answers_that_are_not_ours_raise_a_clear_error(client, server, ask, answer):
    server.answer = answer
    with pytest.raises(PushforwardError, match=r"answered \d+|can't be read") as caught:
        ask(client)
    assert type(caught.value) is PushforwardError


@pytest.mark.parametrize(
    "failure", [httpx2.ConnectError("refused"), httpx2.ReadError("reset"), httpx2.ConnectTimeout("slow")]
)
def test_a_lost_connection(client, server, failure):
    server.answer = failure
    with pytest.raises(ConnectionFailed, match="can't reach http://test: "):
        client.models()


def test_an_answer_that_does_not_come(client, server):
    server.answer = httpx2.ReadTimeout("")
    with pytest.raises(DeadlineExceeded, match=r"no answer within 300\.0 s"):
        client.models()


def test_credentials_in_the_url_stay_out_of_messages():
    failing = httpx2.MockTransport(Server(httpx2.Response(502)))
    with (
        pushforward.Client("http://user:secret@test", transport=failing) as client,
        pytest.raises(PushforwardError) as caught,
    ):
        client.models()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000", "http://127.0.0.1:1"])
def test_no_server(url):
    with pushforward.Client(url, timeout=2) as client, pytest.raises(ConnectionFailed):
        client.models()


def test_what_is_not_an_array_is_not_sent(client, server):
    with pytest.raises(InvalidArray, match=r"^tangents\.x: dtype"):
        client.jvp("m", X, ["a"])
    with pytest.raises(InvalidArray, match=r"^tangents\.x: not an array"):
        client.jvp("m", X, [[1.0], [1.0, 2.0]])
    assert not server.requests


def test_threads_share_a_client(client, server):
    threads = [threading.Thread(target=client.evaluate, args=("m", X)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 8


def authorization(server, **options):
    with pushforward.Client("http://test", transport=httpx2.MockTransport(server), **options) as client:
        client.evaluate("m", X)
        shown = f"{client!r} {client._connection!r} {client._connection._http!r} {client._connection._http.headers!r}"
    return server.requests[-1].headers.get("Authorization"), shown


def test_a_key_is_sent_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_API_KEY", "from-the-environment")
    for key, options in {
        "from-the-environment": {},
        "given": {"api_key": "given", "headers": {"authorization": "Basic x", "X-More": "1"}},
    }.items():
        sent, shown = authorization(server, **options)
        assert sent == f"Bearer {key}"
        assert key not in shown
    assert authorization(server, headers={"authorization": "Basic x"})[0] == "Basic x"
    monkeypatch.setenv("PUSHFORWARD_API_KEY", "")
    assert authorization(server)[0] is None


@pytest.mark.parametrize("key", ["", "secret\n", "se cret", "\tsecret", "sécret", "secret\r\nX-Other: 1"])
def test_what_can_t_be_a_key_is_refused_and_not_quoted(key):
    with pytest.raises(ValueError, match="api_key") as caught:
        pushforward.Client("http://test", api_key=key)
    assert "cret" not in str(caught.value)
