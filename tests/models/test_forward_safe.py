"""Stock models made safe in place, and what can't be made safe refused with the layer's name."""

import io
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models.model import Model
from pushforward.errors import UnsafeModel

F, N = 2, 3
L = keras.layers


@keras.saving.register_keras_serializable(package="tests_safe")
class Subclassed(keras.Model):
    """Layers in attributes, in a list, and inside a layer that holds a model."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = L.GRU(N, return_sequences=True)
        self.rest = [L.LSTM(N, return_sequences=True), keras.Sequential([L.SimpleRNN(N), L.Dense(2)])]

    def call(self, x):
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x


def _sequential():
    return keras.Sequential(
        [
            keras.Input((None, F)),
            L.Masking(0.0),
            L.Bidirectional(L.GRU(N, return_sequences=True)),
            L.TimeDistributed(L.Dense(N, "tanh")),
            L.LSTM(N, return_sequences=True),
            L.RNN(L.StackedRNNCells([L.GRUCell(2, reset_after=False), L.SimpleRNNCell(N)])),
            L.Dense(2),
        ]
    )


def _functional():
    a, b = keras.Input((None, F), name="a"), keras.Input((None, F), name="b")
    shared = L.GRU(N, return_sequences=True, return_state=True, name="shared")
    (ya, ha), (yb, hb) = shared(a), shared(b)
    last = L.LSTM(N, name="last")(L.Add(name="sum")([ya, yb]), initial_state=[ha, hb])
    return keras.Model([a, b], {"sequence": L.Dense(1, name="head")(ya), "last": last})


def _nested():
    inner_in = keras.Input((None, F))
    inner = keras.Model(inner_in, L.GRU(N, return_sequences=True)(inner_in), name="inner")
    outer_in = keras.Input((None, F))
    return keras.Model(outer_in, keras.Sequential([inner, L.SimpleRNN(N), L.Dense(1)], name="middle")(outer_in))


def _subclassed():
    model = Subclassed()
    model(tf.zeros((1, 2, F)))
    return model


MODELS = {"sequential": _sequential, "functional": _functional, "nested": _nested, "subclassed": _subclassed}


@pytest.fixture(params=MODELS)
def made(request):
    keras.utils.set_random_seed(4)
    return MODELS[request.param]()


def _inputs(model, seed=0):
    random = np.random.default_rng(seed)
    count = len(model.inputs) if model.built and getattr(model, "inputs", None) else 1
    arrays = [random.normal(size=(2, 4, F)).astype("float32") for _ in range(count)]
    if seed == 0:
        arrays[0][0, 2:] = 0  # what Masking masks
    return [tf.constant(a) for a in arrays]


def _jvp(model, xs, dxs):
    with tf.autodiff.ForwardAccumulator(xs, dxs) as accumulator:
        outputs = keras.tree.flatten(model(xs[0] if len(xs) == 1 else xs))
    return outputs, [accumulator.jvp(y, tf.UnconnectedGradients.ZERO) for y in outputs]


def _function(model):
    return tf.function(lambda xs, dxs: _jvp(model, xs, dxs), autograph=False)


def _config(model):
    return model.to_json() if not isinstance(model, Subclassed) else str(model.get_config())


def _recurrent(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, L.RNN)]


def test_forward_mode_in_a_function_equals_stock_eager_mode(made):
    xs, dxs = _inputs(made), _inputs(made, 1)
    want = _jvp(made, xs, dxs)
    models.make_forward_safe(made)
    got = _function(made)(xs, dxs)
    for g, w in zip(got, want, strict=True):
        for a, b in zip(g, w, strict=True):
            assert np.abs(b).max() > 1e-4
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_it_happens_in_place_and_leaves_config_and_weights(made):
    config, weights = _config(made), made.get_weights()
    classes = [type(layer) for layer in made._flatten_layers()]
    names = [w.path for w in made.weights]
    assert models.make_forward_safe(made) is made
    assert _config(made) == config
    assert [type(layer) for layer in made._flatten_layers()] == classes
    assert [w.path for w in made.weights] == names
    for before, after in zip(weights, made.get_weights(), strict=True):
        assert before.tobytes() == after.tobytes()


def test_doing_it_twice_is_doing_it_once(made):
    models.make_forward_safe(made)
    once = {id(layer): layer.inner_loop for layer in _recurrent(made)}
    models.make_forward_safe(made)
    assert {id(layer): layer.inner_loop for layer in _recurrent(made)} == once
    xs, dxs = _inputs(made), _inputs(made, 1)
    assert all(np.isfinite(t).all() for t in _function(made)(xs, dxs)[1])


def test_a_saved_archive_holds_stock_layers_only_and_loads_as_a_stock_model(made, tmp_path):
    models.make_forward_safe(made)
    made.save(tmp_path / "m.keras")
    with zipfile.ZipFile(io.BytesIO((tmp_path / "m.keras").read_bytes())) as archive:
        assert b"pushforward" not in archive.read("config.json")
    again = keras.models.load_model(tmp_path / "m.keras")
    for layer in _recurrent(again):
        assert type(layer).__module__.startswith("keras.")
        assert layer.inner_loop.__func__ is type(layer).inner_loop
    xs = _inputs(made)
    call = xs[0] if len(xs) == 1 else xs
    for a, b in zip(keras.tree.flatten(again(call)), keras.tree.flatten(made(call)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_cudnn_is_off_in_every_layer(made):
    touched = [layer for layer in _recurrent(made) if hasattr(layer, "use_cudnn")]
    assert {layer.use_cudnn for layer in touched} == {"auto"}
    models.make_forward_safe(made)
    assert [layer.use_cudnn for layer in touched] == [False] * len(touched)
    assert all(layer.supports_jit for layer in _recurrent(made))


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "bidirectional"])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_cudnn_is_off_in_drop_in_layers_even_if_asked_for_and_after_reloading(kind, wrapped):
    layer = getattr(models, kind)(N, use_cudnn=True)
    if wrapped:
        layer = models.Bidirectional(getattr(L, kind)(N, use_cudnn=True))
    again = type(layer).from_config(layer.get_config())
    for made in (layer, again):
        inner = [made.forward_layer, made.backward_layer] if wrapped else [made]
        assert [i.use_cudnn for i in inner] == [False] * len(inner)
        assert all(i.supports_jit for i in inner)


def test_a_safe_model_compiles_with_xla():
    model = models.make_forward_safe(_nested())
    xs, dxs = _inputs(model), _inputs(model, 1)
    graph = _function(model)(xs, dxs)
    jitted = tf.function(lambda xs, dxs: _jvp(model, xs, dxs), autograph=False, jit_compile=True)(xs, dxs)
    for a, b in zip(jitted[1], graph[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_in_training_keeps_the_loop_of_keras():
    stock, safe = (keras.Sequential([keras.Input((4, F)), L.GRU(N, dropout=0.5, seed=2)]) for _ in range(2))
    safe.set_weights(stock.get_weights())
    models.make_forward_safe(safe)
    (x,) = _inputs(stock)
    np.testing.assert_allclose(safe(x, training=True), stock(x, training=True), rtol=1e-6)
    assert not np.allclose(safe(x, training=True), safe(x))


def test_an_unbuilt_model_is_reached_too():
    model = models.make_forward_safe(keras.Sequential([L.GRU(N), L.Dense(1)]))
    (x,) = _inputs(model)
    tangent = _function(model)([x], [tf.ones_like(x)])[1][0]
    assert np.abs(tangent).max() > 0


# --- what can't be made safe ------------------------------------------------------------------------------------------


class OwnLoop(L.RNN):
    def inner_loop(self, sequences, initial_state, mask, training=False):
        return super().inner_loop(sequences, initial_state, mask, training)


class Mapped(L.Layer):
    def call(self, x):
        return tf.map_fn(lambda row: row * tf.reduce_sum(row), x)


class Counting(L.Layer):
    def call(self, x):
        steps = tf.shape(x)[1]
        stack = tf.TensorArray(x.dtype, steps)

        def body(i, total, stack):
            total += x[:, i]
            return i + 1, total, stack.write(i, total)

        _, _, stack = tf.while_loop(lambda i, *_: i < steps, body, (0, tf.zeros_like(x[:, 0]), stack))
        return tf.transpose(stack.stack(), [1, 0, 2])


def test_a_layer_with_its_own_time_loop_is_refused_by_name():
    layer = OwnLoop(L.GRUCell(N), name="homemade")
    with pytest.raises(UnsafeModel, match=r"'homemade' \(OwnLoop\).*move its step into a cell") as info:
        models.make_forward_safe(keras.Sequential([keras.Input((None, F)), L.Dense(2), layer]))
    assert info.value.slug == "unsafe-model"


@pytest.mark.parametrize("foreign", [Mapped, Counting])
@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
def test_a_layer_that_loops_by_itself_is_refused_by_name(foreign, nested):
    layers = [L.GRU(N, return_sequences=True), foreign(name="myloop"), L.Dense(1)]
    model = keras.Sequential([keras.Input((None, F)), *([keras.Sequential(layers, name="part")] if nested else layers)])
    with pytest.raises(UnsafeModel, match=r"layer 'myloop' runs a loop of its own; .*keras\.layers\.RNN") as info:
        Model("m", model)
    assert "gru" not in str(info.value), "our own loops are not to blame"


def test_a_second_model_with_a_layer_of_the_same_name_is_refused_by_the_same_name():
    for _ in range(2):
        with pytest.raises(UnsafeModel, match=r"layer 'myloop' runs a loop of its own;"):
            Model("m", keras.Sequential([keras.Input((None, F)), Counting(name="myloop")]))
