"""The drop-in layers against stock Keras with the same weights, and against its forward mode, which works eagerly."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import models

B, T, F, N = 3, 4, 2, 3
TIGHT = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2}

# A row as usual, one whose sequence starts late, one that is masked throughout.
MASKS = {
    "none": None,
    "mixed": np.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]], bool),
    "late": np.array([[0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], bool),
}


@keras.saving.register_keras_serializable(package="tests")
class Leaky(keras.layers.Layer):
    """A cell with one state, whose output is not its state."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, x, states):
        h = states[0] if isinstance(states, list | tuple) else states
        new = 0.7 * h + 0.3 * keras.ops.tanh(x @ self.kernel + h @ self.recurrent)
        return keras.ops.square(new) - x[:, :1], [new]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="tests")
class Pair(Leaky):
    """A cell with two states of different sizes, the second a step counter."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.state_size = [units, 1]

    def call(self, x, states):
        h, k = states
        new = keras.ops.sin(x @ self.kernel + h @ self.recurrent + k)
        return new * k, [new, k + 0.5]


def _rnn(make_cell, library, **kwargs):
    return library.RNN(make_cell(kwargs.get("dtype")), **kwargs)


def _stacked(dtype):
    cells = keras.layers
    return cells.StackedRNNCells([cells.LSTMCell(2, dtype=dtype), Leaky(N, dtype=dtype)], dtype=dtype)


LAYERS = {
    "gru": lambda library, **k: library.GRU(N, **k),
    "gru_reset_before": lambda library, **k: library.GRU(N, reset_after=False, **k),
    "gru_no_bias": lambda library, **k: library.GRU(N, use_bias=False, activation="elu", **k),
    "lstm": lambda library, **k: library.LSTM(N, **k),
    "lstm_no_bias": lambda library, **k: library.LSTM(N, use_bias=False, recurrent_activation="hard_sigmoid", **k),
    "simple_rnn": lambda library, **k: library.SimpleRNN(N, **k),
    "simple_rnn_softmax": lambda library, **k: library.SimpleRNN(N, activation="softmax", **k),
    "rnn_gru_cell": partial(_rnn, lambda d: keras.layers.GRUCell(N, dtype=d)),
    "rnn_leaky": partial(_rnn, lambda d: Leaky(N, dtype=d)),
    "rnn_pair": partial(_rnn, lambda d: Pair(N, dtype=d)),
    "rnn_stacked": partial(_rnn, _stacked),
}
CORE = ["gru", "lstm", "simple_rnn", "rnn_leaky", "rnn_pair", "rnn_stacked"]


def _pair(make, shape=(B, T, F), dtype="float64", seed=0, **kwargs):
    """Make the stock layer and ours, both with the same random weights, biases included."""
    stock, ours = (make(library, dtype=dtype, **kwargs) for library in (keras.layers, models))
    for layer in (stock, ours):
        layer.build(shape)
    random = np.random.default_rng(seed)
    weights = [random.normal(size=w.shape, scale=0.6) for w in stock.get_weights()]
    stock.set_weights(weights)
    ours.set_weights(weights)
    assert [w.name for w in stock.weights] == [w.name for w in ours.weights]
    return stock, ours


def _random(*shape, dtype="float64", seed=1):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


def _jvp(layer, call, primals, tangents, *, with_weights=True):
    """Return outputs and their tangents along the arguments and all trainable weights at once."""
    weights = [v.value for v in layer.trainable_variables] if with_weights else []
    along = [_random(*w.shape, dtype=w.dtype, seed=7 + i) for i, w in enumerate(weights)]
    with tf.autodiff.ForwardAccumulator([*primals, *weights], [*tangents, *along]) as accumulator:
        outputs = keras.tree.flatten(call(*primals))
    return outputs, [accumulator.jvp(o, tf.UnconnectedGradients.ZERO) for o in outputs]


def _same(got, want, tolerance):
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def _compare(stock, ours, primals, *, tolerance=TIGHT["float64"], eager=True, graph=True, **call):
    """Outputs and tangents: ours eagerly and in a graph against stock eagerly."""
    tangents = [_random(*p.shape, dtype=p.dtype, seed=30 + i) for i, p in enumerate(primals)]

    def run(layer, *both):
        half = len(both) // 2
        called = lambda x, *s: layer(x, **({"initial_state": list(s)} if s else {}), **call)  # noqa: E731
        return _jvp(layer, called, both[:half], both[half:])

    want = run(stock, *primals, *tangents)
    assert any(np.abs(t).max() > 1e-3 for t in want[1]), "the case tests nothing: every tangent is zero"
    for mode in [lambda f: f] * eager + [partial(tf.function, autograph=False)] * graph:
        got = mode(partial(run, ours))(*primals, *tangents)
        for g, w in zip(got, want, strict=True):
            _same(g, w, tolerance)
    return want


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_gives_stock_outputs_states_and_tangents(name):
    stock, ours = _pair(LAYERS[name], return_sequences=True, return_state=True)
    _compare(stock, ours, [_random(B, T, F)])


@pytest.mark.parametrize("mask", ["mixed", "late"])
@pytest.mark.parametrize("name", ["gru", "lstm", "rnn_pair"])
def test_masks(name, mask):
    stock, ours = _pair(LAYERS[name], return_sequences=True, return_state=True)
    _compare(stock, ours, [_random(B, T, F)], mask=tf.constant(MASKS[mask]), eager=False)


@pytest.mark.parametrize(("sequences", "backwards"), [(True, True), (False, False)])
@pytest.mark.parametrize("name", ["lstm", "rnn_leaky"])
def test_zero_output_for_mask(name, sequences, backwards):
    make = partial(LAYERS[name], zero_output_for_mask=True, return_state=True, go_backwards=backwards)
    stock, ours = _pair(make, return_sequences=sequences)
    _compare(stock, ours, [_random(B, T, F)], mask=tf.constant(MASKS["mixed"]), eager=False)


@pytest.mark.parametrize(("sequences", "mask"), [(True, "mixed"), (False, "mixed"), (False, "none")])
@pytest.mark.parametrize("name", ["gru", "rnn_pair"])
def test_go_backwards(name, sequences, mask):
    stock, ours = _pair(LAYERS[name], go_backwards=True, return_sequences=sequences, return_state=True)
    given = MASKS[mask]
    _compare(stock, ours, [_random(B, T, F)], mask=None if given is None else tf.constant(given), eager=False)


@pytest.mark.parametrize(
    ("name", "mask"),
    [("gru", "none"), ("lstm", "mixed"), ("simple_rnn", "mixed"), ("rnn_pair", "none"), ("rnn_stacked", "mixed")],
)
def test_initial_state_is_used_and_differentiated(name, mask):
    stock, ours = _pair(LAYERS[name], return_sequences=True, return_state=True)
    sizes = keras.tree.flatten(stock.cell.state_size)
    states = [_random(B, n, seed=50 + i) for i, n in enumerate(sizes)]
    given = MASKS[mask]
    call = {} if given is None else {"mask": tf.constant(given)}

    def pack(flat):
        return keras.tree.pack_sequence_as(stock.get_initial_state(B), list(flat))

    x = _random(B, T, F)
    tangents = [_random(*p.shape, seed=60 + i) for i, p in enumerate([x, *states])]

    def run(layer, x, states, tangents):
        return _jvp(layer, lambda x, *s: layer(x, initial_state=pack(s), **call), [x, *states], tangents)

    want = run(stock, x, states, tangents)
    got = tf.function(partial(run, ours), autograph=False)(x, states, tangents)
    for g, w in zip(got, want, strict=True):
        _same(g, w, 1e-12)
    default = ours(x, **call)[0]
    assert not np.allclose(default, got[0][0])


@pytest.mark.parametrize(
    ("name", "backwards", "mask"), [("gru", False, "none"), ("lstm", True, "late"), ("rnn_stacked", True, "late")]
)
def test_unrolled_layer(name, backwards, mask):
    stock, ours = _pair(LAYERS[name], unroll=True, return_sequences=True, return_state=True, go_backwards=backwards)
    given = MASKS[mask]
    _compare(stock, ours, [_random(B, T, F)], mask=None if given is None else tf.constant(given), eager=False)


def test_an_unrolled_layer_has_no_loop_in_its_graph_and_the_other_has_one():
    def loops(unroll):
        layer = models.GRU(N, unroll=unroll)
        layer.build((B, T, F))
        graph = tf.function(layer.__call__, autograph=False).get_concrete_function(tf.TensorSpec((B, T, F))).graph
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
        return sum("While" in node.op for node in nodes)

    assert (loops(True), loops(False)) == (0, 1)


@pytest.mark.parametrize("name", ["gru", "rnn_leaky"])
def test_a_single_step(name):
    stock, ours = _pair(LAYERS[name], shape=(B, 1, F), return_sequences=True, return_state=True)
    _compare(stock, ours, [_random(B, 1, F)], eager=False)


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn_stacked"])
def test_gradients_of_every_weight(name):
    stock, ours = _pair(LAYERS[name], return_sequences=True, return_state=True)
    x, mask = _random(B, T, F), tf.constant(MASKS["mixed"])

    @tf.function(autograph=False)
    def run(layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = keras.tree.flatten(layer(x, mask=mask))
            loss = tf.add_n([tf.reduce_sum(tf.sin(o)) for o in outputs])
        return tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

    _same(run(ours), run(stock), 1e-12)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("gru", "float16"), ("lstm", "float32"), ("gru", "mixed_float16"), ("rnn_leaky", "mixed_float16")],
)
def test_dtype_policies(name, policy):
    stock, ours = _pair(LAYERS[name], dtype=policy, return_sequences=True, return_state=True)
    dtype = keras.DTypePolicy(policy).compute_dtype
    x = _random(B, T, F, dtype=dtype)
    _compare(stock, ours, [x], tolerance=TIGHT[dtype], eager=False, mask=tf.constant(MASKS["mixed"]))
    assert ours.compute_dtype == stock.compute_dtype
    assert ours.variable_dtype == stock.variable_dtype


@pytest.mark.parametrize(
    ("name", "dropouts"),
    [
        ("gru", {"dropout": 0.5}),
        ("lstm", {"recurrent_dropout": 0.4}),
        ("simple_rnn", {"dropout": 0.3, "recurrent_dropout": 0.3}),
    ],
)
def test_training_with_dropout_keeps_the_numbers_of_keras(name, dropouts):
    stock, ours = _pair(partial(LAYERS[name], seed=5, **dropouts), return_sequences=True)
    x = _random(B, T, F)
    trained = [layer(x, training=True) for layer in (stock, ours)]
    _same(trained[1:], trained[:1], 1e-12)
    quiet = [layer(x, training=False) for layer in (stock, ours)]
    _same(quiet[1:], quiet[:1], 1e-12)
    assert not np.allclose(trained[1], quiet[1])


def test_training_with_dropout_in_a_stacked_cell_keeps_the_numbers_of_keras():
    def make(library, **kwargs):
        cells = [
            keras.layers.GRUCell(2, dropout=0.5, seed=3, dtype="float64"),
            keras.layers.GRUCell(2, dtype="float64"),
        ]
        return library.RNN(keras.layers.StackedRNNCells(cells, dtype="float64"), **kwargs)

    stock, ours = _pair(make, return_sequences=True)
    x = _random(B, T, F)
    _same([ours(x, training=True)], [stock(x, training=True)], 1e-12)


@pytest.mark.parametrize("name", ["gru", "lstm", "simple_rnn", "rnn_leaky", "rnn_pair"])
def test_a_stateful_layer_carries_its_state_from_call_to_call_until_reset(name):
    stock, ours = _pair(LAYERS[name], stateful=True, return_sequences=True)
    first, second = _random(B, T, F), _random(B, T, F, seed=2)
    for x in (first, second):
        _same([ours(x)], [stock(x)], 1e-12)
        _same([s.value for s in ours.states], [s.value for s in stock.states], 1e-12)
    carried = ours(first)
    stock.reset_state()
    ours.reset_state()
    fresh = ours(first)
    _same([fresh], [stock(first)], 1e-12)
    assert not np.allclose(carried, fresh)


def test_a_stateful_layer_carries_its_state_between_calls_of_a_function():
    stock, ours = _pair(LAYERS["gru"], stateful=True)
    x = _random(B, T, F)
    call = {layer: tf.function(layer.__call__, autograph=False) for layer in (stock, ours)}
    outputs = [[call[layer](x) for _ in range(3)] for layer in (ours, stock)]
    _same(*outputs, 1e-12)
    assert not np.allclose(outputs[0][0], outputs[0][2])


def test_free_batch_and_time_axes_share_one_trace():
    stock, ours = _pair(LAYERS["lstm"], return_sequences=True)
    run = tf.function(ours.__call__, autograph=False, input_signature=[tf.TensorSpec((None, None, F), tf.float64)])
    for batch, time in ((1, 1), (2, 7), (4, 3)):
        x = _random(batch, time, F)
        _same([run(x)], [stock(x)], 1e-12)
    assert run.experimental_get_tracing_count() == 1


# --- convolutional cells, wrappers ------------------------------------------------------------------------------------


def _made_safe(layer_class):
    """There is no ConvLSTM of our own: a stock layer that is made safe plays that part."""

    def make(library, **kwargs):
        layer = layer_class(2, 2, padding="same", **kwargs)
        return models.make_forward_safe(layer) if library is models else layer

    return make


@pytest.mark.parametrize(("backwards", "mask"), [(False, "none"), (True, "mixed")])
def test_conv_lstm_1d(backwards, mask):
    make = _made_safe(keras.layers.ConvLSTM1D)
    shape = (B, T, 4, F)
    stock, ours = _pair(make, shape, return_sequences=True, return_state=True, go_backwards=backwards)
    given = MASKS[mask]
    _compare(stock, ours, [_random(*shape)], mask=None if given is None else tf.constant(given), eager=False)


def test_conv_lstm_2d_outputs():
    shape = (2, 3, 4, 3, 2)
    stock, ours = _pair(_made_safe(keras.layers.ConvLSTM2D), shape, return_sequences=True, return_state=True)
    x = _random(*shape)
    _same(ours(x), stock(x), 1e-12)


@pytest.mark.parametrize(
    ("merge", "sequences"),
    [("concat", True), ("sum", True), ("ave", False), ("mul", True), (None, True), ("concat", False)],
)
def test_bidirectional_merges(merge, sequences):
    def make(library, dtype):
        inner = library.SimpleRNN(N, return_sequences=sequences, dtype=dtype)
        return library.Bidirectional(inner, merge_mode=merge, dtype=dtype)

    stock, ours = _pair(make)
    _compare(stock, ours, [_random(B, T, F)], mask=tf.constant(MASKS["mixed"]), eager=False)


def test_bidirectional_with_a_backward_layer_and_states():
    def make(library, dtype):
        common = {"return_sequences": True, "return_state": True, "dtype": dtype}
        backward = library.SimpleRNN(2, go_backwards=True, **common)
        return library.Bidirectional(library.LSTM(N, **common), backward_layer=backward, dtype=dtype)

    stock, ours = _pair(make)
    _compare(stock, ours, [_random(B, T, F)], eager=False)


def test_bidirectional_with_initial_states():
    def make(library, dtype):
        return library.Bidirectional(library.LSTM(N, return_state=True, dtype=dtype), dtype=dtype)

    stock, ours = _pair(make)
    _compare(stock, ours, [_random(B, T, F), *(_random(B, N, seed=i) for i in range(4))], eager=False)


def test_bidirectional_makes_stock_inner_layers_safe():
    stock = keras.layers.Bidirectional(keras.layers.GRU(N, dtype="float64"), dtype="float64")
    ours = models.Bidirectional(keras.layers.GRU(N, dtype="float64"), dtype="float64")
    for layer in (stock, ours):
        layer.build((B, T, F))
    ours.set_weights(stock.get_weights())
    _compare(stock, ours, [_random(B, T, F)], eager=False)


@pytest.mark.parametrize("free", [False, True], ids=["static", "free"])
def test_time_distributed_dense(free):
    stock, ours = _pair(
        lambda library, dtype: library.TimeDistributed(keras.layers.Dense(N, "tanh", dtype=dtype), dtype=dtype)
    )
    x, dx = _random(B, T, F), _random(B, T, F, seed=2)
    want = _jvp(stock, stock, [x], [dx])
    spec = tf.TensorSpec((None, None, F) if free else (B, T, F), tf.float64)
    run = tf.function(lambda x, dx: _jvp(ours, ours, [x], [dx]), autograph=False, input_signature=[spec, spec])
    for g, w in zip(run(x, dx), want, strict=True):
        _same(g, w, 1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("free", [False, True], ids=["static", "free"])
def test_time_distributed_around_a_recurrence(free, masked):
    shape = (B, 4, T, F)
    stock, ours = _pair(lambda library, dtype: library.TimeDistributed(library.GRU(N, dtype=dtype), dtype=dtype), shape)
    x, dx = _random(*shape), _random(*shape, seed=2)
    mask = np.random.default_rng(3).random(shape[:3]) > 0.4
    mask[0, 0] = False
    given = {"mask": tf.constant(mask)} if masked else {}
    want = _jvp(stock, lambda x: stock(x, **given), [x], [dx])
    spec = tf.TensorSpec((None, None, T, F) if free else shape, tf.float64)
    run = tf.function(
        lambda x, dx: _jvp(ours, lambda x: ours(x, **given), [x], [dx]), autograph=False, input_signature=[spec, spec]
    )
    for g, w in zip(run(x, dx), want, strict=True):
        _same(g, w, 1e-12)


def test_time_distributed_hands_a_stateful_layers_state_from_step_to_step():
    shape = (B, 3, T, F)
    stock, ours = _pair(
        lambda library, dtype: library.TimeDistributed(library.GRU(N, stateful=True, dtype=dtype), dtype=dtype), shape
    )
    x = _random(*shape)
    for _ in range(2):
        _same([ours(x)], [stock(x)], 1e-12)


def test_time_distributed_trains_one_step_at_a_time_as_keras_does():
    """Batch normalisation's statistics are those of a step's batch, not of all steps together."""
    stock, ours = _pair(
        lambda library, dtype: library.TimeDistributed(keras.layers.BatchNormalization(dtype=dtype), dtype=dtype)
    )
    for layer in (stock, ours):
        layer.layer.moving_variance.assign(np.ones(F))
    x = _random(B, T, F)
    _same([ours(x, training=True)], [stock(x, training=True)], 1e-12)
    _same([ours(x, training=False)], [stock(x, training=False)], 1e-12)


# --- configuration and archives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORE)
def test_config_round_trip(name):
    _, ours = _pair(LAYERS[name], return_sequences=True)
    again = type(ours).from_config(ours.get_config())
    assert type(again) is type(ours)
    assert again.get_config() == ours.get_config()
    again.build((B, T, F))
    again.set_weights(ours.get_weights())
    x = _random(B, T, F)
    _same([again(x)], [ours(x)], 0)


def test_our_config_is_that_of_the_stock_layer():
    stock, ours = (library.GRU(N, name="gru", return_sequences=True) for library in (keras.layers, models))
    assert ours.get_config() == stock.get_config()


@pytest.mark.parametrize("name", ["gru", "rnn_stacked", "bidirectional", "time_distributed"])
def test_saved_model_loads_with_equal_numbers_and_stays_safe(name, tmp_path):
    if name == "bidirectional":
        layer = models.Bidirectional(models.LSTM(N, return_sequences=True))
    elif name == "time_distributed":
        layer = models.TimeDistributed(keras.layers.Dense(2))
    else:
        layer = LAYERS[name](models, return_sequences=True)
    model = keras.Sequential([keras.Input((None, F)), layer, keras.layers.Dense(1)])
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert type(again.layers[0]) is type(layer)
    x, dx = _random(B, T, F, dtype="float32"), _random(B, T, F, dtype="float32", seed=2)
    run = tf.function(lambda m: _jvp(m, m, [x], [dx]), autograph=False)
    for g, w in zip(run(again), run(model), strict=True):
        _same(g, w, 0)


def test_constructors_take_the_arguments_of_keras():
    layer = models.GRU(
        4, activation="relu", kernel_initializer="zeros", dropout=0.1, use_cudnn=True, return_state=True, name="g"
    )
    assert (layer.units, layer.cell.dropout, layer.return_state, layer.name) == (4, 0.1, True, "g")
    assert isinstance(layer, keras.layers.GRU)


@pytest.mark.parametrize("name", ["gru"])
def test_layers_train_under_fit(name):
    """The same seed, data and optimiser leave the same weights in a stock and in a drop-in model."""
    found = []
    for library in (keras.layers, models):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((None, F)), LAYERS[name](library), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        before = model.get_weights()
        x, y = _random(8, T, F, dtype="float32"), _random(8, 1, dtype="float32")
        model.fit(x, y, epochs=2, batch_size=4, shuffle=False, verbose=0)
        found.append(model.get_weights())
        assert any(not np.array_equal(a, b) for a, b in zip(before, found[-1], strict=True))
    for ours, stock in zip(*found, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)
