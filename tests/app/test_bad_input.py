"""Each kind of bad request: the documented status and type of problem, and a message that says what to change."""

import functools
import json

import numpy as np
import pytest

from pushforward.wire import Message, codecs

MODEL = "stacked-rnn"
X = np.linspace(-1, 1, 24).reshape(2, 3, 4)
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def refuse(server):
    """Send a request that must be refused with a status and a type; return its problem document."""
    return functools.partial(refused, server)


def refused(client, path, status, slug, content, *words, media_type="application/json", at=None):
    if isinstance(content, dict):
        content = json.dumps(content, default=np.ndarray.tolist).encode()
    response = client.post(path, content=content, headers={"Content-Type": media_type})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == f"/problems/{slug}"
    assert problem["status"] == status
    assert problem["request_id"] == response.headers["x-request-id"]
    for word in words:
        assert word in problem["detail"], problem["detail"]
    assert problem.get("path") == at
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    assert client.get(problem["type"]).status_code == 200
    return problem


def request(**fields):
    return {"model": MODEL, "inputs": {"x": X}} | fields


def jvp(**fields):
    return request(tangents={"x": X}) | fields


def vjp(**fields):
    return request(cotangents={"y": X}) | fields


@pytest.mark.parametrize("path", ["/evaluate", "/jvp", "/vjp"])
def test_unknown_model(refuse, path):
    refuse(
        path,
        404,
        "unknown-model",
        vjp(model="rnn-stacked") if path == "/vjp" else {"/evaluate": request, "/jvp": jvp}[path](model="rnn-stacked"),
        "'rnn-stacked'",
        MODEL,
        at="model",
    )


@pytest.mark.parametrize("version", ["2", "", "one", "1@1"])
def test_unknown_version(refuse, version):
    refuse("/evaluate", 404, "unknown-model", request(model=f"{MODEL}@{version}"), repr(version), "1", at="model")


def test_known_version(ask):
    assert ask("evaluate", f"{MODEL}@1", {"inputs.x": X}).envelope["version"] == 1


@pytest.mark.parametrize(
    ("path", "fields", "at", "words"),
    [
        ("/evaluate", request(inputs={"x": X, "z": X}), "inputs.z", ["'z'", "state.rnn_1.h"]),
        ("/evaluate", request(inputs={"x": X, "state.rnn1.h": X}), "inputs.state.rnn1.h", ["mean state.rnn_1.h"]),
        ("/evaluate", request(outputs=["x"]), "outputs[0]", ["'x'", "y"]),
        ("/evaluate", request(outputs=["y", "hidden.rnn_3.h"]), "outputs[1]", ["hidden.rnn_2.h"]),
        ("/jvp", jvp(tangents={"y": X}), "tangents.y", ["'y'", "x"]),
        ("/jvp", jvp(tangents={"param.rnn_1": X}), "tangents.param.rnn_1", ["param.rnn_1.bias"]),
        ("/vjp", vjp(cotangents={"x": X}), "cotangents.x", ["'x'", "y"]),
        ("/vjp", vjp(wrt=["x", "y"]), "wrt[1]", ["'y'", "x"]),
        ("/vjp", vjp(wrt=["x" * 5000]), "wrt[0]", ["param.rnn_1.kernel"]),
    ],
)  # fmt: skip
def test_unknown_name(refuse, path, fields, at, words):
    problem = refuse(path, 422, "unknown-name", fields, *words, at=at)
    assert problem["expected"]
    assert len(problem["detail"]) < 1000


def test_unknown_option(refuse):
    refuse("/evaluate", 422, "unknown-name", request(output=["y"]), "it takes", "outputs", at="output")


@pytest.mark.parametrize(
    ("strategy", "received"),
    [("forward",) * 2, ("SCAN",) * 2, (1, "int"), (["scan"], "list"), ({}, "dict"), ("x" * 2000, "x" * 80)],
)
@pytest.mark.parametrize("path", ["/evaluate", "/jvp"])
def test_unknown_strategy(refuse, path, strategy, received):
    fields = (jvp if path == "/jvp" else request)(strategy=strategy)
    problem = refuse(path, 422, "unknown-name", fields, "auto", "scan", "unrolled", "reverse", at="strategy")
    assert problem["received"] == received


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[0], ["(batch, time, 4)", "(3, 4)", "add a batch axis"]),
        (X[..., 0], ["(batch, time, 4)", "(2, 3)", "add a feature axis"]),
        (X[None], ["(1, 2, 3, 4)", "3 axes, not 4"]),
        (np.array(1.0), ["()", "3 axes"]),
        (X[..., :3], ["(2, 3, 3)", "feature must have size 4, not 3"]),
        (np.zeros((0, 3, 4)), ["batch", "empty"]),
        (np.zeros((2, 0, 4)), ["time", "empty"]),
        (np.zeros((2, 3, 0)), ["feature must have size 4, not 0"]),
    ],
    ids=["no batch", "no feature", "too many", "scalar", "feature size", "empty batch", "empty time", "no features"],
)
@pytest.mark.parametrize("path", ["/evaluate", "/jvp", "/vjp"])
def test_misfitting_input(refuse, path, x, words):
    fields = {"/evaluate": request, "/jvp": jvp, "/vjp": vjp}[path](inputs={"x": x})
    content = codecs()["safetensors"].encode(message(fields))
    refuse(path, 422, "invalid-array", content, *words, media_type="application/x-safetensors", at="inputs.x")


def message(fields):
    groups = {name: value for name, value in fields.items() if name in ("inputs", "tangents", "cotangents")}
    arrays = {f"{field}.{name}": array for field, group in groups.items() for name, array in group.items()}
    return Message({name: value for name, value in fields.items() if name not in groups}, arrays)


def test_missing_input(refuse):
    fields = request(inputs={"state.rnn_1.h": X[:, 0]})
    refuse("/evaluate", 422, "invalid-array", fields, "(batch, time, 4)", "must be given", at="inputs.x")


def test_different_batch_sizes(refuse):
    fields = request(inputs={"x": X, "state.rnn_1.h": np.zeros((3, 4))})
    words = ["batch size 2, as inputs.x has, got 3"]
    refuse("/evaluate", 422, "invalid-array", fields, *words, at="inputs.state.rnn_1.h")


def test_wrong_state_size(refuse):
    fields = request(inputs={"x": X, "state.rnn_1.h": np.zeros((2, 5))})
    refuse("/evaluate", 422, "invalid-array", fields, "unit must have size 4, not 5", at="inputs.state.rnn_1.h")


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 2, 4), ["(2, 3, 4)", "(2, 2, 4)", "time must have size 3, not 2"]),
        ((1, 3, 4), ["batch must have size 2, not 1"]),
        ((3, 4), ["(2, 3, 4)", "(3, 4)", "one more axis"]),
        ((4,), ["one more axis"]),
        ((1, 1, 2, 3, 4), ["one more axis"]),
        ((5, 2, 3, 3), ["feature must have size 4, not 3"]),
        ((0, 2, 3, 4), ["directions", "empty"]),
    ],
    ids=str,
)
def test_direction_of_another_shape_than_its_array(refuse, shape, words):
    v = np.zeros(shape)
    content = codecs()["npz"].encode(message(jvp(tangents={"x": v})))
    refuse("/jvp", 422, "invalid-array", content, *words, media_type="application/x-npz", at="tangents.x")
    words = [word.replace("feature", "unit") for word in words if "feature" not in word]
    content = codecs()["npz"].encode(message(vjp(cotangents={"y": v})))
    refuse("/vjp", 422, "invalid-array", content, *words, media_type="application/x-npz", at="cotangents.y")


def test_direction_of_a_weight_of_another_shape(refuse):
    fields = jvp(tangents={"param.rnn_1.bias": np.zeros(5)})
    refuse("/jvp", 422, "invalid-array", fields, "size 4, not 5", at="tangents.param.rnn_1.bias")


@pytest.mark.parametrize(
    ("path", "field", "a", "b"),
    [
        ("/jvp", "tangents", "x", "state.rnn_1.h"),
        ("/vjp", "cotangents", "y", "state.rnn_1.h"),
    ],
)
def test_different_numbers_of_stacked_directions(refuse, path, field, a, b):
    directions = {a: np.zeros((3, 2, 3, 4)), b: np.zeros((2, 2, 4))}
    words = [f"3 stacked directions, as {field}.{a} has, got 2", "share K"]
    refuse(path, 422, "invalid-array", request(**{field: directions}), *words, at=f"{field}.{b}")


@pytest.mark.parametrize("value", [..., {}], ids=["absent", "empty"])
@pytest.mark.parametrize(("path", "field"), [("/jvp", "tangents"), ("/vjp", "cotangents"), ("/evaluate", "inputs")])
def test_no_array_at_all(refuse, path, field, value):
    fields = {"/evaluate": request, "/jvp": jvp, "/vjp": vjp}[path](**{field: value})
    fields = {name: item for name, item in fields.items() if item is not ...}
    refuse(path, 422, "invalid-request", fields, "got none", at=field)


@pytest.mark.parametrize("value", [X.tolist(), "x", 3, None])
def test_arrays_without_names(refuse, value):
    refuse("/evaluate", 422, "invalid-request", request(inputs=value), "object of named arrays", at="inputs")


@pytest.mark.parametrize("path", ["/evaluate", "/jvp"])
def test_weights_as_inputs(refuse, path):
    fields = (jvp if path == "/jvp" else request)(inputs={"x": X, "param.rnn_1.bias": np.zeros(4)})
    refuse(path, 422, "unknown-name", fields, "weights can't be overridden", at="inputs.param.rnn_1.bias")


def test_hidden_states_as_inputs(refuse):
    fields = request(inputs={"x": X, "hidden.rnn_1.h": X})
    refuse("/evaluate", 422, "unknown-name", fields, "always a zero perturbation", at="inputs.hidden.rnn_1.h")


@pytest.mark.parametrize("value", [["y", "y"], ["y", "state.rnn_1.h", "y"]])
def test_doubled_name(refuse, value):
    refuse("/evaluate", 422, "invalid-request", request(outputs=value), "'y' is named twice", at="outputs")
    refuse("/vjp", 422, "invalid-request", vjp(wrt=["x", "x"]), "'x' is named twice", at="wrt")


@pytest.mark.parametrize("value", [[], "y", [1], [None], {"y": "y"}, 3, True])
def test_names_that_are_no_list_of_names(refuse, value):
    if value == {"y": "y"}:
        refuse("/evaluate", 422, "invalid-array", request(outputs=value), "expected numbers", at="outputs.y")
    else:
        words = "list of at least one name"
        problem = refuse("/evaluate", 422, "invalid-request", request(outputs=value), words, at="outputs")
        assert problem["received"] == ("an empty list" if value == [] else type(value).__name__)


def test_arrays_where_names_belong(refuse):
    refuse("/evaluate", 422, "invalid-request", request(outputs={"y": X}), "/evaluate", "no array", at="outputs.y")


def body(x):
    return b'{"model": "%b", "inputs": {"x": %b}}' % (MODEL.encode(), x)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (b'[[["1", 2, 3, 4]]]', ["expected numbers", "'1'", "[0][0][0]"]),
        (b'[[[1, 2, 3, "four"]]]', ["expected numbers", "'four'", "[0][0][3]"]),
        (b"[[[1, 2, 3, null]]]", ["expected numbers", "null", '"NaN"']),
        (b'[[[1, 2, 3, "nan"]]]', ["'nan'", '"NaN"', '"Infinity"', '"-Infinity"']),
        (b'[[[1, 2, 3, "inf"]]]', ["'inf'", '"Infinity"']),
        (b'[[[1, 2, 3, "+Infinity"]]]', ['"Infinity"']),
        (b'[[[1, 2, 3, "1+2j"]]]', ["expected numbers"]),
        (b'[[[1, 2, 3, {"re": 1}]]]', ["an object"]),
        (b"[[[1, 2, 3, true]]]", ["a boolean among numbers"]),
        (b"[[[1, 2, 3, 4], [1, 2, 3]]]", ["ragged at [0][1]", "a list of 4", "a list of 3"]),
        (b"[[[1, 2, 3, 4], 5]]", ["ragged at [0][1]"]),
        (b'"[[[1, 2, 3, 4]]]"', ["expected numbers"]),
        (b'{"dtype": "float64", "shape": [1, 1, 4], "base64": "AAAA"}', ["takes 32 bytes, but there are 3"]),
        (b'{"dtype": "float64", "shape": [1, 1, 4], "base64": "?"}', ["base64"]),
        (b'{"dtype": "complex128", "shape": [1, 1, 4], "base64": ""}', ["unknown dtype 'complex128'", "float64"]),
        (b'{"dtype": "float64", "shape": [1, 1, -4], "base64": ""}', ["non-negative"]),
        (b'{"dtype": "float64", "shape": [99999999999, 99999999999, 4], "base64": ""}', ["bytes"]),
        (b'{"shape": [1, 1, 4], "base64": ""}', ['"dtype"']),
    ],
)
def test_what_is_no_array(refuse, x, words):
    refuse("/evaluate", 422, "invalid-array", body(x), *words, at="inputs.x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"{", ["line 1 column"]),
        (body(b"[[[1, 2, 3, 4]]]")[:-1], ["line 1 column"]),
        (body(b"[[[1, 2, 3, 4,]]]"), ["line 1 column"]),
        (body(b"[[[1, 2, 3, NaN]]]"), ['"NaN"']),
        (body(b"[[[1, 2, 3, -Infinity]]]"), ['"-Infinity"']),
        (body(b"[[[1, 2, 3, 0x4]]]"), ["line 1 column"]),
        (b"[1, 2]", ["JSON object"]),
        (b"\xff\xfe", ["not valid JSON"]),
        (b"[" * 100_000, ["not valid JSON"]),
        (body(b"[" * 100_000 + b"]" * 100_000), ["64 axes"]),
        (b'{"model":' * 100_000, ["not valid JSON"]),
    ],
    ids=["empty", "brace", "cut off", "comma", "NaN", "-Infinity", "hex", "list", "UTF-16", "open", "deep", "objects"],
)
def test_broken_json(refuse, content, words):
    at = "envelope" if words == ["JSON object"] else None
    problem = refuse("/evaluate", 400, "malformed-body", content, *words, at=at)
    assert len(problem["detail"]) < 500


def test_axes_beyond_what_an_array_has(refuse):
    refuse("/evaluate", 422, "invalid-array", body(b"[" * 70 + b"1" + b"]" * 70), "64 axes", at="inputs.x")


@pytest.mark.parametrize("cut", [0, 7, 20, -1, -100])
def test_truncated_safetensors(refuse, cut):
    content = codecs()["safetensors"].encode(message(request()))[:cut]
    response = ["truncated"] if cut in (20, -1, -100) else ["safetensors"]
    at = "inputs.x" if cut < 0 else None
    refuse("/evaluate", 400, "malformed-body", content, *response, media_type="application/x-safetensors", at=at)


def test_safetensors_that_lies_about_sizes(refuse):
    content = codecs()["safetensors"].encode(message(request()))
    for old, new in ((b'"shape":[2,3,4]', b'"shape":[2,3,9]'), (b"[0,192]", b"[0,999]")):
        assert old in content
        lie = content.replace(old, new)
        refuse("/evaluate", 400, "malformed-body", lie, media_type="application/x-safetensors", at="inputs.x")


def test_npz_with_a_pickled_object(refuse, tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, **{"envelope": np.array('{"model": "stacked-rnn"}'), "inputs.x": np.array([{"a": 1}], dtype=object)})
    words = ["pickled object", "never loaded", "array of numbers"]
    content = path.read_bytes()
    refuse("/evaluate", 400, "malformed-body", content, *words, media_type="application/x-npz", at="inputs.x")


@pytest.mark.parametrize("dtype", ["complex128", "datetime64[s]", "U3"])
def test_npz_of_another_dtype(refuse, tmp_path, dtype):
    path = tmp_path / "bad.npz"
    np.savez(path, **{"envelope": np.array('{"model": "stacked-rnn"}'), "inputs.x": np.zeros((1, 1, 4)).astype(dtype)})
    content = path.read_bytes()
    refuse("/evaluate", 400, "malformed-body", content, "float64", media_type="application/x-npz", at="inputs.x")


def test_truncated_npz(refuse):
    content = codecs()["npz"].encode(message(request()))[:-30]
    refuse("/evaluate", 400, "malformed-body", content, "npz", media_type="application/x-npz")


def test_binary_body_without_an_envelope(refuse):
    content = codecs()["safetensors"].encode(Message({}, {"inputs.x": X}))
    media_type = "application/x-safetensors"
    refuse("/evaluate", 422, "invalid-request", content, "/evaluate", media_type=media_type, at="model")


@pytest.mark.parametrize("timeout_s", [0, -1, "1", [], 1e999])
def test_bad_timeout(refuse, timeout_s):
    content = json.dumps(request(timeout_s=timeout_s), default=np.ndarray.tolist).replace("Infinity", "1e999")
    if timeout_s == 1e999:
        refuse("/evaluate", 400, "malformed-body", content.encode())
    else:
        refuse("/evaluate", 422, "invalid-request", content.encode(), "seconds above 0", at="timeout_s")


def test_an_array_is_never_echoed(server):
    marker = 123456.789
    x = np.full((2, 3, 3), marker)
    for path, fields in (("/evaluate", request(inputs={"x": x})), ("/jvp", jvp(tangents={"x": x}))):
        response = server.post(path, content=json.dumps(fields, default=np.ndarray.tolist), headers=JSON)
        assert response.status_code == 422
        assert str(marker) not in response.text


def test_numbers_beyond_the_model_s_dtype(refuse):
    fields = {"model": "lstm-last", "inputs": {"x": np.full((1, 2, 8), 1e39)}}
    refuse("/evaluate", 422, "invalid-array", fields, "float32", "range", at="inputs.x")


TOKENS = np.array([[1, 2, 4]])
EMBEDDED = "hidden.embedding.output"


@pytest.mark.parametrize(
    ("path", "fields", "at"),
    [
        ("/jvp", {"tangents": {"x": np.ones((1, 3))}}, "tangents.x"),
        ("/vjp", {"cotangents": {"y": np.ones((1, 4))}, "wrt": ["x"]}, "wrt[0]"),
    ],
)
def test_derivative_along_integers(archive_server, path, fields, at):
    request = {"model": "tokens", "inputs": {"x": TOKENS}} | fields
    words = ["int32", "no tangent", "embedding's output", EMBEDDED]
    refused(archive_server, path, 422, "not-differentiable", request, *words, at=at)


def test_derivative_where_the_refusal_says(archive_server):
    request = {"model": "tokens", "inputs": {"x": TOKENS.tolist()}}
    u, v = np.arange(1.0, 5.0).reshape(1, 4), np.arange(9.0).reshape(1, 3, 3)
    jvp = archive_server.post("/jvp", json=request | {"tangents": {EMBEDDED: v.tolist()}})
    vjp = archive_server.post("/vjp", json=request | {"cotangents": {"y": u.tolist()}, "wrt": [EMBEDDED]})
    pushed, pulled = np.array(jvp.json()["tangents"]["y"]), np.array(vjp.json()["cotangents"][EMBEDDED])
    np.testing.assert_allclose(np.vdot(u, pushed), np.vdot(pulled, v), rtol=1e-5)


@pytest.mark.parametrize("wrt", [..., None])
def test_cotangents_of_integers_by_default(archive_server, wrt):
    request = {"model": "tokens", "inputs": {"x": TOKENS}, "cotangents": {"y": np.ones((1, 4))}, "wrt": wrt}
    request = {name: value for name, value in request.items() if value is not ...}
    refused(archive_server, "/vjp", 422, "invalid-request", request, "integers", "states or parameters", at="wrt")


@pytest.mark.parametrize("repeat", [1, 2, 3])
@pytest.mark.parametrize("token", [5, 2**31 - 1])
def test_token_beyond_the_vocabulary(archive_server, token, repeat):
    request = {"model": "tokens", "inputs": {"x": [[1, token]]}}
    refused(archive_server, "/evaluate", 422, "invalid-array", request, "'tokens'", "[0, 5)", at="inputs")


@pytest.mark.parametrize(
    ("x", "words"),
    [([[1.0, 2.0]], ["int32", "float64"]), ([[1, 2**40]], ["int32", "range"]), ([[True]], ["int32", "bool"])],
)
def test_tokens_that_are_no_int32(archive_server, x, words):
    request = {"model": "tokens", "inputs": {"x": x}}
    refused(archive_server, "/evaluate", 422, "invalid-array", request, *words, at="inputs.x")


def test_the_weights_of_an_embedding_have_derivatives(archive_server):
    v = np.zeros((5, 3))
    v[0] = 1.0
    request = {
        "model": "tokens",
        "inputs": {"x": TOKENS.tolist()},
        "tangents": {"param.embedding.embeddings": v.tolist()},
    }
    response = archive_server.post("/jvp", json=request)
    assert response.status_code == 200, response.text
    # No zeroth token in the sequence.
    assert response.json()["tangents"]["y"] == [[0.0] * 4]
    v[1] = 1.0
    request["tangents"] = {"param.embedding.embeddings": v.tolist()}
    assert np.any(archive_server.post("/jvp", json=request).json()["tangents"]["y"])


@pytest.mark.parametrize("path", ["/jacobian_", "/evaluate/", "/models/none-such"])
def test_nothing_there(server, path):
    response = server.get(path)
    assert response.status_code in (404, 405)
    assert response.headers["content-type"] == "application/problem+json"
