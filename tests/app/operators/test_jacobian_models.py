"""Jacobians of all sorts of models against stock Keras row by row."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.gradcheck import TOLERANCES
from models.model import Model
from tests.app.operators.networks import Cell, in_a_row

# They trace many models, which takes minutes: `make test-slow`.
pytestmark = pytest.mark.slow

L = keras.layers
BATCH, TIME = 2, 5


def two_inputs_and_outputs():
    sequence, static = keras.Input((None, 3), name="sequence"), keras.Input((2,), name="static")
    start = L.Dense(4, name="start")(static)
    after, last = L.GRU(4, return_sequences=True, return_state=True, name="gru")(sequence, initial_state=start)
    return keras.Model([sequence, static], [L.Dense(2, name="steps")(after), L.Dense(1, name="end")(last)])


def shared():
    x = keras.Input((None, 3))
    layer = L.SimpleRNN(3, return_sequences=True, name="rnn")
    return keras.Model(x, layer(layer(x)))


def joined():
    x = keras.Input((None, 3))
    features = L.Concatenate()([L.GRU(2, return_sequences=True, name="gru")(x), x])
    return keras.Model(x, L.LSTM(2, return_sequences=True, name="lstm")(features))


@dataclass(frozen=True)
class Case:
    """A model, what stock Keras is asked for, and what only the model itself knows names for."""

    make: Callable
    stock: tuple = (("y", "x"),)
    own: tuple = ()
    zeros: bool = False


CASES = {
    "masked": Case(
        lambda: in_a_row(
            L.Masking(), L.GRU(3, return_sequences=True, name="gru"), L.LSTM(2, return_sequences=True, name="lstm")
        ),
        (("y[1:]", "x[:4]"), ("y[-1]", "param.gru.kernel[0]")),
        (("hidden.lstm.c", "state.gru.h"), ("state", "hidden.gru.h[1:3]")),
        zeros=True,
    ),
    "masked_zero_output": Case(
        lambda: in_a_row(L.Masking(), L.SimpleRNN(3, return_sequences=True, zero_output_for_mask=True, name="rnn")),
        (("y", "x"),),
        zeros=True,
    ),
    "bidirectional": Case(
        lambda: in_a_row(L.Bidirectional(L.LSTM(2, return_sequences=True, name="lstm"), name="bi"), L.Dense(2)),
        (("y[::2]", "x[1:]"), ("y[0]", "param.bi.backward.recurrent_kernel[:, 1]")),
        (("y[2]", "state"), ("state.bi.backward.c", "x[::-1, 0]")),
    ),
    "masked_bidirectional": Case(
        lambda: in_a_row(L.Masking(), L.Bidirectional(L.GRU(2, return_sequences=True, reset_after=False), name="bi")),
        (("y", "x[3]"),),
        zeros=True,
    ),
    "stacked": Case(
        lambda: in_a_row(L.RNN([L.GRUCell(2), L.LSTMCell(3)], return_sequences=True, name="rnn")),
        (("y[3:]", "x[2:]"),),
        (("state.rnn", "state"), ("hidden.rnn.2[1:]", "hidden.rnn.0[:3]")),
    ),
    "custom": Case(
        lambda: in_a_row(L.RNN(Cell(3), return_sequences=True, name="rnn")),
        (("y[1:4]", "x[::2, :2]"), ("y[-1]", "param.rnn.u")),
        (("state.rnn.0", "hidden.rnn.0"),),
    ),
    "backwards": Case(
        lambda: in_a_row(L.GRU(3, return_sequences=True, go_backwards=True, name="gru"), L.SimpleRNN(2, name="rnn")),
        (("y", "x"),),
        (("hidden.gru.h[1]", "x[:3]"), ("y", "state")),
    ),
    "two": Case(
        two_inputs_and_outputs,
        (
            ("steps[1:]", "sequence[::2]"),
            ("end", "sequence"),
            ("steps[-1, 0]", "static"),
            ("end", "param.start.kernel"),
        ),
        (("state.gru.h", "static[1]"),),
    ),
    "embedding": Case(
        lambda: in_a_row(
            L.Embedding(6, 3, mask_zero=True, name="words"),
            L.SimpleRNN(3, return_sequences=True),
            x=(None,),
            dtype="int32",
        ),
        (("y[1:]", "param.words.embeddings[1:4]"),),
        (("y[:4]", "hidden.words.output[1:]"),),
    ),
    "convolution": Case(
        lambda: in_a_row(L.Conv1D(3, 3, name="conv"), L.GRU(2, return_sequences=True, name="gru")),
        (("y[1:]", "x[::-1]"), ("y[-1]", "param.conv.kernel[0]")),
        (("hidden.gru.h[0]", "hidden.gru.h[0]"),),
    ),
    "causal_convolution": Case(
        lambda: in_a_row(L.Conv1D(3, 2, padding="causal"), L.LSTM(2, name="lstm")), (("y", "x[-3:]"),)
    ),
    "last": Case(
        lambda: in_a_row(L.LSTM(3, name="lstm"), L.Dense(2)),
        (("y[::-1]", "x[1:, 1:]"), ("y[0]", "param.lstm.bias")),
        (("y", "state.lstm"), ("state", "state"), ("hidden.lstm.h[-2]", "state.lstm.c")),
    ),
    "dense": Case(
        lambda: in_a_row(L.Dense(4, activation="tanh", name="one"), L.Dense(2), x=(3,)),
        (("y", "x"), ("y[1]", "param.one.bias")),
    ),
    "dense_over_time": Case(lambda: in_a_row(L.Dense(4, activation="tanh"), L.Dense(2)), (("y[1:4]", "x[2:]"),)),
    "normalised": Case(
        lambda: in_a_row(
            L.BatchNormalization(name="batch"),
            L.GRU(3, return_sequences=True, name="gru"),
            L.LayerNormalization(name="layer"),
        ),
        (("y[2:]", "x[:3]"), ("y[1]", "param.layer.gamma"), ("y[1]", "param.batch.gamma")),
    ),
    "shared": Case(shared, (("y[2:]", "x[1:]"), ("y[-1]", "param.rnn.recurrent_kernel[0]"))),
    "joined": Case(joined, (("y[2:4]", "x[1:]"),), (("hidden.lstm.c[3]", "state.gru.h"), ("state", "x[3:, 2]"))),
}


class Served:
    """A model in float64, its stock double with the same weights, and a point."""

    def __init__(self, name, case, in_float64):
        self.stock, network = in_float64(case.make), in_float64(case.make)
        rng = np.random.default_rng(11)
        weights = [w + 0.3 * rng.normal(size=w.shape) for w in self.stock.get_weights()]
        weights = [
            np.abs(w) if v.name == "moving_variance" else w for w, v in zip(weights, self.stock.weights, strict=True)
        ]
        self.stock.set_weights(weights)
        network.set_weights(weights)
        self.model = Model(name, network)
        sizes = {"batch": BATCH, "time": TIME}
        self.inputs = {}
        for a in self.model.signature.inputs:
            shape = [sizes.get(x, n) if n is None else n for n, x in zip(a.shape, a.axes, strict=True)]
            self.inputs[a.name] = rng.normal(size=shape) if a.differentiable else rng.integers(0, 6, shape, "int32")
        if case.zeros:
            self.inputs["x"][0, 1:3] = self.inputs["x"][1, 0] = self.inputs["x"][1, -1] = 0
        self.variables = {}
        for name, variable in self.model._variables.items():
            places = [i for i, v in enumerate(network.weights) if v is variable]
            self.variables[name] = self.stock.weights[places[0]]

    def by_stock(self, of):
        names = [a.name for a in self.model.signature.outputs]

        def run(arrays):
            mapping = [(v, arrays[n]) for n, v in self.variables.items() if n in arrays]
            given = [arrays[n] for n in self.inputs]
            with keras.StatelessScope(state_mapping=mapping):
                found = self.stock(given if len(given) > 1 else given[0], training=False)
            return dict(zip(names, found if isinstance(found, list) else [found], strict=True))[of]

        return run

    def point(self, names):
        given = {n: tf.constant(a) for n, a in self.inputs.items()}
        return self.inputs | {n: self.model.default(n, given).numpy() for n in names if n not in self.inputs}

    def whole(self, by_rows, of, wrt, by_stock):
        """Compute the Jacobian of all the arrays that a name stands for, side by side."""
        signature = self.model.signature
        targets = [a.name for a in signature.group(of, False)] or [of]
        sources = [a.name for a in signature.group(wrt, True)] or [wrt]
        rows = []
        for target in targets:
            run = self.by_stock(target) if by_stock else lambda arrays, t=target: self.model.run(arrays, [t])[t]
            shared = wrt.startswith("param.")
            parts = [by_rows(run, self.point([source]), source, shared=shared) for source in sources]
            rows.append(np.concatenate(parts, -1) if len(parts) > 1 else parts[0])
        return np.concatenate(rows, 1) if len(rows) > 1 else rows[0]


@pytest.fixture(scope="module", params=CASES)
def served(request, in_float64):
    return Served(request.param, CASES[request.param], in_float64)


def index(text):
    """Read a slice with Python's own parser."""
    name, _, inside = text.partition("[")
    found = eval(f"np.s_[{inside}", {"np": np}) if inside else ()
    return name, found if isinstance(found, tuple) else (found,)


def check(served, solve, by_rows, take, number, budget):
    case = CASES[served.model.name]
    of_text, wrt_text = (*case.stock, *case.own)[number]
    (of, of_index), (wrt, wrt_index) = index(of_text), index(wrt_text)
    whole = served.whole(by_rows, of, wrt, by_stock=number < len(case.stock))
    rank = 1 if served.model.signature.group(of, False) else len(served.model.signature.target(of, "of").shape) - 1
    of_index += (slice(None),) * (rank - len(of_index))
    wrt_index += (slice(None),) * (whole.ndim - 1 - rank - len(wrt_index))
    wanted = take(whole, of_index, wrt_index)
    for mode in ("forward", "reverse"):
        found = solve(served.model, served.inputs, of_text, wrt_text, mode=mode, budget=budget).array
        assert found.shape == wanted.shape
        scale = max(np.abs(whole).max(), 1e-3)
        assert np.abs(found - wanted).max() < 10 * TOLERANCES["float64"].equality * scale, (of_text, wrt_text, mode)


def test_against_stock_row_by_row(served, solve, by_rows, take):
    check(served, solve, by_rows, take, 0, None)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_jacobian_has_the_dtype_of_what_is_differentiated(solve, mode):
    """As in a model of float16 layers with float32 inputs and weights; `solve` compares with what is announced."""
    head = L.Dense(2, dtype="float64", name="dense")
    model = Model("head", in_a_row(L.GRU(3, return_sequences=True, name="gru"), head))
    x = np.random.default_rng(0).normal(size=(1, 3, 3)).astype("float32")
    assert solve(model, {"x": x}, "y", "x[1:]", mode=mode).array.dtype == "float64"
    assert solve(model, {"x": x}, "y[-1]", "param.gru.bias[0]", mode=mode).array.dtype == "float64"
    assert solve(model, {"x": x}, "hidden.gru.h[-1]", "x[0]", mode=mode).array.dtype == "float32"


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 1000])
def test_every_kind_of_name_and_small_chunks(served, solve, by_rows, take, budget):
    case = CASES[served.model.name]
    for number in range(len(case.stock) + len(case.own)):
        check(served, solve, by_rows, take, number, budget)
