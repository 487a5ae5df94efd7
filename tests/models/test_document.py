"""The program of a public question: forward mode through two GRU layers inside a `tf.function`, and its three answers.

The question's own answers do not hold: its "method 1" computes a VJP, its "method 2" does not run on Keras 3.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models import GRU

EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Program:
    """The three layers of the document, and its function with them."""

    def __init__(self, gru, units=32, features=1, **kwargs):
        common = {"return_sequences": True, "activation": tf.nn.relu, "dtype": tf.float64, "use_cudnn": False, **kwargs}
        self.layer1, self.layer2 = gru(units, **common), gru(units, **common)
        self.layer3 = keras.layers.Dense(1, activation=tf.nn.relu, dtype=tf.float64)
        self.layers = [self.layer1, self.layer2, self.layer3]
        self(tf.zeros((1, 2, features), tf.float64)) if not kwargs.get("unroll") else None

    def __call__(self, inp):
        feature = self.layer1(inp)
        feature = self.layer2(feature)
        return self.layer3(feature)

    def jac_vec_prod(self, inp, tangent):
        with tf.autodiff.ForwardAccumulator(primals=inp, tangents=tangent) as acc:
            out = self(inp)
        return acc.jvp(out)

    def like(self, other, shape):
        self(tf.zeros(shape, tf.float64))
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.set_weights(theirs.get_weights())
        return self


def _normal(*shape, seed):
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


@pytest.fixture(scope="module")
def stock():
    keras.utils.set_random_seed(0)
    program = Program(keras.layers.GRU)
    # Left as drawn the last relu is dead almost everywhere, and a tangent of zeros would prove nothing.
    program.layer3.bias.assign([0.5])
    return program


@pytest.fixture(scope="module", params=[(8, 16, 1), pytest.param((128, 64, 1), marks=pytest.mark.slow)], ids=str)
def x(request):
    """The document's own sizes take stock Keras long."""
    return _normal(*request.param, seed=1)


@pytest.fixture(scope="module")
def tangent(x):
    return tf.ones_like(x)


@pytest.fixture(scope="module")
def expected(stock, x, tangent):
    """Stock Keras, eagerly: slow, but TensorFlow's forward mode is right there."""
    found = stock.jac_vec_prod(x, tangent)
    assert np.count_nonzero(found) > found.shape.num_elements() / 2
    return found


def test_stock_layers_fail_inside_a_function():
    """What the question is about; if this ever passes, the project's layers are needed for speed only."""
    program = Program(keras.layers.GRU, units=2)
    x = _normal(2, 3, 1, seed=1)
    with pytest.raises(TypeError, match="variant"):
        tf.function(program.jac_vec_prod)(x, x)


@pytest.mark.parametrize("mode", ["eager", "function", "jit"])
def test_only_the_import_changes(mode, stock, x, tangent, expected):
    program = Program(GRU).like(stock, (1, 2, 1))
    jac_vec_prod = {
        "eager": program.jac_vec_prod,
        "function": tf.function(program.jac_vec_prod),
        "jit": tf.function(program.jac_vec_prod, jit_compile=True),
    }[mode]
    np.testing.assert_allclose(jac_vec_prod(inp=x, tangent=tangent), expected, **EXACT)


def test_stock_layers_made_safe_in_place(stock, x, tangent, expected):
    program = Program(keras.layers.GRU).like(stock, (1, 2, 1))
    for layer in program.layers:
        models.make_forward_safe(layer)
    np.testing.assert_allclose(tf.function(program.jac_vec_prod)(x, tangent), expected, **EXACT)


def test_the_unrolled_loop_gives_the_same(stock):
    """The document's "method 2", which as printed does not run on Keras 3; a few steps stand for its 64."""
    x, tangent = _normal(8, 4, 1, seed=2), _normal(8, 4, 1, seed=3)
    program = Program(GRU, unroll=True).like(stock, (8, 4, 1))
    scanned = Program(GRU).like(stock, (8, 4, 1))
    got = tf.function(program.jac_vec_prod)(x, tangent)
    np.testing.assert_allclose(got, stock.jac_vec_prod(x, tangent), **EXACT)
    np.testing.assert_allclose(got, tf.function(scanned.jac_vec_prod)(x, tangent), **EXACT)


# --- "method 1" -------------------------------------------------------------------------------------------------------


@tf.function
def method_1(program, inp, tangent):
    """The document's: the tangent goes in as a cotangent, and Jᵀ t comes out."""
    with tf.GradientTape() as tape:
        tape.watch(inp)
        out = program(inp)
    return tape.gradient(out, inp, output_gradients=tangent)


@tf.function
def double_vjp(program, inp, tangent):
    """What it should have been: g(u) = Jᵀ u is linear in u, and its own transpose maps t to J t."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(inp)
            out = program(inp)
        u = tf.ones_like(out)
        outer.watch(u)
        g = inner.gradient(out, inp, output_gradients=u)
    return outer.gradient(g, u, output_gradients=tangent)


@pytest.fixture(scope="module")
def small(stock):
    return Program(GRU).like(stock, (2, 3, 1)), _normal(2, 3, 1, seed=4)


def _jacobian(program, x):
    """Column by column from stock eager forward mode, which is no code of this project: (batch, out time, in time)."""
    columns = []
    for i in range(x.shape[1]):
        e = np.zeros(x.shape)
        e[:, i] = 1
        columns.append(program.jac_vec_prod(x, tf.constant(e))[..., 0])
    return np.stack(columns, -1)


def test_method_1_is_not_the_jvp_unless_the_jacobian_is_symmetric(small, stock):
    """The Jacobian of a causal model is triangular, so Jᵀ t and J t differ for a tangent that is not special."""
    program, x = small
    tangent = _normal(2, 3, 1, seed=5)
    jacobian = _jacobian(stock, x)
    assert np.abs(jacobian - jacobian.swapaxes(1, 2)).max() > 1e-3
    transposed = np.einsum("bij,bi->bj", jacobian, tangent[..., 0])
    pushed = np.einsum("bij,bj->bi", jacobian, tangent[..., 0])
    wrong = method_1(program, x, tangent)[..., 0]
    np.testing.assert_allclose(wrong, transposed, **EXACT)
    assert np.abs(wrong - pushed).max() > 1e-2
    np.testing.assert_allclose(tf.function(program.jac_vec_prod)(x, tangent)[..., 0], pushed, **EXACT)


def test_with_a_tangent_of_ones_the_sums_of_both_agree_and_hide_the_mistake(small):
    """1ᵀ(J 1) = 1ᵀ(Jᵀ 1) always, so a test on sums with the document's tangent can't tell a JVP from a VJP."""
    program, x = small
    ones = tf.ones_like(x)
    wrong, right = method_1(program, x, ones), tf.function(program.jac_vec_prod)(x, ones)
    np.testing.assert_allclose(tf.reduce_sum(wrong, [1, 2]), tf.reduce_sum(right, [1, 2]), **EXACT)
    assert np.abs(wrong - right).max() > 1e-2


def test_the_double_vjp_is_the_jvp(small, stock):
    program, x = small
    tangent = _normal(2, 3, 1, seed=5)
    expected = stock.jac_vec_prod(x, tangent)
    np.testing.assert_allclose(double_vjp(program, x, tangent), expected, **EXACT)
    np.testing.assert_allclose(double_vjp(stock, x, tangent), expected, **EXACT)


def test_input_and_output_of_different_shapes():
    """A JVP has the output's shape; "method 1" isn't even defined here, because no tangent fits as a cotangent."""
    keras.utils.set_random_seed(3)
    program, reference = (Program(gru, units=4, features=3) for gru in (GRU, keras.layers.GRU))
    program.like(reference, (2, 3, 3))
    x, tangent = _normal(2, 3, 3, seed=6), _normal(2, 3, 3, seed=7)
    got = tf.function(program.jac_vec_prod)(x, tangent)
    assert got.shape == (2, 3, 1)
    np.testing.assert_allclose(got, reference.jac_vec_prod(x, tangent), **EXACT)
    np.testing.assert_allclose(double_vjp(program, x, tangent), got, **EXACT)
    with pytest.raises(ValueError, match="shape"):
        method_1(program, x, tangent)


# --- time to the first result -----------------------------------------------------------------------------------------


def _operations(program, time):
    spec = tf.TensorSpec((128, time, 1), tf.float64)
    definition = tf.function(program.jac_vec_prod).get_concrete_function(spec, spec).graph.as_graph_def()
    nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
    return [node.op for node in nodes]


def test_the_graph_has_one_loop_per_layer_and_does_not_grow_with_time():
    """Tracing and compiling cost the same for 64 and for 1,000 steps; what is left is the run itself."""
    program = Program(GRU)
    short, long = (_operations(program, time) for time in (64, 1000))
    # TensorFlow writes a few rules out or not depending on sizes, so the counts are close, not equal.
    assert len(long) < 1.1 * len(short)
    assert sum("While" in op for op in short) == 2
    assert sum("While" in op for op in long) == 2


def test_a_long_sequence():
    program = Program(GRU, units=4)
    x, tangent = _normal(2, 1000, 1, seed=8), _normal(2, 1000, 1, seed=9)
    step = 1e-6
    moved = [program(x + s * step * tangent) for s in (1, -1)]
    got = tf.function(program.jac_vec_prod)(x, tangent)
    assert np.abs(got).max() > 1e-3
    np.testing.assert_allclose(got, (moved[0] - moved[1]) / (2 * step), rtol=1e-4, atol=1e-6)
