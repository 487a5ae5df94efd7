import numpy as np
import pytest

from pushforward.wire import Message, codecs

JSON = "application/json"
X = np.array([[[0.25], [-1.5]]])
CODECS = codecs().values()


def body(codec, envelope, **fields):
    return codec.encode(Message(envelope, {f"{field}.x": array for field, array in fields.items()}))


@pytest.mark.parametrize("writer", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("reader", CODECS, ids=lambda codec: codec.name)
def test_every_format_in_and_out(shell, reader, writer):
    response = shell.post(
        "/jvp",
        content=body(reader, {"model": "echo"}, inputs=X, tangents=3 * X),
        headers={"Content-Type": reader.media_type, "Accept": writer.media_type},
    )
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == writer.media_type
    assert response.headers["vary"] == "Accept"
    message = writer.decode(response.content)
    assert message.envelope == {"model": "echo", "version": 1, "info": {"rows": 1}}
    np.testing.assert_array_equal(message.arrays["outputs.y"], 2 * X)
    np.testing.assert_array_equal(message.arrays["tangents.y"], 6 * X)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("accept", [None, "*/*", "application/*", "text/html, */*;q=0.1"])
def test_answer_is_in_the_request_s_format_by_default(shell, codec, accept):
    headers = {"Content-Type": codec.media_type, "Accept": accept or ""}
    response = shell.post("/evaluate", content=body(codec, {"model": "echo"}, inputs=X), headers=headers)
    assert response.headers["content-type"] == codec.media_type


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/x-safetensors;q=0.5, application/x-npz;q=0.9", "application/x-npz"),
        ("application/json;q=0.1, application/x-npz", "application/x-npz"),
        ("application/json;q=0, application/*;q=0.2, application/x-npz;q=0.1", "application/x-safetensors"),
        ("APPLICATION/JSON", JSON),
    ],
)
def test_qualities(shell, accept, expected):
    response = shell.post("/evaluate", json={"model": "echo", "inputs": {"x": [1.0]}}, headers={"Accept": accept})
    assert response.headers["content-type"] == expected


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*, text/*"])
def test_no_such_answer(shell, fake_engine, accept):
    response = shell.post("/evaluate", json={"model": "echo", "inputs": {"x": [1.0]}}, headers={"Accept": accept})
    assert response.status_code == 406
    assert response.json()["type"] == "/problems/not-acceptable"
    assert JSON in response.json()["detail"]
    assert fake_engine.calls == []


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/octet-stream"]
)
def test_no_such_request(shell, content_type):
    response = shell.post("/evaluate", content=b"{}", headers={"Content-Type": content_type})
    assert response.status_code == 415
    assert response.json()["type"] == "/problems/unsupported-media-type"
    assert JSON in response.json()["detail"]


def test_parameters_of_the_content_type_do_not_matter(shell):
    content = b'{"model": "echo", "inputs": {"x": [1.0]}}'
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert shell.post("/evaluate", content=content, headers=headers).status_code == 200


def post(shell, path="/jvp", **members):
    request = {"model": "echo", "inputs": {"x": [1.0]}, "tangents": {"x": [1.0]}} | members
    return shell.post(path, json={name: value for name, value in request.items() if value is not ...})


def test_unknown_member(shell):
    response = post(shell, tangentz={"x": [1.0]})
    assert response.status_code == 422
    assert response.json()["type"] == "/problems/unknown-name"
    assert response.json()["path"] == "tangentz"
    for known in ("model", "inputs", "tangents", "outputs", "timeout_s"):
        assert known in response.json()["detail"]


def test_field_of_another_operator(shell):
    response = post(shell, "/evaluate")
    assert response.status_code == 422
    assert response.json()["type"] == "/problems/unknown-name"
    assert response.json()["path"] == "tangents"


def test_unnamed_tensor(shell):
    codec = codecs()["safetensors"]
    content = codec.encode(Message({"model": "echo"}, {"inputs": X}))
    response = shell.post("/evaluate", content=content, headers={"Content-Type": codec.media_type})
    assert response.status_code == 422
    assert response.json()["path"] == "inputs"


@pytest.mark.parametrize("member", ["model", "inputs", "tangents"])
def test_missing_member(shell, member):
    response = post(shell, **{member: ...})
    assert response.status_code == 422
    assert response.json()["type"] == "/problems/invalid-request"
    assert response.json()["path"] == member


@pytest.mark.parametrize("model", [3, None, "", ["echo"]])
def test_model_of_the_wrong_type(shell, model):
    response = post(shell, model=model)
    assert response.status_code == 422
    assert response.json()["path"] == "model"


@pytest.mark.parametrize("timeout_s", [0, -1, "10", True, [1]])
def test_bad_timeout(shell, timeout_s):
    response = post(shell, timeout_s=timeout_s)
    assert response.status_code == 422
    assert response.json()["path"] == "timeout_s"


def test_the_call(shell, fake_engine):
    assert post(shell, model="echo@1", timeout_s=2, outputs=["y"], encoding="list").status_code == 200
    (call,) = fake_engine.calls
    assert (call.model, call.operator, call.timeout_s) == ("echo@1", "jvp", 2.0)
    assert call.options == {"outputs": ["y"]}
    assert list(call.arrays) == ["inputs", "tangents"]
    np.testing.assert_array_equal(call.arrays["tangents"]["x"], [1.0])


def test_base64_answer(shell):
    y = post(shell, encoding="base64").json()["outputs"]["y"]
    assert (y["dtype"], y["shape"]) == ("float64", [1])


@pytest.mark.parametrize(
    ("encoding", "received"), [("hex", "hex"), ("x" * 99, "x" * 80), (["list"], "list"), (None, "NoneType")]
)
def test_bad_encoding(shell, encoding, received):
    problem = post(shell, encoding=encoding).json()
    assert (problem["path"], problem["received"]) == ("encoding", received)


def test_an_answer_that_cannot_be_written_is_our_fault(shell):
    response = post(shell, outputs=["unspeakable"])
    assert response.status_code == 500
    assert response.json()["type"] == "/problems/internal-error"


def test_unknown_model(shell):
    response = post(shell, model="none-such")
    assert response.status_code == 404
    assert response.json()["type"] == "/problems/unknown-model"


def test_deadline(shell):
    response = post(shell, model="late")
    assert response.status_code == 504
    assert response.json()["type"] == "/problems/deadline-exceeded"


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_malformed_body(shell, codec):
    content = body(codec, {"model": "echo"}, inputs=X)[:-9]
    response = shell.post("/evaluate", content=content, headers={"Content-Type": codec.media_type})
    assert response.status_code == 400
    assert response.json()["type"] == "/problems/malformed-body"


def test_body_nested_deeply(shell):
    response = shell.post("/evaluate", content=b"[" * 100_000, headers={"Content-Type": JSON})
    assert response.status_code == 400
    assert response.json()["type"] == "/problems/malformed-body"


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_answer_over_the_limit(make_shell, codec):
    with make_shell(max_response_mb=0.01) as client:
        content = body(codec, {"model": "echo"}, inputs=np.zeros((10, 1000, 1)))
        response = client.post("/evaluate", content=content, headers={"Content-Type": codec.media_type})
    assert response.status_code == 413
    problem = response.json()
    assert problem["type"] == "/problems/too-large"
    assert "80000" in problem["detail"]
    assert "10000" in problem["detail"]
    assert "PUSHFORWARD_MAX_RESPONSE_MB" in problem["detail"]


def test_text_over_the_limit(make_shell):
    # 4 kB of numbers, whose text is longer.
    with make_shell(max_response_mb=0.005) as client:
        response = client.post("/evaluate", json={"model": "echo", "inputs": {"x": (np.ones(500) / 3).tolist()}})
    assert response.status_code == 413


def test_large_bodies_take_the_thread(shell):
    x = np.random.default_rng(0).standard_normal((100, 100, 3))
    response = shell.post("/evaluate", json={"model": "echo", "inputs": {"x": x.tolist()}})
    np.testing.assert_array_equal(response.json()["outputs"]["y"], 2 * x)
