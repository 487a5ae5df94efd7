"""What `POST /transitions` refuses, and what it sends."""

import keras
import numpy as np
import pytest

from app.calls import Call
from app.operators import transitions
from models.model import Model
from pushforward.errors import InvalidArray, InvalidRequest, NotDifferentiable, UnknownName

L = keras.layers
D = {"dtype": "float64"}


def made(*layers):
    return Model("m", keras.Sequential([keras.Input((None, 2), **D), *layers]))


def prepare(model, inputs, **options):
    return transitions.OPERATOR.prepare(model, Call("m", "transitions", {"inputs": inputs}, options))


X = {"x": np.zeros((1, 2, 2))}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"parts": ["A", "E"]}, UnknownName, r"parts\[1\]: .*A, B, C, D"),
        ({"parts": []}, InvalidRequest, "parts: .*at least one"),
        ({"parts": "A"}, InvalidRequest, "parts: "),
        ({"parts": ["A", "B", "A"]}, InvalidRequest, "'A' is named twice"),
        ({"parts": [["A"]]}, InvalidRequest, "parts: "),
    ],
)
def test_bad_parts(options, error, match):
    with pytest.raises(error, match=match):
        prepare(made(L.GRU(2, **D)), X, **options)


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ({}, "expected an array of shape"),
        ({"x": np.zeros((1, 0, 2))}, "time must not be empty"),
        ({"x": np.zeros((0, 1, 2))}, "batch must not be empty"),
        ({"x": np.zeros((2, 1, 2)), "state.gru.h": np.zeros((1, 2))}, "batch size 2"),
        ({"x": np.zeros((1, 1, 2)), "state.gru.h": np.zeros((1, 3))}, "unit must have size 2"),
    ],
)
def test_bad_arrays(inputs, match):
    with pytest.raises(InvalidArray, match=match):
        prepare(made(L.GRU(2, name="gru", **D)), inputs)


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ([L.Bidirectional(L.GRU(2, **D), name="both", **D)], "step by step: layer 'both' .*POST /jacobian"),
        ([L.Masking(name="mask", **D), L.GRU(2, **D)], "step by step: layer 'mask'"),
        ([L.GRU(2, go_backwards=True, name="back", **D)], "step by step: layer 'back'"),
        ([L.Dense(2, **D)], "no recurrent layer"),
    ],
)
def test_models_that_do_not_fit(layers, match):
    model = made(*layers)
    with pytest.raises(NotDifferentiable, match=match):
        prepare(model, X)
    with pytest.raises(NotDifferentiable, match=match):
        transitions.OPERATOR.example(model)


def test_states_that_are_images():
    model = Model(
        "m", keras.Sequential([keras.Input((None, 4, 4, 1)), L.ConvLSTM2D(2, 3, name="conv", return_sequences=True)])
    )
    with pytest.raises(NotDifferentiable, match=r"state\.conv\.0 is .*POST /jacobian"):
        prepare(model, {"x": np.zeros((1, 2, 4, 4, 1))})


def test_outputs_that_are_images():
    model = made(L.GRU(4, return_sequences=True, **D), L.TimeDistributed(L.Reshape((2, 2), **D), **D))
    assert prepare(model, X, parts=["A", "B"]).rows == 2
    with pytest.raises(NotDifferentiable, match="C needs an output with one axis of features, but y is"):
        prepare(model, X, parts=["C"])


def test_the_size_is_known_before():
    model = made(L.LSTM(64, return_sequences=True, **D))
    job = prepare(model, {"x": np.zeros((1, 20_000, 2))}, parts=["A"])
    assert job.nbytes == 20_000 * 128 * 128 * 8


@pytest.mark.parametrize("codec", ["json", "safetensors"])
def test_over_http(ask, codec):
    x, h = np.linspace(-1, 1, 24).reshape(2, 3, 4), np.linspace(-0.5, 0.5, 8).reshape(2, 4)
    answer = ask("transitions", "stacked-rnn", {"inputs.x": x, "inputs.state.rnn_1.h": h}, codec=codec)
    assert {p: a.shape for p, a in answer.arrays.items()} == {
        "A": (2, 3, 8, 8),
        "B": (2, 3, 8, 4),
        "C": (2, 3, 4, 8),
        "D": (2, 3, 4, 4),
    }
    assert answer.envelope["order"] == ["rnn_1.h[0:4]", "rnn_2.h[4:8]"]
    assert answer.envelope["info"]["chunks"] == 1
    first = answer.arrays["A"][:, 0, :4, :4]
    one_step = {"inputs.x": x[:, :1], "inputs.state.rnn_1.h": h}
    whole = ask("jacobian", "stacked-rnn", one_step, of="state.rnn_1.h", wrt="state.rnn_1.h")
    np.testing.assert_allclose(first, whole.arrays["jacobian"], atol=1e-10)


def test_refused_over_http(server):
    body = {"model": "bi-gru", "inputs": {"x": np.zeros((1, 2, 3)).tolist()}}
    response = server.post("/transitions", json=body)
    assert response.status_code == 422
    problem = response.json()
    assert problem["type"].endswith("/not-differentiable")
    assert "Bidirectional" in problem["detail"]
