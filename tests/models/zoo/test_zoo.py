"""The built-in models: what the contract says of each, and the same weights whatever happened before."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import zoo
from models.model import Model
from models.zoo import bi_gru, lstm_last, seed_gru, stacked_rnn
from pushforward._registry import scan

ENTRIES = {m.MODEL.name: m.MODEL for m in (seed_gru, stacked_rnn, lstm_last, bi_gru)}


@pytest.fixture(scope="module")
def loaded():
    return {name: entry.load() for name, entry in ENTRIES.items()}


def _bytes(model, names=None):
    return {a.name: np.asarray(model.default(a.name, {})).tobytes() for a in model.signature.parameters}


def test_the_registry_holds_these_four():
    found = {getattr(entry, "name", key): entry for key, entry in scan(zoo, "MODEL").items()}
    assert set(found) == {"seed-gru", "stacked-rnn", "lstm-last", "bi-gru"}


@pytest.mark.parametrize("name", [n if n == "lstm-last" else pytest.param(n, marks=pytest.mark.slow) for n in ENTRIES])
def test_loading_gives_the_same_weights_after_other_models_and_random_draws(name, loaded):
    np.random.random(7)  # noqa: NPY002
    tf.random.normal([3])
    keras.layers.Dense(3).build((None, 2))
    again = ENTRIES[name].load()
    assert isinstance(again, Model)
    assert _bytes(again) == _bytes(loaded[name])
    assert any(np.abs(np.frombuffer(b, "uint8")).max() for b in _bytes(again).values())


SIGNATURES = {
    "seed-gru": (
        "float64",
        True,
        (None, None, 1),
        (None, None, 1),
        ["state.gru_1.h", "state.gru_2.h"],
        {"param.gru_1.kernel": (1, 96), "param.gru_2.recurrent_kernel": (32, 96), "param.dense.bias": (1,)},
    ),
    "stacked-rnn": (
        "float64",
        True,
        (None, None, 4),
        (None, None, 4),
        ["state.rnn_1.h", "state.rnn_2.h"],
        {"param.rnn_1.kernel": (4, 4), "param.rnn_2.bias": (4,)},
    ),
    "lstm-last": (
        "float32",
        True,
        (None, None, 8),
        (None, 1),
        ["state.lstm.h", "state.lstm.c"],
        {"param.lstm.kernel": (8, 256), "param.dense.kernel": (64, 1)},
    ),
    "bi-gru": (
        "float32",
        False,
        (None, None, 3),
        (None, None, 2),
        ["state.bi.forward.h", "state.bi.backward.h"],
        {"param.bi.forward.kernel": (3, 48), "param.norm.gamma": (32,), "param.dense.kernel": (32, 2)},
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_signature(name, loaded):
    dtype, causal, x, y, states, parameters = SIGNATURES[name]
    signature = loaded[name].signature
    assert (signature.dtype, signature.causal) == (dtype, causal)
    assert [(a.name, a.shape, a.dtype) for a in signature.inputs] == [("x", x, dtype)]
    assert [(a.name, a.shape, a.dtype) for a in signature.outputs] == [("y", y, dtype)]
    assert [a.name for a in signature.states] == states
    assert [a.name for a in signature.hidden] == [s.replace("state.", "hidden.") for s in states]
    found = {a.name: a.shape for a in signature.parameters}
    assert parameters.items() <= found.items()
    assert signature.inputs[0].axes == ("batch", "time", "feature")
    assert all(a.differentiable for a in (*signature.inputs, *signature.states, *signature.parameters))


@pytest.mark.parametrize("name", ENTRIES)
def test_time_is_a_free_axis(name, loaded):
    model = loaded[name]
    features = model.signature.inputs[0].shape[-1]
    run = tf.function(lambda x: model.run({"x": x}, ["y"])["y"], autograph=False)
    for time in (1, 3):
        y = run(tf.ones((2, time, features), model.dtype))
        assert y.shape == (2, 1) if name == "lstm-last" else y.shape[:2] == (2, time)
        assert np.isfinite(y).all()


def test_outputs_depend_on_the_input(loaded):
    """A relu that is dead everywhere would make every derivative a correct but useless zero."""
    for model in loaded.values():
        features = model.signature.inputs[0].shape[-1]
        x = tf.constant(np.random.default_rng(0).normal(size=(4, 6, features)), model.dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model.run({"x": x}, ["y"])["y"]
        assert np.abs(tape.gradient(y, x)).max() > 1e-3


def test_loading_leaves_the_random_state_of_the_process_alone():
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    tf.random.set_seed(5)
    wanted = random.random(), np.random.random(), float(tf.random.uniform([]))  # noqa: NPY002
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    tf.random.set_seed(5)
    ENTRIES["stacked-rnn"].load()
    assert (random.random(), np.random.random()) == wanted[:2]  # noqa: NPY002
    assert float(tf.random.uniform([])) == wanted[2]
