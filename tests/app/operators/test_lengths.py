"""Rows of different lengths: against stock Keras with that mask, eager, and against each row sent alone."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

import app.operators
from app.calls import Call
from app.operators._operator import Work
from app.programs import Programs
from models.gradcheck import TOLERANCES
from models.model import Model
from pushforward._registry import scan

L = keras.layers
OPERATORS = scan(app.operators, "OPERATOR")
TIME, FEATURES = 6, 3
LENGTHS = np.array([4, 6, 0, 2])


@keras.saving.register_keras_serializable("tests")
class Leaky(L.Layer):
    """A cell without a rule of its own, whose output is not its state."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.built = True

    def call(self, inputs, states):
        state = 0.7 * states[0] + tf.tanh(inputs @ self.kernel)
        return state * state, [state]


def sequential(*layers, features=FEATURES):
    return lambda: keras.Sequential([keras.Input((None, features)), *(make() for make in layers)])


def residual():
    x = keras.Input((None, FEATURES))
    h = L.GRU(FEATURES, return_sequences=True)(L.Dense(FEATURES, "tanh")(x))
    return keras.Model(x, L.Dense(2)(L.Add()([h, x])))


def nested():
    inner = keras.Sequential([keras.Input((None, FEATURES)), L.LSTM(3, return_sequences=True)])
    x = keras.Input((None, FEATURES))
    return keras.Model(x, L.Bidirectional(L.SimpleRNN(2))(inner(x)))


def two_inputs():
    a, b = keras.Input((None, FEATURES), name="a"), keras.Input((None, FEATURES), name="b")
    _, state = L.GRU(3, return_state=True, name="encoder")(a)
    return keras.Model([a, b], L.GRU(3, return_sequences=True, name="decoder")(b, initial_state=state))


NETWORKS = {
    "gru": sequential(lambda: L.GRU(4, return_sequences=True), lambda: L.Dense(2)),
    "gru-before": sequential(lambda: L.GRU(4, reset_after=False, return_sequences=True)),
    "lstm-last": sequential(lambda: L.LSTM(4), lambda: L.Dense(2)),
    "rnn-stack": sequential(
        lambda: L.SimpleRNN(4, return_sequences=True), L.LayerNormalization, lambda: L.SimpleRNN(3)
    ),
    "backward-last": sequential(lambda: L.GRU(4, go_backwards=True)),
    "bidirectional": sequential(
        lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)),
        lambda: L.Bidirectional(L.GRU(2, return_sequences=True), merge_mode="mul"),
        lambda: L.Dense(2),
    ),
    "bidirectional-last": sequential(lambda: L.Bidirectional(L.GRU(3))),
    "stacked-cells": sequential(lambda: L.RNN([L.GRUCell(3), L.LSTMCell(2)], return_sequences=True)),
    "custom-cell": sequential(lambda: L.RNN(Leaky(3), return_sequences=True)),
    "custom-cell-last": sequential(lambda: L.RNN(Leaky(3))),
    "zeros-out": sequential(lambda: L.LSTM(3, return_sequences=True, zero_output_for_mask=True)),
    "mean": sequential(lambda: L.GRU(3, return_sequences=True), L.GlobalAveragePooling1D, lambda: L.Dense(2)),
    "residual": residual,
    "nested": nested,
    "two-inputs": two_inputs,
}
# What stock Keras does not give with a mask on the input: a layer forgets it, as one does that is called with initial
# states, or makes NaN of a row without steps.
OWN = {
    "convolution": sequential(
        lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="tanh"), lambda: L.GRU(3)
    ),
    "masking": sequential(lambda: L.Masking(-1.0), lambda: L.Bidirectional(L.GRU(3, return_sequences=True))),
    "per-step": sequential(L.LayerNormalization, lambda: L.TimeDistributed(L.Dense(2, "tanh"))),
}


def mostly_slow(names, *quick):
    """Let all but a few be slow tests: what takes seconds is tracing the programs."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


FORGETFUL = [*OWN, "mean", "nested", "two-inputs"]


@dataclass(frozen=True)
class Case:
    """A model, and the same network as stock Keras."""

    name: str
    model: Model
    stock: keras.Model

    @property
    def inputs(self):
        return {a.name: draw(self.name + a.name, (len(LENGTHS), TIME, FEATURES)) for a in self.model.signature.inputs}

    @property
    def sources(self):
        signature = self.model.signature
        states = [a.name for a in signature.states if a.name not in signature.wired]
        return [*(a.name for a in signature.inputs), *states, *(a.name for a in signature.hidden)]

    @property
    def targets(self):
        s = self.model.signature
        return [a.name for a in (*s.outputs, *s.states, *s.hidden)]

    def array(self, name, seed, front=()):
        """Draw an array of a name's sizes."""
        spec = next(a for a in self.model.signature.arrays if a.name == name)
        sizes = {"batch": len(LENGTHS), "time": TIME}
        shape = [sizes[axis] if n is None else n for n, axis in zip(spec.shape, spec.axes, strict=True)]
        return draw(f"{self.name}{name}{seed}", (*front, *shape))

    def timed(self, name):
        return "time" in next(a.axes for a in self.model.signature.arrays if a.name == name)


def draw(seed, shape):
    return np.random.default_rng(list(map(ord, seed))).normal(size=shape)


def steps(array, axis=1):
    """Tell which steps of an array, whose rows stand before its time, belong to their rows."""
    shown = np.arange(TIME) < LENGTHS[:, np.newaxis]
    return shown.reshape((1,) * (axis - 1) + shown.shape + (1,) * (array.ndim - axis - 1))


def padded(array, value, axis=1):
    return np.where(steps(array, axis), array, value)


@pytest.fixture(scope="module")
def cases(in_float64):
    made = {}

    def case(name):
        if name not in made:
            make = (NETWORKS | OWN)[name]
            stock = in_float64(make)
            network = in_float64(make)
            network.set_weights(stock.get_weights())
            made[name] = Case(name, Model(name, network), stock)
        return made[name]

    return case


@pytest.fixture(scope="module")
def ask(programs):
    """Ask an operator: `ask(model, "jvp", {"inputs": ..., "tangents": ...}, lengths, **options)`."""

    def ask(model, operator, arrays, lengths=None, **options):
        job = OPERATORS[operator].prepare(model, Call(model.name, operator, arrays, options, lengths=lengths))
        items, steps, found = [], job.steps(), None
        while True:
            try:
                item = steps.send(found)
            except StopIteration:
                break
            found = programs.run(model, operator, item)[0] if isinstance(item, Work) else None
            items += [] if isinstance(item, Work) else [item]
        arrays = job.joined(items)
        if job.check is None:
            return arrays
        check, found = job.check(arrays), None
        while True:
            try:
                work = check.send(found)
            except StopIteration as end:
                return arrays, end.value
            found = programs.run(model, operator, work)[0]

    return ask


def alone(ask, case, operator, arrays, front=(), **options):
    """Ask for each row by itself, cut to its length; yield the row, its length and what came."""
    for row, length in enumerate(LENGTHS):
        if length == 0:
            continue
        cut = {}
        for field, group in arrays.items():
            stacked = len(front) if field != "inputs" else 0
            at = (slice(None),) * stacked
            cut[field] = {
                n: a[(*at, slice(row, row + 1), *((slice(length),) if case.timed(n) else ()))] for n, a in group.items()
            }
        yield row, length, ask(case.model, operator, cut, **options)


def close(got, expected, what=""):
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * scale, err_msg=str(what))


def stock_outputs(case, x):
    """Call stock Keras with that mask."""
    mask = tf.constant(np.arange(TIME) < LENGTHS[:, np.newaxis])
    given = [tf.convert_to_tensor(a) for a in x] if len(x) > 1 else tf.convert_to_tensor(x[0])
    return case.stock(given, mask=[mask] * len(x) if len(x) > 1 else mask)


# Keras says so of any model that is called with a mask; it is right of what comes after the model, which nothing does.
@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask attached to it")
@pytest.mark.parametrize("name", mostly_slow([n for n in NETWORKS if n not in FORGETFUL], "gru-before"))
def test_stock_keras_with_a_mask_gives_the_same_at_every_step(cases, ask, name):
    case = cases(name)
    x, v = ({n: draw(f"{name}{n}{k}", a.shape) for n, a in case.inputs.items()} for k in "xv")
    clean, names = {n: padded(a, 0.0) for n, a in x.items()}, list(x)
    with tf.GradientTape() as tape:
        primals = [tf.constant(clean[n]) for n in names]
        tape.watch(primals)
        y = stock_outputs(case, primals)
    u = draw(name + "u", y.shape)
    pulled = tape.gradient(y, [*primals, *case.stock.trainable_variables], tf.constant(u))
    # Padding has no direction: what stands there is no number of anybody's.
    tangents = [tf.constant(padded(v[n], 0.0)) for n in names]
    with tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
        pushed = stock_outputs(case, primals)
    dirty = {n: padded(a, np.nan) for n, a in x.items()}
    found = ask(case.model, "jvp", {"inputs": dirty, "tangents": {n: padded(a, np.inf) for n, a in v.items()}}, LENGTHS)
    close(found["outputs.y"], y)
    close(found["tangents.y"], accumulator.jvp(pushed))
    parameters = [p.name for p in case.model.signature.parameters]
    wrt = [*names, *parameters]
    found = ask(case.model, "vjp", {"inputs": dirty, "cotangents": {"y": u}}, LENGTHS, wrt=wrt)
    by_shape = dict(zip(parameters, found_variables(case), strict=True))
    for n, g in zip(names, pulled[: len(names)], strict=True):
        close(found[f"cotangents.{n}"], padded(np.asarray(g), 0.0), n)
    gradients = dict(zip([v.path for v in case.stock.trainable_variables], pulled[len(names) :], strict=True))
    for n, path in by_shape.items():
        close(found[f"cotangents.{n}"], gradients[path], n)


def found_variables(case):
    """Return the paths of the stock network's variables in the order of the model's parameters."""
    own = {id(v): i for i, v in enumerate(case.model._network.trainable_variables)}
    places = [own[id(case.model._variables[p.name])] for p in case.model.signature.parameters]
    return [case.stock.trainable_variables[i].path for i in places]


@pytest.mark.parametrize("name", mostly_slow([*NETWORKS, *OWN], "bidirectional-last", "per-step"))
@pytest.mark.parametrize("front", [(), pytest.param((2,), marks=pytest.mark.slow)], ids=["one", "stacked"])
def test_each_row_is_as_if_it_were_alone(cases, ask, name, front):
    case = cases(name)
    inputs = case.inputs | {n: case.array(n, "point") for n in case.sources if n.startswith("state.")}
    dirty = {n: padded(a, np.nan) if case.timed(n) else a for n, a in inputs.items()}
    tangents = {n: case.array(n, "v", front) for n in case.sources}
    cotangents = {n: case.array(n, "u", front) for n in case.targets}
    axis = 1 + len(front)
    for n in cotangents:  # a row that is alone has no step there
        cotangents[n] = padded(cotangents[n], 0.0, axis) if case.timed(n) else cotangents[n]
    pushing, pulling = {"inputs": inputs, "tangents": tangents}, {"inputs": inputs, "cotangents": cotangents}
    noise = {n: padded(a, np.nan, axis) if case.timed(n) else a for n, a in tangents.items()}
    pushed = ask(case.model, "jvp", {"inputs": dirty, "tangents": noise}, LENGTHS, outputs=case.targets)
    pulled = ask(case.model, "vjp", {**pulling, "inputs": dirty}, LENGTHS, wrt=case.sources)
    for operator, whole, arrays, options in (
        ("jvp", pushed, pushing, {"outputs": case.targets}),
        ("vjp", pulled, pulling, {"wrt": case.sources}),
    ):
        assert all(np.isfinite(a).all() for a in whole.values())
        for row, length, found in alone(ask, case, operator, arrays, front, **options):
            for path, expected in found.items():
                n = path.partition(".")[2]
                at = (slice(None),) * (0 if path.startswith("outputs") else len(front))
                own = (*at, slice(row, row + 1), *((slice(length),) if case.timed(n) else ()))
                close(whole[path][own], expected, (operator, path, row))
    for n in case.sources:
        if case.timed(n):
            assert not np.where(steps(pulled[f"cotangents.{n}"], axis), 0, pulled[f"cotangents.{n}"]).any(), n


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["unrolled", "reverse"])
@pytest.mark.parametrize("name", ["gru", "lstm-last", "bidirectional", "stacked-cells", "custom-cell", "residual"])
def test_every_strategy_gives_the_same(cases, ask, name, strategy):
    case = cases(name)
    dirty = {n: padded(a, np.nan) for n, a in case.inputs.items()}
    for operator, field, names in (("jvp", "tangents", case.sources), ("vjp", "cotangents", case.targets)):
        for front in ((), (2,)):
            directions = {n: case.array(n, "d", front) for n in names}
            options = {"outputs": case.targets} if operator == "jvp" else {"wrt": case.sources}
            arrays = {"inputs": dirty, field: directions}
            expected = ask(case.model, operator, arrays, LENGTHS, **options)
            found = ask(case.model, operator, arrays, LENGTHS, strategy=strategy, **options)
            for path, array in expected.items():
                close(found[path], array, path)


@pytest.mark.slow
def test_parameters_of_all_rows_are_those_of_each_alone(cases, ask):
    case = cases("bidirectional")
    wrt = [p.name for p in case.model.signature.parameters]
    u = padded(case.array("y", "u"), 0.0)
    arrays = {"inputs": {"x": padded(case.inputs["x"], np.nan)}, "cotangents": {"y": u}}
    whole = ask(case.model, "vjp", arrays, LENGTHS, wrt=wrt)
    rows = [found for *_, found in alone(ask, case, "vjp", arrays, wrt=wrt)]
    for n in wrt:
        close(whole[f"cotangents.{n}"], sum(found[f"cotangents.{n}"] for found in rows), n)


def test_a_cotangent_at_a_padded_step_counts_for_the_output_that_is_repeated_there(cases, ask):
    case = cases("gru-before")
    u = case.array("y", "u")
    own = padded(u, 0.0)
    for row, length in enumerate(LENGTHS):
        if length:
            own[row, length - 1] += u[row, length:].sum(0)
    one, other = (ask(case.model, "vjp", {"inputs": case.inputs, "cotangents": {"y": g}}, LENGTHS) for g in (u, own))
    close(one["cotangents.x"], other["cotangents.x"])
    y = one["outputs.y"]
    for row, length in enumerate(LENGTHS):
        repeated = y[row, length - 1] if length else np.zeros_like(y[row, 0])
        np.testing.assert_array_equal(y[row, length:], np.broadcast_to(repeated, y[row, length:].shape))


def test_final_states_are_those_after_the_own_steps(cases, ask):
    case = cases("lstm-last")
    states, after = [a.name for a in case.model.signature.states], case.model.signature.after_steps
    inputs = case.inputs | {n: case.array(n, "s") for n in states}
    found = ask(case.model, "evaluate", {"inputs": inputs}, LENGTHS, outputs=[*states, *after.values()])
    for n in states:
        final, hidden = found[f"outputs.{n}"], found[f"outputs.{after[n]}"]
        for row, length in enumerate(LENGTHS):
            last = hidden[row, length - 1] if length else inputs[n][row]
            np.testing.assert_array_equal(final[row], last)
            np.testing.assert_array_equal(hidden[row, length:], np.broadcast_to(last, hidden[row, length:].shape))


@pytest.mark.parametrize("name", mostly_slow(["gru", "lstm-last", "bidirectional", "custom-cell", "mean"], "lstm-last"))
def test_masks_of_a_row_with_one_padded_step_and_of_one_without_any(cases, ask, name):
    case = cases(name)
    x = case.inputs["x"][:2, :3]
    arrays = {"inputs": {"x": np.array([[[np.nan] * FEATURES] * 3] * 2)}, "tangents": {"x": np.ones_like(x)}}
    arrays["inputs"]["x"][0, :2] = x[0, :2]
    found = ask(case.model, "jvp", arrays, np.array([2, 0]))
    short = {field: {"x": group["x"][:1, :2]} for field, group in arrays.items()}
    expected = ask(case.model, "jvp", short)
    for path, array in expected.items():
        own = found[path][:1, :2] if case.timed("y") else found[path][:1]
        close(own, array, path)
    assert np.isfinite(found["outputs.y"]).all()
    assert not found["tangents.y"][1].any()


@pytest.mark.parametrize(
    "name", mostly_slow(["gru", "lstm-last", "bidirectional", "convolution", "custom-cell"], "gru")
)
@pytest.mark.parametrize("mode", ["reverse", pytest.param("forward", marks=pytest.mark.slow)])
def test_jacobians_are_those_of_each_row_alone(cases, ask, name, mode, monkeypatch):
    case = cases(name)
    # So that it takes several chunks.
    monkeypatch.setattr("app.operators.jacobian.CHUNK_BYTES", 2_000)
    of = "y[1:]" if case.timed("y") else "y"
    dirty = {"x": padded(case.inputs["x"], np.nan)}
    whole = ask(case.model, "jacobian", {"inputs": dirty}, LENGTHS, of=of, wrt="x", mode=mode)["jacobian"]
    assert np.isfinite(whole).all()
    for row, length in enumerate(LENGTHS):
        assert not whole[row, ..., length:, :].any()
    for row, length, found in alone(ask, case, "jacobian", {"inputs": case.inputs}, of=of, wrt="x"):
        own = whole[row : row + 1, : length - 1] if case.timed("y") else whole[row : row + 1]
        close(own[..., :length, :], found["jacobian"], row)
        if case.timed("y"):  # as the output itself, its derivative is repeated
            repeated = np.broadcast_to(whole[row, length - 2], whole[row, length - 2 :].shape)
            if name == "gru":
                close(whole[row, length - 2 :], repeated, row)


@pytest.mark.slow
@pytest.mark.parametrize(("of", "wrt"), [("y[-1]", "state"), ("state", "x"), ("y[2:5]", "param.gru.bias"), ("y", "x")])
def test_jacobians_of_a_long_series(in_float64, ask, of, wrt, monkeypatch):
    """As large as one that would be a chain if rows were of one length."""
    network = in_float64(sequential(lambda: L.GRU(12, return_sequences=True, name="gru")))
    model, time = Model("long", network), 40
    lengths, x = np.array([40, 17]), draw("long", (2, time, FEATURES))
    monkeypatch.setattr("app.operators._links._WORTH_CHAINING", 0.0)
    found = ask(model, "jacobian", {"inputs": {"x": x}}, lengths, of=of, wrt=wrt)["jacobian"]
    for row, length in enumerate(lengths):
        cut = {"x": x[row : row + 1, :length]}
        alone = ask(model, "jacobian", {"inputs": cut}, of=of, wrt=wrt)["jacobian"][0]
        own = found[row, :length] if of == "y" else found[row]
        close(own[..., :length, :] if wrt == "x" else own, alone, row)


@pytest.mark.parametrize("parts", [["A", "B", "C", "D"], pytest.param(["C"], marks=pytest.mark.slow)])
@pytest.mark.parametrize("budget", [pytest.param(2**28, marks=pytest.mark.slow), 3_000])
def test_transitions_stay_at_padded_steps(cases, ask, parts, budget, monkeypatch):
    monkeypatch.setattr("app.operators.transitions.CHUNK_BYTES", budget)
    case = cases("gru")
    dirty = {"inputs": {"x": padded(case.inputs["x"], np.nan)}}
    found, check = ask(case.model, "transitions", dirty, LENGTHS, parts=parts, check=True)
    assert check["passed"]
    for row, length, expected in alone(ask, case, "transitions", {"inputs": case.inputs}, parts=parts):
        for part in parts:
            close(found[part][row, :length], expected[part][0], part)
    for part in parts:
        still = np.eye(4) if part == "A" else 0
        for row, length in enumerate(LENGTHS):
            np.testing.assert_array_equal(
                found[part][row, length:], np.broadcast_to(still, found[part][row, length:].shape)
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lstm-last", "bidirectional", "masking", "mean"])
def test_answers_check_themselves(cases, ask, name):
    case = cases(name)
    inputs = {n: padded(a, np.nan) for n, a in case.inputs.items()}
    tolerances = TOLERANCES["float64"]
    directions = {"x": padded(case.array("x", "v"), np.nan)}
    for operator, arrays, options in (
        ("jvp", {"inputs": inputs, "tangents": directions}, {}),
        ("vjp", {"inputs": inputs, "cotangents": {"y": case.array("y", "u")}}, {}),
        ("jacobian", {"inputs": inputs}, {"of": "y", "wrt": "x"}),
    ):
        _, check = ask(case.model, operator, arrays, LENGTHS, check=True, **options)
        assert check["passed"], (operator, check)
        assert check["adjoint"] < tolerances.adjoint
        assert check["difference"] < tolerances.difference


@pytest.mark.slow
def test_tokens_in_the_padding_may_be_anything(in_float64, ask):
    def make(mask_zero):
        return lambda: keras.Sequential(
            [keras.Input((None,), dtype="int32"), L.Embedding(5, 3, mask_zero=mask_zero, name="embedding"), L.GRU(3)]
        )

    tokens = np.array([[1, 0, 3, 4], [2, 2, 9, -1], [7, 7, 7, 7]], np.int32)
    lengths = np.array([4, 2, 0])
    for mask_zero in (False, True):
        model = Model("tokens", in_float64(make(mask_zero)))
        tangent = draw("tokens", (3, 4, 3))
        arrays = {"inputs": {"x": tokens}, "tangents": {"hidden.embedding.output": tangent}}
        found = ask(model, "jvp", arrays, lengths)
        for row, length in enumerate(lengths[:2]):
            cut = {field: {n: a[row : row + 1, :length] for n, a in group.items()} for field, group in arrays.items()}
            for path, expected in ask(model, "jvp", cut).items():
                close(found[path][row : row + 1], expected, path)


@pytest.mark.parametrize("name", mostly_slow(["per-step", "residual", "convolution"], "per-step"))
def test_nothing_depends_on_what_stands_in_the_padding(cases, ask, name):
    """Also where padded steps have outputs of their own, and cotangents of these are given."""
    case = cases(name)
    u = case.array("y", "u")
    found = ask(case.model, "vjp", {"inputs": case.inputs, "cotangents": {"y": u}}, LENGTHS)
    other = {"x": padded(case.inputs["x"], 7.0)}
    again = ask(case.model, "vjp", {"inputs": other, "cotangents": {"y": u}}, LENGTHS)
    for path, array in found.items():
        np.testing.assert_array_equal(again[path], array)
    pulled = found["cotangents.x"]
    assert not np.where(steps(pulled), 0, pulled).any()
    assert np.where(steps(pulled), pulled, 1).all()
    v = {"x": padded(np.zeros_like(pulled), 1.0)}
    assert not ask(case.model, "jvp", {"inputs": case.inputs, "tangents": v}, LENGTHS)["tangents.y"].any()


def test_nothing_moves_with_what_a_padded_token_becomes(in_float64, ask):
    layers = [keras.Input((None,), dtype="int32"), L.Embedding(5, 3, name="embedding"), L.Dense(2)]
    model = Model("tokens", in_float64(lambda: keras.Sequential(layers)))
    inputs, lengths, name = {"x": np.ones((2, 4), np.int32)}, np.array([1, 3]), "hidden.embedding.output"
    pushed = ask(model, "jvp", {"inputs": inputs, "tangents": {name: np.ones((2, 4, 3))}}, lengths)
    cotangents = {"y": np.ones((2, 4, 2))}
    pulled = ask(model, "vjp", {"inputs": inputs, "cotangents": cotangents}, lengths, wrt=[name])
    for found in (pushed["tangents.y"], pulled[f"cotangents.{name}"]):
        for row, length in enumerate(lengths):
            assert found[row, :length].all()
            assert not found[row, length:].any()


def test_lengths_of_the_whole_time_axis_change_nothing(cases, ask):
    case = cases("gru")
    arrays = {"inputs": case.inputs}
    full = np.full(len(LENGTHS), TIME)
    for path, expected in ask(case.model, "evaluate", arrays).items():
        np.testing.assert_array_equal(ask(case.model, "evaluate", arrays, full)[path], expected)


@pytest.mark.slow
def test_one_compiled_program_serves_all_lengths(cases, programs):
    case = cases("bidirectional")
    compiled = Programs(patience=10**9)
    works = []
    for lengths in (LENGTHS, np.array([1, 2, 3, 6])):
        arrays = {"inputs": case.inputs, "tangents": case.inputs}
        call = Call("bidirectional", "jvp", arrays, lengths=lengths)
        works.append(OPERATORS["jvp"].prepare(case.model, call).work)
    compiled.warm(case.model, "jvp", works[0], [(4, TIME)])
    for work in works:
        found, was_compiled = compiled.run(case.model, "jvp", work)
        assert was_compiled
        for path, expected in programs.run(case.model, "jvp", work)[0].items():
            close(found[path], expected, path)
