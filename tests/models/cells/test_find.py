"""Which cells have a hand-written rule, and that everything else is left to autodiff."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models import cells
from models.cells._activation import is_elementwise, value_and_slope
from pushforward._registry import scan

L = keras.layers
STOCK = {"gru": L.GRUCell, "lstm": L.LSTMCell, "simple_rnn": L.SimpleRNNCell}


def test_every_entry_matches_its_stock_cell_and_no_other():
    entries = scan(cells, "CELL")
    assert set(STOCK) <= set(entries)
    for name, entry in entries.items():
        matched = {other for other, make in STOCK.items() if entry.match(make(3)) is not None}
        assert matched == ({name} if name in STOCK else set())


@pytest.mark.parametrize("make", STOCK.values())
def test_softmax_is_not_elementwise(make):
    assert cells.find(make(3, activation="softmax")) is None
    assert cells.find(make(1, activation="softmax")) is None


@pytest.mark.parametrize("make", [L.GRUCell, L.LSTMCell])
def test_softmax_as_recurrent_activation(make):
    assert cells.find(make(3, recurrent_activation="softmax")) is None


@pytest.mark.parametrize("make", STOCK.values())
def test_a_subclass_may_compute_anything(make):
    assert cells.find(type("Mine", (make,), {})(3)) is None


def test_an_activation_that_is_a_layer_may_have_weights():
    assert cells.find(L.SimpleRNNCell(3, activation=L.PReLU())) is None


def test_stacked_and_foreign_cells():
    assert cells.find(L.StackedRNNCells([L.GRUCell(2), L.GRUCell(2)])) is None
    assert cells.find(L.ConvLSTM1D(2, 3).cell) is None


def test_equal_cells_have_equal_rules():
    """Eager calls look up their traced loop by the rule."""
    one, same, other = (cells.find(L.GRUCell(3, activation=f)) for f in ("relu", "relu", "tanh"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


@pytest.mark.parametrize(
    "name", ["tanh", "relu", "sigmoid", "softsign", "elu", "gelu", "hard_sigmoid", "linear", "selu"]
)
def test_elementwise_activations_and_their_slopes(name):
    activation = keras.activations.get(name)
    assert is_elementwise(activation, 3)
    a = np.random.default_rng(0).normal(size=(4, 3)) * 2
    y, slope = value_and_slope(activation, tf.constant(a))
    step = 1e-6
    up, down = (np.asarray(activation(tf.constant(a + s))) for s in (step, -step))
    np.testing.assert_allclose(y, activation(tf.constant(a)), rtol=1e-14)
    np.testing.assert_allclose(slope, (up - down) / (2 * step), atol=1e-8)


def test_activations_across_units():
    def centred(a):
        return a - tf.reduce_mean(a, -1, keepdims=True)

    assert not is_elementwise(keras.activations.softmax, 3)
    assert not is_elementwise(keras.activations.log_softmax, 3)
    assert not is_elementwise(centred, 3)
    assert is_elementwise(lambda a: tf.sin(a) + a, 3)


@pytest.mark.parametrize("constant", [tf.constant(0.7, tf.float64), np.array([1.0, 0.5, 2.0])], ids=["dtype", "units"])
def test_an_activation_with_a_dtype_or_a_width_of_its_own_is_left_to_autodiff(constant):
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 3, 2)))
    found = []
    for library in (L, models):
        keras.utils.set_random_seed(0)
        layer = library.SimpleRNN(3, activation=lambda a: tf.tanh(constant * a), dtype="float64")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        found.append(tape.gradient(y, x))
    assert cells.find(layer.cell) is None
    np.testing.assert_allclose(found[1], found[0], rtol=1e-13)
