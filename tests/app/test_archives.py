"""Models of users, whose sequences have other lengths than their inputs, or whose outputs are no real numbers."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    import keras

    layers, directory = keras.layers, tmp_path_factory.mktemp("models")
    conv = [
        keras.Input((None, 2)),
        layers.Conv1D(3, 3, name="conv"),
        layers.GRU(4, return_sequences=True, name="gru"),
    ]
    keras.Sequential(conv).save(directory / "conv.keras")
    enc, dec = keras.Input((None, 2), name="enc"), keras.Input((None, 3), name="dec")
    _, state = layers.GRU(4, return_state=True, name="encoder")(enc)
    y = layers.GRU(4, return_sequences=True, name="decoder")(dec, initial_state=state)
    keras.Model([enc, dec], y).save(directory / "seq2seq.keras")
    x = keras.Input((None, 2))
    keras.Model(x, keras.ops.argmax(layers.GRU(4, name="gru")(x), axis=-1)).save(directory / "argmax.keras")
    settings = Settings(models=(), watch_dir=directory, warm=False)
    with TestClient(create_app(settings)) as client:
        yield client


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def post(client, operator, **fields):
    response = client.post(f"/{operator}", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def lists(arrays):
    return {name: array.tolist() for name, array in arrays.items()}


CASES = {
    "conv": ({"x": draw(1, 5, 2)}, {"y": 3, "hidden.gru.h": 3}),
    "seq2seq": ({"enc": draw(1, 5, 2), "dec": draw(1, 3, 3)}, {"y": 3, "hidden.encoder.h": 5, "hidden.decoder.h": 3}),
}


@pytest.mark.parametrize(
    ("model", "strategy"),
    [("seq2seq", "scan"), *(pytest.param("conv", s, marks=pytest.mark.slow) for s in ("scan", "unrolled", "reverse"))],
)
def test_adjoint_identity(client, model, strategy):
    inputs, lengths = CASES[model]
    hidden = {name: draw(1, length, 4) for name, length in lengths.items() if name != "y"}
    tangents, cotangents = {**{n: draw(*x.shape) for n, x in inputs.items()}, **hidden}, {"y": draw(1, lengths["y"], 4)}
    request = {"model": model, "inputs": lists(inputs), "strategy": strategy}
    pushed = post(client, "jvp", **request, tangents=lists(tangents))["tangents"]
    pulled = post(client, "vjp", **request, cotangents=lists(cotangents), wrt=list(tangents))["cotangents"]
    assert {name: np.shape(v) for name, v in pulled.items()} == {name: v.shape for name, v in tangents.items()}
    left = np.vdot(cotangents["y"], np.array(pushed["y"]))
    right = sum(np.vdot(v, np.array(pulled[name])) for name, v in tangents.items())
    assert left == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("length", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", CASES)
def test_a_direction_of_another_length_is_refused(client, model, length):
    inputs, _ = CASES[model]
    hidden = "hidden.gru.h" if model == "conv" else "hidden.decoder.h"
    wrong = draw(1, length, 4).tolist()
    request = {"model": model, "inputs": lists(inputs)}
    for operator, fields in (
        ("jvp", {"tangents": {hidden: wrong}}),
        ("jvp", {"tangents": {hidden: [wrong, wrong]}}),
        ("vjp", {"cotangents": {"y": wrong}}),
        ("vjp", {"cotangents": {hidden: [wrong]}}),
    ):
        response = client.post(f"/{operator}", json=request | fields)
        assert response.status_code == 422, response.text
        assert "shape" in response.json()["detail"]


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_a_sequence_too_short_for_the_model(client, repeat):
    response = client.post("/evaluate", json={"model": "conv", "inputs": {"x": [[[1, 2]]]}})
    assert response.status_code == 422
    assert "negative" in response.json()["detail"]


def test_an_output_of_integers(client):
    request = {"model": "argmax", "inputs": {"x": draw(1, 3, 2).tolist()}}
    assert post(client, "jvp", **request, tangents=request["inputs"])["tangents"]["y"] == [0]
    response = client.post("/vjp", json=request | {"cotangents": {"y": [1]}})
    assert (response.status_code, response.json()["type"]) == (422, "/problems/not-differentiable")
    assert "leave it out" in response.json()["detail"]


def test_every_example_runs(client):
    for path, routes in client.get("/openapi.json").json()["paths"].items():
        content = routes.get("post", {}).get("requestBody", {}).get("content", {})
        for example in content.get("application/json", {}).get("examples", {}).values():
            response = client.post(path, json=example["value"])
            assert response.status_code == 200, (path, response.text)
