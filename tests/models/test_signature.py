"""Names, axes, causality, and messages that say what to change."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.model import Model
from models.signature import Array, cast, fit
from pushforward.errors import InvalidArray, NotDifferentiable, UnknownName

L = keras.layers
X = Array("x", (None, None, 1), "float64", ("batch", "time", "feature"), True)


def _sequential(*layers, shape=(None, 2), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


@pytest.fixture(scope="module")
def rich():
    """Every kind of name: a Bidirectional, nested layers, stacked and plain cells, a TimeDistributed, a norm."""
    return Model(
        "rich",
        _sequential(
            L.Bidirectional(L.LSTM(3, return_sequences=True), name="bi"),
            keras.Sequential(
                [L.GRU(4, return_sequences=True, name="gru"), L.TimeDistributed(L.Dense(2), name="td")], name="part"
            ),
            L.RNN(L.StackedRNNCells([L.GRUCell(2, name="low"), L.LSTMCell(3, name="high")]), name="stack"),
            L.Dense(1, name="dense"),
        ),
    ).signature


def test_state_and_hidden_names(rich):
    expected = [
        "bi.forward.h",
        "bi.forward.c",
        "bi.backward.h",
        "bi.backward.c",
        "part.gru.h",
        "stack.0",
        "stack.1",
        "stack.2",
    ]
    assert [a.name for a in rich.states] == [f"state.{n}" for n in expected]
    assert [a.name for a in rich.hidden] == [f"hidden.{n}" for n in expected]
    assert [a.shape for a in rich.states] == [(None, n) for n in (3, 3, 3, 3, 4, 2, 3, 3)]
    assert [a.shape for a in rich.hidden] == [(None, None, n) for n in (3, 3, 3, 3, 4, 2, 3, 3)]
    assert rich.states[0].axes == ("batch", "unit")
    assert rich.hidden[0].axes == ("batch", "time", "unit")


def test_parameter_names_and_shapes(rich):
    found = {a.name: a.shape for a in rich.parameters}
    expected = {
        "param.bi.forward.kernel": (2, 12),
        "param.bi.backward.bias": (12,),
        "param.part.gru.recurrent_kernel": (4, 12),
        "param.part.gru.bias": (2, 12),
        "param.part.td.kernel": (4, 2),
        "param.stack.low.kernel": (2, 6),
        "param.stack.high.recurrent_kernel": (3, 12),
        "param.dense.bias": (1,),
    }
    assert {n: found.get(n) for n in expected} == expected
    assert len(found) == 3 + 3 + 3 + 2 + 6 + 2
    assert all(a.differentiable for a in rich.parameters)


def test_names_are_unique(rich):
    names = [a.name for group in (rich.inputs, rich.states, rich.hidden, rich.parameters) for a in group]
    assert len(set(names)) == len(names)


class Doubled(keras.Model):
    """Only functional models insist on names that differ."""

    def __init__(self):
        super().__init__()
        self.one, self.two = L.GRU(2, return_sequences=True, name="gru"), L.GRU(3, name="gru")

    def call(self, x):
        return self.two(self.one(x))


def test_layers_of_the_same_name_have_states_of_different_names():
    names = [a.name for a in Model("m", Doubled(), inputs=[keras.Input((None, 2))]).signature.states]
    assert len(names) == len(set(names)) == 2


def test_a_layer_called_twice_has_no_state_to_name_but_its_weights_are_there():
    a = keras.Input((None, 2))
    shared = L.GRU(3, return_sequences=True, name="shared")
    twice = keras.Model(a, L.Add()([shared(a), shared(L.Activation("tanh")(a))]))
    signature = Model("m", twice).signature
    assert signature.states == signature.hidden == ()
    assert [p.name for p in signature.parameters] == [
        f"param.shared.{w}" for w in ("kernel", "recurrent_kernel", "bias")
    ]


def test_an_initial_state_that_another_layer_computes_is_wired():
    a, b = keras.Input((None, 2), name="a"), keras.Input((None, 2), name="b")
    _, state = L.GRU(3, return_state=True, name="encoder")(a)
    y = L.GRU(3, return_sequences=True, name="decoder")(b, initial_state=state)
    signature = Model("m", keras.Model([a, b], y)).signature
    assert signature.wired == {"state.decoder.h"}
    assert not signature.causal, "every output depends on all of a"
    with pytest.raises(UnknownName, match="another layer of the model computes this initial state"):
        signature.given("state.decoder.h", "inputs.state.decoder.h")
    with pytest.raises(UnknownName):
        signature.source("state.decoder.h", "wrt")
    assert signature.target("state.decoder.h", "outputs").name == "state.decoder.h"
    assert signature.given("state.encoder.h", "inputs").name == "state.encoder.h"


def test_several_inputs_and_outputs_go_by_their_own_names():
    a, b = keras.Input((None, 2), name="speed"), keras.Input((3,), name="road")
    h = L.GRU(3, return_sequences=True)(a)
    y, z = L.Dense(1, name="left")(h), L.Dense(2, name="right")(b)
    listed = Model("m", keras.Model([a, b], [y, z])).signature
    assert [i.name for i in listed.inputs] == ["speed", "road"]
    assert [o.name for o in listed.outputs] == ["left", "right"]
    assert [i.axes for i in listed.inputs] == [("batch", "time", "feature"), ("batch", "feature")]
    keyed = Model("m", keras.Model({"speed": a, "road": b}, {"position": y, "heading": z})).signature
    assert sorted(i.name for i in keyed.inputs) == ["road", "speed"]
    assert {o.name: o.shape for o in keyed.outputs} == {"position": (None, None, 1), "heading": (None, 2)}


def test_integer_input():
    model = _sequential(L.Embedding(7, 3, mask_zero=True, name="words"), L.LSTM(2), shape=(None,), dtype="int32")
    signature = Model("m", model).signature
    (x,) = signature.inputs
    assert (x.dtype, x.differentiable, x.axes) == ("int32", False, ("batch", "time"))
    with pytest.raises(
        NotDifferentiable, match=r"x holds int32, which has no tangent; .*hidden\.words\.output"
    ) as info:
        signature.source("x", "tangents.x")
    assert info.value.path == "tangents.x"
    assert signature.source("param.words.embeddings", "wrt").shape == (7, 3)
    assert signature.source("hidden.words.output", "tangents.hidden.words.output").shape == (None, None, 3)


def test_a_model_saved_and_loaded_has_the_same_signature(tmp_path):
    network = _sequential(L.Bidirectional(L.GRU(2, return_sequences=True), name="bi"), L.Dense(1, name="head"))
    signature = Model("m", network).signature
    network.save(tmp_path / "m.keras")
    assert Model("m", keras.models.load_model(tmp_path / "m.keras")).signature == signature


def test_the_description_is_json_with_null_for_free_axes(rich):
    found = json.loads(json.dumps(rich.describe()))
    assert {"inputs", "states", "parameters", "outputs", "hidden", "causal", "strategies"} <= found.keys()
    assert found["inputs"] == [
        {
            "name": "x",
            "shape": [None, None, 2],
            "dtype": "float32",
            "axes": ["batch", "time", "feature"],
            "differentiable": True,
        }
    ]
    assert found["outputs"][0]["name"] == "y"
    assert found["strategies"] == ["auto", "scan", "unrolled", "reverse"]
    assert found["causal"] is False


# --- causality --------------------------------------------------------------------------------------------------------


def _repeated(a):
    return L.GRU(2, return_sequences=True)(L.RepeatVector(4)(L.GRU(2)(a)))


def _attended(a):
    return L.Dot(axes=1)([L.GRU(3, return_sequences=True)(a), L.GRU(2, return_sequences=True)(a)])


def _mean_subtracted(a):
    return a - keras.ops.mean(a, axis=1, keepdims=True)


def _turned(a):
    return keras.ops.flip(a, axis=1)


@keras.saving.register_keras_serializable(package="tests_signature")
class Flipped(L.Layer):
    def call(self, x):
        return keras.ops.flip(x, axis=1)


CAUSAL = {
    "gru": lambda a: L.GRU(2, return_sequences=True)(a),
    "stack": lambda a: L.Dense(2)(L.LSTM(2, return_sequences=True)(L.SimpleRNN(2, return_sequences=True)(a))),
    "masked": lambda a: L.GRU(2, return_sequences=True)(L.Masking(0.0)(a)),
    "residual": lambda a: L.Concatenate()([a, L.Add()([a, L.Dense(2)(L.GRU(2, return_sequences=True)(a))])]),
    "norms": lambda a: L.BatchNormalization()(L.LayerNormalization()(L.GRU(3, return_sequences=True)(a))),
    "per step": lambda a: L.TimeDistributed(L.Dense(2))(L.Dropout(0.5)(L.Softmax()(a))),
    "stacked cells": lambda a: L.RNN(L.StackedRNNCells([L.GRUCell(2), L.LSTMCell(2)]), return_sequences=True)(a),
}
ACAUSAL = {
    "bidirectional": lambda a: L.Bidirectional(L.GRU(2, return_sequences=True))(a),
    "backwards": lambda a: L.GRU(2, return_sequences=True, go_backwards=True)(a),
    "repeat vector": _repeated,
    "convolution": lambda a: L.Conv1D(2, 3, padding="same")(a),
    "pooling": lambda a: L.UpSampling1D(2)(L.AveragePooling1D(2)(a)),
    "attention": lambda a: L.Attention()([a, a]),
    "dot over time": _attended,
    "concatenation over time": lambda a: L.Concatenate(axis=1)([L.GRU(2, return_sequences=True)(a), a]),
    "normalisation over time": lambda a: L.LayerNormalization(axis=1)(a),
    "normalisation over time and features": lambda a: L.LayerNormalization(axis=[1, 2])(a),
    "softmax over time": lambda a: L.Softmax(axis=1)(a),
    "mean over time": _mean_subtracted,
    "own layer": lambda a: Flipped()(a),
    "activation over time": lambda a: L.Permute((2, 1))(L.Activation("softmax")(L.Permute((2, 1))(a))),
    "flip by slicing": lambda a: a[:, ::-1],
    "unit normalisation over time": lambda a: L.UnitNormalization(axis=1)(a),
    "einsum over time": lambda a: L.EinsumDense("abc,bd->adc", (4, 2))(a),
    "last state added to every step": lambda a: L.Add()([L.GRU(2, return_sequences=True)(a), L.GRU(2)(a)]),
    "activation function over time": lambda a: L.Activation(_turned)(a),
    "dense with an activation over time": lambda a: L.Dense(2, activation=_turned)(a),
    "concatenate steps": lambda a: L.Reshape((4, 2))(a),
}


def _future_dependence(model, time=4):
    """The largest |d y_t / d x_s| over s > t, and over s <= t, by reverse mode."""
    x = tf.constant(np.random.default_rng(0).normal(size=(2, time, 2)), tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = model.run({"x": x}, ["y"])["y"]
        steps = [tf.reduce_sum(tf.sin(y[:, t])) for t in range(y.shape[1])]
    slopes = [tape.gradient(s, x, unconnected_gradients="zero").numpy() for s in steps]
    late = max([np.abs(g[:, t + 1 :]).max() for t, g in enumerate(slopes) if t + 1 < time], default=0)
    return late, max(np.abs(g[:, : t + 1]).max() for t, g in enumerate(slopes))


def _model(build):
    keras.utils.set_random_seed(1)
    a = keras.Input((4, 2))
    return Model("m", keras.Model(a, build(a)))


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_models_are_exactly_zero_above_the_diagonal(name):
    model = _model(CAUSAL[name])
    late, early = _future_dependence(model)
    assert late == 0
    assert early > 1e-3
    assert model.signature.causal


@pytest.mark.parametrize("name", ACAUSAL)
def test_a_model_that_mixes_times_never_claims_to_be_causal(name):
    assert not _model(ACAUSAL[name]).signature.causal


def test_the_check_for_zeros_sees_a_bidirectional_layer():
    assert _future_dependence(_model(ACAUSAL["bidirectional"]))[0] > 1e-3


# --- checking arrays --------------------------------------------------------------------------------------------------


def _message(array, spec=X):
    with pytest.raises(InvalidArray) as info:
        fit(np.asarray(array), spec, "inputs.x", [])
    return str(info.value), info.value


def test_a_missing_feature_axis():
    message, error = _message(np.zeros((128, 64)))
    assert message == "inputs.x: expected shape (batch, time, 1), got (128, 64); add a feature axis"
    assert error.path == "inputs.x"
    assert error.expected == [None, None, 1]
    assert error.received == [128, 64]


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((64, 1), "add a batch axis in front"),
        ((2, 3, 4), "axis feature must have size 1, not 4"),
        ((0, 3, 1), "axis batch must not be empty"),
        ((2, 0, 1), "axis time must not be empty"),
        ((), "the array must have 3 axes, not 0"),
        ((1, 2, 3, 1), "the array must have 3 axes, not 4"),
    ],
)
def test_what_to_change(shape, hint):
    message, _ = _message(np.zeros(shape))
    assert message == f"inputs.x: expected shape (batch, time, 1), got {shape}; {hint}"


def test_a_fitting_array_is_handed_back_as_it_is():
    array, casts = np.zeros((2, 3, 1)), []
    assert fit(array, X, "inputs.x", casts) is array
    assert casts == []


@pytest.mark.parametrize("given", ["float32", "float16", "int64", "uint8", "bool"])
def test_casts_are_noted(given):
    casts = []
    found = fit(np.ones((1, 1, 1), given), X, "inputs.x", casts)
    assert found.dtype == np.float64
    assert casts == [f"inputs.x: {given} to float64"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("complex128", "float64"), ("U3", "float64"), ("float64", "int32"), ("bool", "int32"), ("int64", "bool")],
)
def test_casts_that_change_the_meaning_are_refused(given, wanted):
    with pytest.raises(InvalidArray, match=f"expected numbers that convert to {wanted}, got .*; send {wanted}"):
        cast(np.zeros(2, given), wanted, "inputs.x", [])


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_integers_beyond_the_range_are_refused(value):
    with pytest.raises(InvalidArray, match="fit int32"):
        cast(np.array([value]), "int32", "inputs.x", [])
    assert cast(np.array([2**31 - 1, -(2**31)]), "int32", "inputs.x", []).tolist() == [2**31 - 1, -(2**31)]


def test_numbers_beyond_the_range_do_not_become_infinity():
    with pytest.raises(InvalidArray, match="fit float32"):
        cast(np.array([1.0, 1e300]), "float32", "inputs.x", [])
    assert np.isinf(cast(np.array([np.inf]), "float32", "inputs.x", [])).all()


def test_nan_and_infinity_pass():
    array = np.array([np.nan, np.inf]).reshape(1, 2, 1)
    np.testing.assert_array_equal(fit(array, X, "inputs.x", []), array)


def test_unknown_names_come_with_the_closest_one_and_the_list(rich):
    with pytest.raises(UnknownName, match=r"did you mean state\.part\.gru\.h\?") as info:
        rich.target("state.part.gru", "outputs[0]")
    assert "state.part.gru.h" in info.value.expected
    assert info.value.path == "outputs[0]"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("param.dense.kernel", "weights can't be overridden in a request"),
        ("hidden.part.gru.h", "always a zero perturbation"),
    ],
)
def test_parameters_and_perturbations_are_directions_only(rich, name, reason):
    with pytest.raises(UnknownName, match=reason):
        rich.given(name, f"inputs.{name}")
    assert rich.source(name, "wrt").name == name


def test_sides_are_kept_apart(rich):
    for name in ("y",):
        with pytest.raises(UnknownName):
            rich.source(name, "wrt")
    for name in ("x", "param.dense.kernel"):
        with pytest.raises(UnknownName):
            rich.target(name, "outputs")


def test_a_hostile_name_does_not_flood_the_message(rich):
    with pytest.raises(UnknownName) as info:
        rich.given("a" * 100_000, "inputs")
    assert len(str(info.value)) < 2000
