"""Jacobians of the built-in models: random slices, in both modes, against stock Keras row by row and differences."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import models.zoo
from models.gradcheck import TOLERANCES, central_difference, compare
from pushforward._registry import scan

pytestmark = pytest.mark.slow

BATCH, TIME = 2, 5
MODELS = ["bi-gru", "lstm-last", "seed-gru", "stacked-rnn"]
PAIRS = [("y", "x"), ("hidden", "x"), ("y", "state"), ("state", "hidden"), ("y", "param")]
L = keras.layers


class Stock:
    """A built-in model of stock layers, whose cells are stepped by hand so that states and perturbations have names."""

    def __init__(self, served, by_rows):
        self.dtype, self.signature, self._by_rows = served.dtype, served.signature, by_rows
        self.network = scan(models.zoo, "MODEL")[served.name].build()
        self.network.set_weights(served._network.get_weights())
        rng = np.random.default_rng(5)
        sizes = {"batch": BATCH, "time": TIME}
        moved = (*self.signature.inputs, *self.signature.states)
        shapes = {a.name: [sizes.get(x, n) for n, x in zip(a.shape, a.axes, strict=True)] for a in moved}
        self.inputs = {name: rng.normal(size=shape).astype(self.dtype) for name, shape in shapes.items()}
        self.variables = {}
        hidden = {f"hidden.{a.name.partition('.')[2]}": a.shape[-1] for a in self.signature.states}
        zeros = {name: np.zeros((BATCH, TIME, units), self.dtype) for name, units in hidden.items()}
        for layer in self.network.layers:
            for prefix, inner in self._parts(layer):
                self.variables |= {f"param.{prefix}.{v.name}": v for v in inner.variables if v.dtype == self.dtype}
        self.weights = {name: v.numpy() for name, v in self.variables.items()}
        self.point = self.inputs | zeros | self.weights

    def _parts(self, layer):
        if isinstance(layer, L.Bidirectional):
            return [(f"{layer.name}.forward", layer.forward_layer), (f"{layer.name}.backward", layer.backward_layer)]
        return [(layer.name, layer)]

    def run(self, arrays):
        found, y = {}, arrays["x"]
        with keras.StatelessScope(state_mapping=[(v, arrays[n]) for n, v in self.variables.items()]):
            for layer in self.network.layers:
                parts = self._parts(layer)
                if isinstance(parts[0][1], L.RNN):
                    y = tf.concat([self._recur(name, part, y, arrays, found) for name, part in parts], -1)
                else:
                    y = layer(y)
        return found | {"y": y}

    def _recur(self, name, layer, x, arrays, found):
        slots = ("h", "c") if isinstance(layer.cell, L.LSTMCell) else ("h",)
        states, after = [arrays[f"state.{name}.{slot}"] for slot in slots], {}
        for t in reversed(range(TIME)) if layer.go_backwards else range(TIME):
            _, states = layer.cell(x[:, t], states)
            states = [s + arrays[f"hidden.{name}.{slot}"][:, t] for s, slot in zip(states, slots, strict=True)]
            after[t] = states
        for i, slot in enumerate(slots):
            found[f"state.{name}.{slot}"] = states[i]
            found[f"hidden.{name}.{slot}"] = tf.stack([after[t][i] for t in range(TIME)], 1)
        return found[f"hidden.{name}.h"] if layer.return_sequences else states[0]

    @functools.cache  # noqa: B019 (lives as long as the module)
    def whole(self, of, wrt):
        run, common = (lambda arrays: self.run(arrays)[of]), tuple(self.weights)
        return self._by_rows(run, self.point, wrt, shared=wrt in self.weights, common=common)


@pytest.fixture(scope="module")
def stocks(engine, by_rows):
    return {name: Stock(engine.models[name], by_rows) for name in MODELS}


@pytest.fixture
def served(engine, model):
    return engine.models[model]


@pytest.fixture
def stock(stocks, model):
    return stocks[model]


def error(found, wanted):
    return compare({"j": found}, {"j": wanted}, floor=1e-3)


def names(signature):
    """Name one array of each kind, of the last layer where that is differentiated and of the first where it moves."""
    of = {"y": "y", "state": signature.states[-1].name, "hidden": signature.hidden[-1].name}
    wrt = {"x": "x", "state": signature.states[0].name, "hidden": signature.hidden[0].name}
    wrt["param"] = signature.parameters[1].name
    return of, wrt


@pytest.mark.parametrize("model", MODELS)
def test_the_oracle_is_the_stock_model(stock, served):
    default = {n: np.zeros_like(a) if n.startswith("state.") else a for n, a in stock.point.items()}
    by_hand = stock.run({n: tf.constant(a) for n, a in default.items()})
    y = stock.network(stock.inputs["x"])
    tolerance = TOLERANCES[stock.dtype].equality
    assert compare({"y": by_hand["y"].numpy()}, {"y": y.numpy()}, floor=1e-3) < tolerance
    given = {n: tf.constant(a) for n, a in stock.inputs.items()}
    wanted = {n: t.numpy() for n, t in stock.run({n: tf.constant(a) for n, a in stock.point.items()}).items()}
    found = {n: t.numpy() for n, t in served.run(given, list(wanted)).items()}
    assert compare(found, wanted, floor=1e-3) < tolerance


@pytest.mark.parametrize("model", MODELS)
def test_the_oracle_agrees_with_central_differences(stock):
    run = tf.function(lambda arrays: stock.run(arrays), autograph=False)
    rng = np.random.default_rng(3)

    def evaluate(arrays):
        return {n: t.numpy() for n, t in run({n: tf.constant(a) for n, a in arrays.items()}).items()}

    of, wrt = names(stock.signature)
    for source in dict.fromkeys(wrt[kind] for _, kind in PAIRS):
        tangent = rng.normal(size=stock.point[source].shape).astype(stock.dtype)
        differences = central_difference(evaluate, stock.point, {source: tangent})
        for target in (of[kind] for kind, moved in PAIRS if wrt[moved] == source):
            whole = stock.whole(target, source)
            axes = whole.ndim - (tangent.ndim if source in stock.weights else tangent.ndim - 1)
            flat = whole.reshape(BATCH, int(np.prod(whole.shape[1:axes])), -1)
            along = tangent.reshape(1, -1) if source in stock.weights else tangent.reshape(BATCH, -1)
            pushed = np.einsum("bij,bj->bi", flat, np.broadcast_to(along, (BATCH, along.shape[1])))
            gap = error(pushed.reshape(differences[target].shape), differences[target])
            assert gap < TOLERANCES[stock.dtype].difference, (target, source)


@pytest.mark.parametrize("model", MODELS)
def test_of_the_outputs_by_the_inputs_with_the_stock_layers_own_loop(solve, stock, served):
    x = tf.constant(stock.inputs["x"])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = stock.network(x)
        rows = tf.unstack(tf.reshape(y, [BATCH, -1]), axis=1)
    wanted = np.stack([tape.gradient(row, x).numpy() for row in rows], 1)
    found = solve(served, {"x": stock.inputs["x"]}, "y", "x")
    assert found.job.extra["axes"] == [
        "batch",
        *(f"y.{axis}" for axis in served.signature.outputs[0].axes[1:]),
        "x.time",
        "x.feature",
    ]
    assert error(found.array, wanted.reshape(found.array.shape)) < TOLERANCES[stock.dtype].equality * 10


def check(prepare, solve, random_slice, take, stock, served, pair, seed, budgets):
    of, wrt = (group[kind] for group, kind in zip(names(served.signature), pair, strict=True))
    whole = stock.whole(of, wrt)
    split = 1 + len(served.signature.target(of, "of").shape) - 1
    rng = np.random.default_rng(seed)
    (of_text, of_index), (wrt_text, wrt_index) = (
        random_slice(rng, s) for s in (whole.shape[1:split], whole.shape[split:])
    )
    wanted = take(whole, of_index, wrt_index)
    tolerance = 10 * TOLERANCES[stock.dtype].equality
    for mode in ("forward", "reverse"):
        for budget in budgets:
            options = {"mode": mode, "budget": budget}
            if prepare(served, stock.inputs, of + of_text, wrt + wrt_text, **options).info["chunks"] > 300:
                continue  # minutes, for a large slice in chunks as small as these
            found = solve(served, stock.inputs, of + of_text, wrt + wrt_text, **options)
            assert found.array.shape == wanted.shape
            assert found.job.info["shape"] == list(wanted.shape)
            assert found.job.info["bytes"] == wanted.nbytes
            assert found.job.info["mode"] == mode
            gap = np.abs(found.array - wanted).max() / max(np.abs(whole).max(), 1e-3)
            assert gap < tolerance, (of + of_text, wrt + wrt_text, mode, budget)


FEWER = {"bi-gru": (0, 3, 4), "seed-gru": (1, 2, 4)}  # the slowest to trace


@pytest.mark.parametrize(
    ("model", "pair"),
    [(m, PAIRS[i]) for m in MODELS for i in FEWER.get(m, range(5))],
    ids=lambda v: v if v in MODELS else "/".join(v),
)
def test_random_slices(prepare, solve, random_slice, take, stock, served, pair):
    check(
        prepare,
        solve,
        random_slice,
        take,
        stock,
        served,
        pair,
        10 * PAIRS.index(pair) + MODELS.index(served.name),
        [None],
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 102))
@pytest.mark.parametrize(
    "pair", [(of, wrt) for of in ("y", "state", "hidden") for wrt in ("x", "state", "hidden", "param")], ids="/".join
)
@pytest.mark.parametrize("model", MODELS)
def test_many_random_slices_in_chunks_of_many_sizes(prepare, solve, random_slice, take, stock, served, pair, seed):
    check(prepare, solve, random_slice, take, stock, served, pair, seed, [None, 20_000, 3_000])
