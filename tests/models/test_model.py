"""A registered model as one pure function of named arrays: names, defaults, purity, hidden perturbations."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.model import Model
from pushforward.errors import UnsafeModel

L = keras.layers
B, T, F = 2, 4, 2


def _normal(*shape, seed=0, dtype="float64"):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


def _sequential(*layers, shape=(None, F), **kwargs):
    keras.utils.set_random_seed(2)
    return keras.Sequential([keras.Input(shape, dtype="float64", **kwargs), *layers])


def _layers(**kwargs):
    common = {"dtype": "float64", **kwargs}
    return [
        L.GRU(3, return_sequences=True, name="gru", **common),
        L.LSTM(2, return_sequences=True, name="lstm", **common),
        L.RNN(
            L.StackedRNNCells([L.GRUCell(2, dtype="float64")], dtype="float64"),
            name="rnn",
            return_sequences=True,
            **common,
        ),
        L.Dense(2, name="dense", dtype="float64"),
    ]


@pytest.fixture(scope="module")
def model():
    return Model("m", _sequential(*_layers()))


def _names(model, *groups):
    return [a.name for group in groups for a in getattr(model.signature, group)]


def _call(model, arrays, outputs, **kwargs):
    return tf.function(lambda arrays: model.run(arrays, outputs, **kwargs), autograph=False)(arrays)


def _everything(model, x):
    """The defaults of every name on the input side, spelt out."""
    names = _names(model, "states", "hidden", "parameters")
    return {"x": x, **{n: model.default(n, {"x": x}) for n in names}}


def test_spelling_out_every_default_changes_nothing(model):
    x = _normal(B, T, F)
    outputs = _names(model, "outputs", "states", "hidden")
    want = _call(model, {"x": x}, outputs)
    got = _call(model, _everything(model, x), outputs)
    assert list(got) == outputs
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-14, atol=1e-15)


def test_values_have_the_shapes_and_dtypes_of_the_signature(model):
    x = _normal(B, T, F)
    found = _everything(model, x) | _call(model, {"x": x}, _names(model, "outputs", "states", "hidden"))
    arrays = [a for g in ("inputs", "states", "hidden", "parameters", "outputs") for a in getattr(model.signature, g)]
    sizes = {"batch": B, "time": T}
    for a in arrays:
        assert tuple(found[a.name].shape) == tuple(
            sizes[axis] if n is None else n for axis, n in zip(a.axes, a.shape, strict=True)
        )
        assert found[a.name].dtype.name == a.dtype


def test_an_unknown_default_is_an_error(model):
    for name in ("state.nothing.h", "param.nothing", "hidden.gru.q"):
        with pytest.raises(KeyError):
            model.default(name, {"x": _normal(B, T, F)})


def test_each_name_of_the_input_side_moves_the_output_as_its_tangent_says(model):
    """Central differences through every name at once and alone: no name is ignored or swapped for another."""
    x = _normal(B, T, F)
    base = _everything(model, x)

    @tf.function(autograph=False)
    def jvp(base, along):
        with tf.autodiff.ForwardAccumulator(list(base.values()), [along[n] for n in base]) as accumulator:
            y = model.run(base, ["y"])["y"]
        return accumulator.jvp(y)

    run = tf.function(lambda arrays: model.run(arrays, ["y"])["y"], autograph=False)
    zero = {n: tf.zeros_like(v) for n, v in base.items()}
    step = 1e-6
    for i, name in enumerate(base):
        direction = _normal(*base[name].shape, seed=i)
        got = jvp(base, {**zero, name: direction})
        moved = [run({**base, name: base[name] + s * step * direction}) for s in (1, -1)]
        assert np.abs(got).max() > 1e-6, name
        np.testing.assert_allclose(got, (moved[0] - moved[1]) / (2 * step), rtol=1e-5, atol=1e-8, err_msg=name)


def test_the_final_state_continues_the_sequence(model):
    """Two halves with the state handed over equal the whole, bit for bit up to rounding."""
    x = _normal(B, 2 * T, F)
    states = _names(model, "states")
    whole = _call(model, {"x": x}, ["y", *states])
    first = _call(model, {"x": x[:, :T]}, ["y", *states])
    second = _call(model, {"x": x[:, T:], **{s: first[s] for s in states}}, ["y", *states])
    np.testing.assert_allclose(tf.concat([first["y"], second["y"]], 1), whole["y"], rtol=1e-13, atol=1e-14)
    for s in states:
        np.testing.assert_allclose(second[s], whole[s], rtol=1e-13, atol=1e-14)


def test_hidden_is_the_state_after_each_step(model):
    found = _call(model, {"x": _normal(B, T, F)}, _names(model, "states", "hidden"))
    for name in _names(model, "states"):
        np.testing.assert_array_equal(found[name.replace("state.", "hidden.")][:, -1], found[name])


def test_some_slots_of_a_state_may_be_given_without_the_others(model):
    x, c = _normal(B, T, F), _normal(B, 2, seed=3)
    alone = _call(model, {"x": x, "state.lstm.c": c}, ["y"])["y"]
    both = _call(model, {"x": x, "state.lstm.c": c, "state.lstm.h": tf.zeros_like(c)}, ["y"])["y"]
    np.testing.assert_array_equal(alone, both)
    assert not np.allclose(alone, _call(model, {"x": x}, ["y"])["y"])


def test_unrolled_equals_the_loop(model):
    arrays = {**_everything(model, _normal(B, T, F)), "state.lstm.h": _normal(B, 2, seed=5)}
    outputs = _names(model, "outputs", "states", "hidden")
    want, got = (_call(model, arrays, outputs, unrolled=u) for u in (False, True))
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-13, atol=1e-14)


# --- hidden perturbations ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def doubling():
    """h' = 2 h + x, and y = h."""
    cell = {"use_bias": False, "activation": None, "name": "rnn", "dtype": "float64"}
    network = _sequential(L.SimpleRNN(1, return_sequences=True, **cell), shape=(None, 1))
    network.set_weights([np.ones((1, 1)), 2 * np.ones((1, 1))])
    return Model("doubling", network)


@pytest.mark.parametrize("unrolled", [False, True], ids=["scan", "unrolled"])
def test_the_cotangent_of_hidden_is_the_gradient_of_the_state(doubling, unrolled):
    """dL/dh_3 = 1 goes back as 4, 2, 1 (a closed form)."""
    x = _normal(1, 3, 1)
    nudge = doubling.default("hidden.rnn.h", {"x": x})

    @tf.function(autograph=False)
    def gradient(x, nudge):
        with tf.GradientTape() as tape:
            tape.watch(nudge)
            last = doubling.run({"x": x, "hidden.rnn.h": nudge}, ["y"], unrolled=unrolled)["y"][:, -1]
        return tape.gradient(last, nudge)

    np.testing.assert_array_equal(gradient(x, nudge)[0, :, 0], [4, 2, 1])


def test_a_perturbation_is_added_after_its_step(doubling):
    """A value other than zero, which requests can't give, shows where it goes in."""
    nudge = tf.constant([[[0.0], [1.0], [0.0]]], tf.float64)
    found = _call(
        doubling, {"x": tf.zeros((1, 3, 1), tf.float64), "hidden.rnn.h": nudge}, ["y", "hidden.rnn.h", "state.rnn.h"]
    )
    np.testing.assert_array_equal(found["y"][0, :, 0], [0, 1, 2])
    np.testing.assert_array_equal(found["hidden.rnn.h"], found["y"])
    assert found["state.rnn.h"] == 2


# --- purity -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stateful():
    network = _sequential(
        L.GRU(3, stateful=True, return_sequences=True, name="gru", dtype="float64"),
        L.Bidirectional(L.LSTM(2, stateful=True, dtype="float64"), name="bi", dtype="float64"),
        L.BatchNormalization(dtype="float64"),
        L.Dropout(0.5, dtype="float64"),
        shape=(T, F),
        batch_size=32,
    )
    network(_normal(32, T, F))  # leaves a state behind
    return network, Model("stateful", network)


def test_a_stateful_model_built_for_32_rows_answers_for_1(stateful):
    _, model = stateful
    assert model.signature.inputs[0].shape == (None, T, F)
    assert _call(model, {"x": _normal(1, T, F)}, ["y"])["y"].shape == (1, 4)


def test_equal_requests_get_bit_identical_answers_in_any_order(stateful):
    network, model = stateful
    variables = [v.numpy().copy() for v in network.variables]
    run = tf.function(lambda x: model.run({"x": x}, ["y", "state.gru.h"]), autograph=False)
    requests = [_normal(3, T, F, seed=i) for i in range(3)]
    first = [run(x) for x in requests]
    second = [run(x) for x in reversed(requests)][::-1]
    for a, b in zip(first, second, strict=True):
        assert all(a[n].numpy().tobytes() == b[n].numpy().tobytes() for n in a)
    for before, after in zip(variables, network.variables, strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_state_left_behind_before_registration_is_not_used(stateful):
    _, model = stateful
    x = _normal(2, T, F)
    zero = tf.zeros((2, 3), tf.float64)
    np.testing.assert_array_equal(
        _call(model, {"x": x}, ["y"])["y"], _call(model, {"x": x, "state.gru.h": zero}, ["y"])["y"]
    )
    np.testing.assert_array_equal(model.default("state.gru.h", {"x": x}), zero)


def test_parameters_given_to_run_do_not_stay(model):
    x = _normal(B, T, F)
    before = _call(model, {"x": x}, ["y"])["y"]
    other = _call(model, {"x": x, "param.gru.kernel": tf.ones((F, 9), tf.float64)}, ["y"])["y"]
    assert not np.allclose(before, other)
    np.testing.assert_array_equal(_call(model, {"x": x}, ["y"])["y"], before)


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def test_integer_inputs():
    keras.utils.set_random_seed(2)
    network = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            L.Embedding(5, 3, mask_zero=True, name="words", dtype="float64"),
            L.LSTM(2, name="lstm", dtype="float64"),
        ]
    )
    model = Model("words", network)
    x = tf.constant([[1, 2, 0, 0], [4, 3, 2, 1]])
    found = _call(model, {"x": x}, ["y", "hidden.lstm.h"])
    np.testing.assert_allclose(found["y"], network(x), rtol=1e-14)
    np.testing.assert_array_equal(found["hidden.lstm.h"][0, 1], found["hidden.lstm.h"][0, 3])
    table = model.default("param.words.embeddings", {"x": x})
    grow = _call(model, {"x": x, "param.words.embeddings": 2 * table}, ["y"])["y"]
    assert not np.allclose(grow, found["y"])


def test_several_inputs_and_outputs():
    keras.utils.set_random_seed(2)
    a, b = (keras.Input((None, F), name=n, dtype="float64") for n in ("zeta", "alpha"))
    h, state = L.GRU(3, return_sequences=True, return_state=True, name="gru", dtype="float64")(a)
    y = L.GRU(3, return_sequences=True, name="wired", dtype="float64")(b, initial_state=state)
    network = keras.Model({"zeta": a, "alpha": b}, {"late": y, "early": h})
    model = Model("several", network)
    arrays = {"zeta": _normal(B, T, F), "alpha": _normal(B, 3, F, seed=1)}
    found = _call(model, arrays, ["late", "early", "state.wired.h", "state.gru.h"])
    want = network(arrays)
    np.testing.assert_allclose(found["late"], want["late"], rtol=1e-14)
    np.testing.assert_allclose(found["early"], want["early"], rtol=1e-14)
    np.testing.assert_array_equal(found["state.wired.h"], found["late"][:, -1])


def test_a_hidden_perturbation_has_the_length_of_its_own_layers_sequence():
    """The second layer runs over another number of steps than the model's first input."""
    keras.utils.set_random_seed(2)
    a, b = (keras.Input((None, F), name=n, dtype="float64") for n in ("a", "b"))
    _, state = L.GRU(3, return_state=True, name="encoder", dtype="float64")(a)
    y = L.GRU(3, name="decoder", dtype="float64")(b, initial_state=state)
    model = Model("m", keras.Model([a, b], y))
    arrays = {"a": _normal(B, T, F), "b": _normal(B, 3, F, seed=1)}
    nudge = model.default("hidden.decoder.h", arrays)
    assert nudge.shape == _call(model, arrays, ["hidden.decoder.h"])["hidden.decoder.h"].shape


def test_a_hidden_perturbation_behind_pooling_has_the_pooled_length():
    model = Model("m", _sequential(L.AveragePooling1D(2, dtype="float64"), L.GRU(3, name="gru", dtype="float64")))
    x = _normal(B, T, F)
    assert model.default("hidden.gru.h", {"x": x}).shape == (B, T // 2, 3)


def test_a_subclassed_model_that_was_never_called_asks_for_its_inputs():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.gru = L.GRU(2, name="gru", dtype="float64")

        def call(self, x):
            return self.gru(x)

    with pytest.raises((UnsafeModel, ValueError), match=r"'own'.*inputs="):
        Model("m", Own())
    model = Model("m", Own(), inputs=[keras.Input((None, F), dtype="float64")])
    assert _names(model, "states", "hidden") == ["state.gru.h", "hidden.gru.h"]
    assert model.run({"x": _normal(B, T, F)}, ["y"])["y"].shape == (B, 2)
