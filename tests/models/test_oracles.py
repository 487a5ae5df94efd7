"""Right answers known in closed form, and cases of people who got wrong ones elsewhere; no autodiff made them."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models._tf import stacked_accumulator
from models.gradcheck import TOLERANCES, adjoint_error, central_difference, compare

Forward = tf.autodiff.ForwardAccumulator
L = keras.layers
MODES = {
    "eager": lambda f: f,
    "graph": partial(tf.function, autograph=False),
    "xla": partial(tf.function, autograph=False, jit_compile=True),
}
WAYS = ["forward", "reverse"]


def rng(seed=0):
    return np.random.default_rng(seed)


def built(make, units, features, weights=None, **options):
    """Make a float64 layer that returns sequences and states, with given or random weights."""
    layer = make(units, return_sequences=True, return_state=True, dtype="float64", **options)
    layer.build((None, None, features))
    shapes = [w.shape for w in layer.get_weights()]
    given = [rng(7).normal(size=s) * 0.5 for s in shapes] if weights is None else weights
    layer.set_weights([np.broadcast_to(w, s) for w, s in zip(given, shapes, strict=True)])
    return layer


def jacobian(function, x, way, mode="graph"):
    """Compute the whole Jacobian, (output elements, input elements): columns at once, or row by row."""
    x = tf.constant(np.asarray(x, "float64"))
    columns = tf.reshape(tf.eye(int(tf.size(x)), dtype=x.dtype), [-1, *x.shape])

    def forward(x, columns):
        with stacked_accumulator([x], [columns]) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    def reverse(x, cotangent):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=cotangent, unconnected_gradients="zero")

    if way == "forward":
        return np.reshape(MODES[mode](forward)(x, columns), [len(columns), -1]).T
    shape, row = function(x).shape, MODES[mode](reverse)
    return np.stack([np.ravel(row(x, tf.constant(u.reshape(shape)))) for u in np.eye(shape.num_elements())])


def linear(w, u, **options):
    return built(models.SimpleRNN, np.shape(u)[0], np.shape(w)[0], [w, u, 0.0], activation="linear", **options)


# Closed forms.


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("way", WAYS)
def test_o1_scalar_linear_recurrence(way, mode):
    layer = linear([[0.3]], [[0.9]])
    x, h = np.ones((1, 5, 1)), tf.ones((1, 1), tf.float64)
    by_x = jacobian(lambda x: layer(x, initial_state=h)[1], x, way, mode)
    by_h = jacobian(lambda h: layer(x, initial_state=h)[1], h, way, mode)
    np.testing.assert_allclose(by_x, [[0.19683, 0.2187, 0.243, 0.27, 0.3]], rtol=1e-14)
    np.testing.assert_allclose(by_h, [[0.59049]], rtol=1e-14)


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [1, 1000])
def test_o2_gru_without_weights_halves_its_state(steps, way, reset_after):
    layer = built(models.GRU, 2, 3, [0.0, 0.0, 0.0], reset_after=reset_after)
    x, h = tf.zeros((1, steps, 3), tf.float64), tf.zeros((1, 2), tf.float64)
    by_h = jacobian(lambda h: layer(x, initial_state=h)[1], h, way)
    assert np.array_equal(by_h, 0.5**steps * np.eye(2))
    if steps < 1000:
        assert np.all(jacobian(lambda x: layer(x, initial_state=h)[1], x, way) == 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("steps", "wanted"), [(1022, 2.0**-1022), (1074, 4.94e-324), (1075, 0.0)])
def test_o2_gru_without_weights_down_to_the_smallest_number(steps, wanted, way):
    layer = built(models.GRU, 1, 1, [0.0, 0.0, 0.0])
    x, h = tf.zeros((1, steps, 1), tf.float64), tf.zeros((1, 1), tf.float64)
    # TensorFlow's kernels turn subnormal numbers into zero, in every mode.
    flushed = tf.constant(2.0**-1022, tf.float64) * 0.5 == 0
    wanted = 0.0 if flushed and wanted < 2.0**-1022 else wanted
    assert jacobian(lambda h: layer(x, initial_state=h)[1], h, way).item() == wanted


@pytest.mark.parametrize("way", WAYS)
def test_o3_lstm_without_weights(way):
    layer = models.LSTM(2, return_state=True, dtype="float64")
    layer.build((None, None, 1))
    forget = np.array([0, 0, 1, 1, 0, 0, 0, 0.0])
    assert np.array_equal(layer.cell.bias.numpy(), forget)
    layer.set_weights([np.zeros((1, 8)), np.zeros((2, 8)), forget])
    steps, c = 6, np.array([[0.4, -1.3]])
    x, zeros = tf.zeros((1, steps, 1), tf.float64), tf.zeros((1, 2), tf.float64)

    def states(h, c):
        return tf.concat(layer(x, initial_state=[h, c])[1:], -1)

    kept = 0.7310585786300049**steps
    by_c = jacobian(lambda c: states(zeros, c), c, way)
    np.testing.assert_allclose(by_c[2:], kept * np.eye(2), rtol=1e-14)
    slope = 0.5 * (1 - np.tanh(kept * c[0]) ** 2) * kept
    np.testing.assert_allclose(by_c[:2], np.diag(slope), rtol=1e-14)
    assert np.all(jacobian(lambda h: states(h, tf.constant(c)), zeros, way)[:2] == 0)


@pytest.mark.parametrize("way", WAYS)
def test_o4_simple_rnn_at_zero_has_the_transposed_weights(way):
    w, u = rng(1).normal(size=(3, 2)), rng(2).normal(size=(2, 2))
    layer = built(models.SimpleRNN, 2, 3, [w, u, 0.0])
    x, h = tf.zeros((1, 1, 3), tf.float64), tf.zeros((1, 2), tf.float64)
    assert np.array_equal(jacobian(lambda h: layer(x, initial_state=h)[1], h, way), u.T)
    assert np.array_equal(jacobian(lambda x: layer(x, initial_state=h)[1], x, way), w.T)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [1, 200])
def test_o5_orthogonal_recurrence_keeps_lengths(steps, way):
    u = np.linalg.qr(rng(3).normal(size=(4, 4)))[0]
    layer, x = linear(np.zeros((1, 4)), u), tf.zeros((1, steps, 1), tf.float64)
    found = jacobian(lambda h: layer(x, initial_state=h)[1], np.zeros((1, 4)), way)
    np.testing.assert_allclose(np.linalg.svd(found, compute_uv=False), 1, rtol=1e-12)
    np.testing.assert_allclose(found, np.linalg.matrix_power(u.T, steps), atol=1e-12)


def blocks(function, x, way):
    """Give the largest |dy_t/dx_s| as a matrix over (t, s), for one row."""
    y = function(tf.constant(x))
    found = jacobian(function, x, way).reshape(y.shape[1], y.shape[2], x.shape[1], x.shape[2])
    return np.abs(found).max((1, 3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "SimpleRNN"])
def test_o7_forward_running_recurrence_is_causal(kind, way):
    layer, x = built(getattr(models, kind), 2, 2), rng(4).normal(size=(1, 4, 2))
    size = blocks(lambda x: layer(x)[0], x, way)
    assert np.all(np.triu(size, 1) == 0)
    assert np.all(size[np.tril_indices(4)] > 0)


@pytest.mark.parametrize("way", WAYS)
def test_go_backwards_looks_at_the_future_only(way):
    """Outputs come in processing order, so dy_0/dx_s is nonzero only at the last s."""
    layer, x = built(models.GRU, 2, 2, go_backwards=True), rng(4).normal(size=(1, 4, 2))
    size = blocks(lambda x: layer(x)[0], x, way)
    assert np.array_equal(size[0] > 0, [False, False, False, True])
    assert np.array_equal(size > 0, np.tril(np.ones((4, 4), bool))[:, ::-1])


@pytest.mark.parametrize("way", WAYS)
def test_o7_bidirectional_looks_both_ways(way):
    n = 2
    inner = models.GRU(n, return_sequences=True, dtype="float64")
    layer, x = models.Bidirectional(inner, dtype="float64"), tf.constant(rng(4).normal(size=(1, 4, 2)))
    layer(x)
    past, future = (
        blocks(lambda x, part=part: layer(x)[..., part], x.numpy(), way) for part in (slice(n), slice(n, None))
    )
    assert np.array_equal(past > 0, np.tril(np.ones((4, 4), bool)))
    assert np.array_equal(future > 0, np.triu(np.ones((4, 4), bool)))


def random_model():
    keras.utils.set_random_seed(5)
    stack = [
        models.GRU(3, return_sequences=True, dtype="float64"),
        models.Bidirectional(models.LSTM(2, return_sequences=True, dtype="float64"), dtype="float64"),
        L.Dense(2, dtype="float64"),
    ]
    return keras.Sequential([keras.Input((None, 2), dtype="float64"), *stack])


@pytest.mark.parametrize("seed", range(3))
def test_o9_adjoint_identity(seed):
    model, x = random_model(), rng(6).normal(size=(2, 4, 2))

    def forward(at, tangents):
        x, dx = tf.constant(at["x"]), tf.constant(tangents["x"])
        with Forward(x, dx) as accumulator:
            y = model(x)
        return {"y": accumulator.jvp(y).numpy()}

    def reverse(at, cotangents):
        x = tf.constant(at["x"])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        return {"x": tape.gradient(y, x, tf.constant(cotangents["y"])).numpy()}

    assert adjoint_error(forward, reverse, {"x": x}, seed=seed) <= TOLERANCES["float64"].adjoint


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "SimpleRNN"])
def test_o10_a_masked_step_does_nothing(kind, way):
    layer = built(getattr(models, kind), 2, 2)
    slots = 2 if kind == "LSTM" else 1
    x, mask = tf.constant(rng(4).normal(size=(1, 1, 2))), tf.constant([[False]])
    states = tf.constant(rng(5).normal(size=(slots, 1, 2)))

    def after(x, states):
        return tf.stack(layer(x, initial_state=tf.unstack(states), mask=mask)[1:])

    assert np.array_equal(jacobian(lambda s: after(x, s), states, way), np.eye(2 * slots))
    assert np.all(jacobian(lambda x: after(x, states), x, way) == 0)


@pytest.mark.parametrize(
    ("kind", "mode", "way"),
    [
        ("GRU", "xla", "forward"),
        ("GRU", "graph", "reverse"),
        ("LSTM", "eager", "reverse"),
        ("LSTM", "graph", "forward"),
    ],
)
def test_o11_fully_masked_row(kind, mode, way):
    """Masks [[1, 1, 0], [0, 0, 0]]: the second row keeps its initial state, and its output is zeros."""
    layer = built(getattr(models, kind), 2, 2)
    x, mask = tf.constant(rng(4).normal(size=(2, 3, 2))), tf.constant([[True, True, False], [False, False, False]])
    h = tf.constant(rng(5).normal(size=(2, 2)))
    rest = [tf.ones((2, 2), tf.float64)] if kind == "LSTM" else []

    def called(x, h):
        return layer(x, initial_state=[h, *rest], mask=mask)

    y, final, *_ = MODES[mode](called)(x, h)
    assert np.all(y[1] == 0)
    assert np.array_equal(final[1], h[1])
    assert np.array_equal(y[0, 2], y[0, 1])
    by_h = jacobian(lambda h: called(x, h)[1], h, way, mode).reshape(2, 2, 2, 2)
    assert np.array_equal(by_h[1, :, 1], np.eye(2))
    assert np.all(jacobian(lambda h: called(x, h)[0][1], h, way, mode) == 0)
    by_x = jacobian(lambda x: called(x, h)[1], x, way, mode).reshape(2, 2, 2, 3, 2)
    assert np.all(by_x[1] == 0)
    assert np.all(by_x[0, :, 0, 2] == 0)
    assert np.any(by_x[0, :, 0, 1] != 0)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_o12_chunks(kind):
    layer = built(getattr(models, kind), 2, 2)
    slots = 2 if kind == "LSTM" else 1
    x, start = tf.constant(rng(4).normal(size=(1, 5, 2))), tf.constant(rng(5).normal(size=(slots, 1, 2)))

    def after(x, states):
        return tf.stack(layer(x, initial_state=tf.unstack(states))[1:])

    middle = after(x[:, :3], start)
    whole = jacobian(lambda s: after(x, s), start, "forward")
    first = jacobian(lambda s: after(x[:, :3], s), start, "forward")
    second = jacobian(lambda s: after(x[:, 3:], s), middle, "reverse")
    np.testing.assert_allclose(second @ first, whole, rtol=1e-12, atol=1e-14)

    weights = [w.value for w in layer.trainable_variables]

    def gradients(x, states, cotangent):
        with tf.GradientTape() as tape:
            tape.watch(states)
            found = after(x, states)
        *by_weights, by_states = tape.gradient(found, [*weights, states], output_gradients=cotangent)
        return by_weights, by_states

    cotangent = tf.constant(rng(6).normal(size=start.shape))
    full, _ = gradients(x, start, cotangent)
    later, back = gradients(x[:, 3:], middle, cotangent)
    earlier, _ = gradients(x[:, :3], start, back)
    cut_off, _ = gradients(x[:, :3], start, tf.zeros_like(back))
    for part, other, lost, right in zip(later, earlier, cut_off, full, strict=True):
        np.testing.assert_allclose(part + other, right, rtol=1e-12, atol=1e-14)
        assert np.abs(part + lost - right).max() > 1e-4


def test_o14_cotangents_of_the_states():
    layer = linear([[1.0]], [[2.0]])
    x = tf.zeros((1, 3, 1), tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)  # with W = 1, what is added to x_t is added to h_t
        last = layer(x)[1]
    assert tape.gradient(last, x).numpy().ravel().tolist() == [4, 2, 1]


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_o15_double_vjp_is_the_jvp_and_the_plain_vjp_is_not(mode):
    layer = built(models.GRU, 2, 2)
    x, tangent = (tf.constant(rng(s).normal(size=(1, 3, 2))) for s in (4, 5))

    def products(x, tangent):
        with Forward(x, tangent) as accumulator:
            y = layer(x)[0]
        jvp = accumulator.jvp(y)
        with tf.GradientTape() as outer:
            u = tf.ones_like(y)
            outer.watch(u)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = layer(x)[0]
            g = inner.gradient(y, x, output_gradients=u)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)[0]
        return jvp, outer.gradient(g, u, output_gradients=tangent), tape.gradient(y, x, output_gradients=tangent)

    jvp, double, plain = MODES[mode](products)(x, tangent)
    np.testing.assert_allclose(double, jvp, rtol=1e-12, atol=1e-14)
    assert np.abs(plain - jvp).max() > 1e-2


# Cases from people who do this work.


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_jvp_with_respect_to_all_weights_behind_an_embedding(mode):
    """tensorflow#43449: Embedding, Bidirectional(LSTM), Dense."""
    keras.utils.set_random_seed(3)
    stack = [
        L.Embedding(7, 3, dtype="float64"),
        models.Bidirectional(models.LSTM(2, dtype="float64"), dtype="float64"),
        L.Dense(1, dtype="float64"),
    ]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *stack])
    tokens = tf.constant([[1, 4, 4, 0], [6, 2, 5, 1]])
    variables = model.trainable_variables
    point = {str(i): v.numpy() for i, v in enumerate(variables)}
    tangents = {name: rng(int(name)).normal(size=v.shape) for name, v in point.items()}
    assert len(point) == 9

    def jvp(*tangents):
        with Forward([v.value for v in variables], list(tangents)) as accumulator:
            y = model(tokens)
        return accumulator.jvp(y)

    def evaluate(at):
        mapping = list(zip(variables, (tf.constant(w) for w in at.values()), strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return {"y": model(tokens).numpy()}

    found = MODES[mode](jvp)(*map(tf.constant, tangents.values()))
    assert compare({"y": found.numpy()}, central_difference(evaluate, point, tangents)) <= 1e-6


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("rule", [True, False], ids=["rule", "autodiff"])
def test_no_dependence_gives_zeros_of_the_right_shape(rule, mode):
    """tensorflow#60164, #60736: None instead."""
    cell = L.SimpleRNNCell(3, activation=tf.sign, dtype="float64")
    cell = cell if rule else L.StackedRNNCells([cell], dtype="float64")
    layer = models.RNN(cell, return_sequences=True, dtype="float64")
    x = tf.constant(rng(1).normal(size=(2, 4, 2)))
    layer.build(x.shape)

    def jvp(x, dx):
        with Forward(x, dx) as accumulator:
            y = layer(x)
        return accumulator.jvp(y)

    found = MODES[mode](jvp)(x, x)
    assert found.shape == (2, 4, 3)
    assert np.all(found == 0)


@pytest.mark.parametrize(
    ("way", "mode"), [("forward", "graph"), ("forward", "xla"), ("reverse", "eager"), ("reverse", "graph")]
)
def test_lstm_jacobian_is_the_same_in_every_mode(way, mode):
    """tensorflow#37053, #47785, #57343."""
    loop, unrolled = built(models.LSTM, 2, 2), built(models.LSTM, 2, 2, unroll=True)
    x = rng(4).normal(size=(1, 3, 2))
    right = jacobian(lambda x: unrolled(x)[0], x, "reverse", "eager")
    layers = [loop] if mode == "xla" else [loop, unrolled]
    for layer in layers:
        np.testing.assert_allclose(jacobian(lambda x, f=layer: f(x)[0], x, way, mode), right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reset_after", [True, False])
def test_gru_three_ways(reset_after):
    """axon#646: 0.405 by the dynamic loop against 0.091 by the static one."""
    loop, unrolled = (built(models.GRU, 3, 2, reset_after=reset_after, unroll=u) for u in (False, True))
    x = rng(4).normal(size=(2, 5, 2))

    def gradient(layer):
        source = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(source)
            loss = tf.reduce_sum(layer(source)[0] ** 2)
        return tape.gradient(loss, source).numpy()

    def loss(x):
        return np.sum(loop(tf.constant(x))[0].numpy() ** 2)

    step, by_differences = 1e-5, np.zeros_like(x)
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        by_differences[place] = (loss(x + moved) - loss(x - moved)) / (2 * step)
    np.testing.assert_allclose(gradient(loop), gradient(unrolled), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gradient(loop), by_differences, atol=1e-7)


def test_one_step_jacobians_at_many_states():
    """Fixed-point finding: dF/dx [n, N, N] and dF/du [n, N, inputs] of an LSTM with N = 2 x units, order (h, c)."""
    layer, n, units, features = built(models.LSTM, 2, 3), 4, 2, 3
    state = tf.constant(rng(1).normal(size=(n, 2 * units)))
    u = tf.constant(rng(2).normal(size=(n, 1, features)))

    def after(state, u):
        return tf.concat(layer(u, initial_state=tf.split(state, 2, -1))[1:], -1)

    def together(function, at):
        """Every row is moved along the same axis at once: the Jacobian has no blocks between rows."""
        width = int(np.prod(at.shape[1:]))
        axes = tf.reshape(tf.repeat(tf.eye(width, dtype=at.dtype)[:, tf.newaxis], n, 1), [width, *at.shape])
        with stacked_accumulator([at], [axes]) as accumulator:
            found = function(at)
        return tf.transpose(accumulator.jvp(found), [1, 2, 0])

    by_state = tf.function(partial(together, lambda s: after(s, u)), autograph=False)(state)
    by_input = tf.function(partial(together, lambda u: after(state, u)), autograph=False)(u)
    assert by_state.shape == (n, 4, 4)
    assert by_input.shape == (n, 4, 3)
    step = 1e-6
    for found, function, at in ((by_state, lambda s: after(s, u), state), (by_input, lambda u: after(state, u), u)):
        for i in range(found.shape[-1]):
            moved = np.zeros(at.shape)
            moved.reshape(n, -1)[:, i] = step
            np.testing.assert_allclose(
                found[:, :, i], (function(at + moved) - function(at - moved)) / (2 * step), atol=1e-8
            )


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


@pytest.mark.parametrize(("reset_after", "count"), [(False, 150), (True, 165)])
def test_gru_parameters_and_formula(reset_after, count):
    layer = built(models.GRU, 5, 4, reset_after=reset_after)
    assert layer.count_params() == count
    w, u, b = layer.get_weights()
    assert b.shape == ((2, 15) if reset_after else (15,))
    x, h = rng(1).normal(size=(1, 3, 4)), np.zeros((1, 5))
    outside, inside = (b[0], b[1]) if reset_after else (b, np.zeros(15))
    for t in range(3):
        p, q = x[:, t] @ w + outside, h @ u + inside
        z, r = sigmoid(p[:, :5] + q[:, :5]), sigmoid(p[:, 5:10] + q[:, 5:10])
        n = np.tanh(p[:, 10:] + (r * q[:, 10:] if reset_after else (r * h) @ u[:, 10:]))
        h = z * h + (1 - z) * n
    np.testing.assert_allclose(layer(tf.constant(x))[1], h, rtol=1e-13)
