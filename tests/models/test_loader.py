"""Archives that stock Keras wrote become models that compute the same, and whose derivatives are right."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.gradcheck import TOLERANCES, compare
from models.loader import Limits, load, prove
from pushforward.errors import UnsafeModel
from tests.architectures import ARCHITECTURES, build
from tests.stock import Stock

DATA = Path(__file__).with_name("data")
EXACT = 10 * TOLERANCES["float64"].equality


def saved(network, tmp_path):
    network.save(tmp_path / "m.keras")
    return tmp_path / "m.keras"


def numbered(tensors):
    return {str(i): np.asarray(t) for i, t in enumerate(tensors)}


# The others take their time: `make test-slow`.
SOME = {
    "gru_reset_before",
    "bidirectional_of_two_kinds",
    "batch_normalization",
    "stateful",
    "residual",
    "explicit_mask",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in ARCHITECTURES]
)
def test_equals_stock_keras_in_eager_mode(name, tmp_path):
    network, arrays = build(name)
    model, stock = load("m", saved(network, tmp_path), dtype="float64"), Stock(network, arrays)
    assert model.dtype == "float64"
    names = [a.name for a in model.signature.inputs]
    inputs = {n: tf.constant(a) for n, a in zip(names, arrays, strict=True)}
    outputs = [a.name for a in model.signature.outputs]
    rng = np.random.default_rng(3)

    found = model.run(inputs, outputs)
    assert compare(numbered(found.values()), numbered(stock.outputs())) < EXACT

    moving = [names[i] for i in stock.moving]
    parameters = [a.name for a in model.signature.parameters]
    sources = {**{n: inputs[n] for n in moving}, **{n: model.default(n, inputs) for n in parameters}}
    sources = {n: tf.identity(t) for n, t in sources.items()}
    if moving:
        tangents = [rng.normal(size=inputs[n].shape) for n in moving]
        primals = [sources[n] for n in moving]
        with tf.autodiff.ForwardAccumulator(primals, [tf.constant(t) for t in tangents]) as accumulator:
            found = model.run({**inputs, **sources}, outputs)
        pushed = [accumulator.jvp(t, "zero") for t in found.values()]
        assert compare(numbered(pushed), numbered(stock.jvp(tangents)), floor=1e-3) < EXACT

    cotangents = [rng.normal(size=t.shape) for t in found.values()]
    with tf.GradientTape() as tape:
        tape.watch(list(sources.values()))
        found = model.run({**inputs, **sources}, outputs)
    pulled = tape.gradient(
        list(found.values()), sources, [tf.constant(c) for c in cotangents], tf.UnconnectedGradients.ZERO
    )
    wanted = stock.vjp(cotangents)
    for i, n in enumerate(moving):
        assert compare({n: pulled[n].numpy()}, {n: wanted[i]}, floor=1e-3) < EXACT
    for n in parameters:
        at = len(moving) + stock.weight_like(sources[n].numpy())
        assert compare({n: tf.convert_to_tensor(pulled[n]).numpy()}, {n: wanted[at]}, floor=1e-3) < EXACT


@pytest.mark.parametrize("name", ["lstm_last_step", "mixed_precision", "embedding_with_mask_zero"])
def test_as_it_was_saved(name, tmp_path):
    network, arrays = build(name)
    model = load("m", saved(network, tmp_path))
    assert model.dtype == "float32"
    inputs = {a.name: tf.constant(x, a.dtype) for a, x in zip(model.signature.inputs, arrays, strict=True)}
    (wanted,) = Stock(network, arrays).outputs()
    assert compare({"y": model.run(inputs, ["y"])["y"].numpy()}, {"y": wanted}) < TOLERANCES["float32"].equality


@pytest.mark.parametrize("path", sorted(DATA.glob("*.keras")), ids=lambda path: path.stem)
def test_archives_of_older_releases(path):
    model = load("m", path)
    with np.load(path.with_suffix(".npz")) as data:
        arrays = [data[name] for name in data.files if name != "y"]
        inputs = {a.name: tf.constant(x, a.dtype) for a, x in zip(model.signature.inputs, arrays, strict=True)}
        found = model.run(inputs, ["y"])["y"].numpy()
        assert compare({"y": found}, {"y": data["y"]}) < TOLERANCES["float32"].equality


def test_notes_say_what_differs(tmp_path):
    notes = {
        name: load("m", saved(build(name)[0], tmp_path)).notes for name in ("stateful", "mixed_precision", "residual")
    }
    assert notes["residual"] == ()
    assert notes["mixed_precision"] == ("mixed_float16: runs in float32",)
    (note,) = notes["stateful"]
    assert "runs statelessly" in note


def test_a_compiled_model_with_an_optimizer(tmp_path):
    network, arrays = build("gru_reset_after")
    network.compile("adam", "mse", metrics=["mae"])
    network.fit(arrays[0], np.zeros((2, 5, 2)), verbose=0)
    model = load("m", saved(network, tmp_path), dtype="float64")
    found = model.run({"x": tf.constant(arrays[0])}, ["y"])["y"]
    assert compare({"y": found.numpy()}, {"y": Stock(network, arrays).outputs()[0]}) < EXACT


def test_bfloat16_must_be_converted(tmp_path):
    network = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(3, dtype="bfloat16")])
    path, x = saved(network, tmp_path), np.ones((1, 2, 2), np.float32)
    with pytest.raises(UnsafeModel, match=r"bfloat16.*\?dtype=float32"):
        load("m", path)
    found = load("m", path, dtype="float32").run({"x": tf.constant(x)}, ["y"])["y"]
    np.testing.assert_allclose(found, x @ np.asarray(network.get_weights()[0], np.float32), rtol=1e-6)


def test_the_proof(tmp_path):
    report = prove("m", saved(build("residual")[0], tmp_path), dtype="float64")
    assert report.adjoint_error < TOLERANCES["float64"].adjoint
    assert report.parameters == build("residual")[0].count_params()
    assert report.compiled


def test_an_own_class_only_if_it_is_allowed(tmp_path):
    from tests.models.own import Scale

    path = saved(keras.Sequential([keras.Input((None, 2)), Scale(3.0), keras.layers.GRU(2)]), tmp_path)
    with pytest.raises(UnsafeModel, match=r"layer 'scale': .*Scale.*PUSHFORWARD_ALLOW_CLASSES"):
        load("m", path)
    model = load("m", path, limits=Limits(allowed=("tests.models.own.Scale",)))
    x = np.ones((1, 2, 2), np.float32)
    wanted = keras.models.load_model(path, custom_objects={"Scale": Scale})(x)
    np.testing.assert_allclose(model.run({"x": tf.constant(x)}, ["y"])["y"], wanted, rtol=1e-6)


def test_an_allowed_class_that_is_not_there(tmp_path):
    path = saved(build("residual")[0], tmp_path)
    with pytest.raises(UnsafeModel, match=r"tests\.models\.own\.None is allowed .* can't be imported"):
        load("m", path, limits=Limits(allowed=("tests.models.own.None",)))
