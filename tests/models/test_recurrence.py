"""Hand-written cells over time against the stock Keras cell, stepped by hand: masks, nudges, directions, all modes."""

from functools import cache, partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import RNN, cells, scan
from models._tf import stacked_accumulator
from models.gradcheck import TOLERANCES, adjoint_error, central_difference, compare
from models.recurrence import recur

T, B, F, H = 4, 2, 2, 3
TIGHT = TOLERANCES["float64"].equality
Forward = tf.autodiff.ForwardAccumulator
L = keras.layers
CELLS = {
    "gru": (L.GRUCell, {}),
    "gru_before": (L.GRUCell, {"reset_after": False}),
    "lstm": (L.LSTMCell, {}),
    "simple_rnn": (L.SimpleRNNCell, {"activation": lambda a: tf.sin(a) + 0.1 * a}),
}
FORMS = {  # masked, nudged, reverse
    "plain": (False, False, False),
    "masked": (True, True, False),
    "backwards": (True, True, True),
}


class Case:
    """A cell, a point (weights, initial state, inputs, nudges) and two ways to run it."""

    def __init__(self, kind, form, rows=B):
        make, options = CELLS[kind]
        self.masked, self.nudged, self.reverse = FORMS[form]
        rng = np.random.default_rng(2)
        self.cell = make(H, dtype="float64", **options)
        self.cell.build((None, F))
        self.variables = [v for v in self.cell.variables if v.dtype == "float64"]
        self.rule = cells.find(self.cell)
        self.slots = len(self.rule.slots)
        shapes = [v.shape for v in self.variables] + [(rows, H)] * self.slots + [(T, rows, F)]
        shapes += [(T, rows, H)] * self.slots if self.nudged else []
        self.point, self.tangent, self.other = ([tf.constant(rng.normal(size=s)) for s in shapes] for _ in range(3))
        # Zeros as nudges would hide a mistake in their place, so they are not.
        self.cotangent = tf.constant(rng.normal(size=(T, rows, H * self.slots)))
        self.x_at = len(self.variables) + self.slots
        # The first row starts with a masked step, the second has one in the middle.
        self.mask = tf.constant([[[False], [True]], [[True], [True]], [[True], [False]], [[True], [True]]])

    def parts(self, flat):
        n = len(self.variables)
        return flat[:n], flat[n : self.x_at], flat[self.x_at], flat[self.x_at + 1 :]

    def options(self, nudges):
        return {
            "mask": self.mask if self.masked else None,
            "nudges": nudges if self.nudged else None,
            "reverse": self.reverse,
        }

    def by_rule(self, flat, **more):
        weights, carry, x, nudges = self.parts(flat)
        p = self.rule.project(weights, x)
        return tf.concat(recur(self.rule, self.rule.consts(weights), carry, p, **self.options(nudges), **more)[0], -1)

    def by_scan(self, flat):
        """The same by autodiff inside the body."""
        weights, carry, x, nudges = self.parts(flat)

        def step(weights, carry, xs):
            x, mask, nudges = xs[0], xs[1], xs[2:]
            new = self.keras_step(weights, carry, x, mask)
            new = [n + e for n, e in zip(new, nudges, strict=True)] if nudges else new
            return new, new

        mask = self.mask if self.masked else tf.ones((T, B, 1), tf.bool)
        return tf.concat(scan(step, weights, carry, [x, mask, *nudges], reverse=self.reverse)[1], -1)

    def by_hand(self, flat):
        weights, carry, x, nudges = self.parts(flat)
        rows = {}
        for t in reversed(range(T)) if self.reverse else range(T):
            carry = self.keras_step(weights, carry, x[t], self.mask[t] if self.masked else None)
            carry = [c + e[t] for c, e in zip(carry, nudges, strict=True)] if nudges else carry
            rows[t] = tf.concat(carry, -1)
        return tf.stack([rows[t] for t in range(T)])

    def keras_step(self, weights, carry, x, mask):
        with keras.StatelessScope(state_mapping=list(zip(self.variables, weights, strict=True))):
            _, new = self.cell(x, carry)
        return new if mask is None else [tf.where(mask, n, c) for n, c in zip(new, carry, strict=True)]


@cache
def case(kind, form):
    return Case(kind, form)


# Products: (case, run, point, tangent) -> tensors.


def states(_, run, flat, __):
    return run(flat)


def jvp(_, run, flat, tangent):
    with Forward(flat, tangent) as accumulator:
        found = run(flat)
    return [found, accumulator.jvp(found)]


def jvp_of_x(case, run, flat, tangent):
    with Forward(flat[case.x_at], tangent[case.x_at]) as accumulator:
        found = run(flat)
    return accumulator.jvp(found)


def jvp_under_a_tape(case, run, flat, tangent):
    """A tape around keeps state and tangent from sharing one loop."""
    with tf.GradientTape() as tape:
        tape.watch(flat)
        return jvp(case, run, flat, tangent)


def vjp(case, run, flat, _):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = run(flat)
    return tape.gradient(found, flat, output_gradients=case.cotangent)


def stacked(case, run, flat, tangent, places=None, tape=False):
    places = range(len(flat)) if places is None else places
    moving = [flat[i] for i in places]
    many = [tf.stack([tangent[i], case.other[i]]) for i in places]
    if run == case.by_hand:
        found = []
        for k in range(2):
            with Forward(moving, [m[k] for m in many]) as accumulator:
                y = run(flat)
            found.append(accumulator.jvp(y))
        return tf.stack(found)
    with tf.GradientTape() as recorder:
        if tape:
            recorder.watch(flat)
        with stacked_accumulator(moving, many) as accumulator:
            y = run(flat)
    return accumulator.jvp(y)


def stacked_x(case, *arguments):
    return stacked(case, *arguments, places=[case.x_at])


def stacked_start(case, *arguments):
    return stacked(case, *arguments, places=range(len(case.variables), case.x_at))


def stacked_under_a_tape(case, *arguments):
    return stacked(case, *arguments, tape=True)


def loss(case, run, flat):
    return tf.reduce_sum(tf.sin(run(flat)) * case.cotangent)


def gradient(case, run, flat):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = loss(case, run, flat)
    return tape.gradient(found, flat)


def forward_over_reverse(case, run, flat, tangent):
    with Forward(flat, tangent) as accumulator:
        found = gradient(case, run, flat)
    return accumulator.jvp(found)


def reverse_over_reverse(case, run, flat, tangent):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = gradient(case, run, flat)
    return tape.gradient(found, flat, output_gradients=tangent)


def slope(case, run, flat, tangent):
    with Forward(flat, tangent) as accumulator:
        found = loss(case, run, flat)
    return accumulator.jvp(found)


def reverse_over_forward(case, run, flat, tangent):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = slope(case, run, flat, tangent)
    return tape.gradient(found, flat)


def forward_over_forward(case, run, flat, tangent):
    with Forward(flat, case.other) as outer:
        found = jvp(case, run, flat, tangent)[1]
    return outer.jvp(found)


FIRST = [states, jvp, jvp_of_x, jvp_under_a_tape, vjp, stacked, stacked_x, stacked_start, stacked_under_a_tape]


def numbered(structure):
    return {str(i): t.numpy() for i, t in enumerate(tf.nest.flatten(structure))}


@cache
def wanted(kind, form, product):
    at = case(kind, form)
    run = partial(product, at, at.by_hand)
    if product is forward_over_forward:  # nested accumulators are silently wrong in eager mode
        run = tf.function(run, autograph=False)
    return numbered(run(at.point, at.tangent))


def error(kind, form, product, run="by_rule", jit_compile=False, eager=False):
    at = case(kind, form)
    found = partial(product, at, getattr(at, run))
    found = found if eager else tf.function(found, autograph=False, jit_compile=jit_compile)
    return compare(numbered(found(at.point, at.tangent)), wanted(kind, form, product))


def label(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("product", FIRST, ids=label)
@pytest.mark.parametrize("kind", CELLS)
def test_first_derivatives(kind, product):
    assert error(kind, "masked", product, eager=True) <= TIGHT


@pytest.mark.parametrize("product", [jvp, vjp], ids=label)
@pytest.mark.parametrize("form", ["plain", "backwards"])
@pytest.mark.parametrize("kind", CELLS)
def test_other_forms(kind, form, product):
    assert error(kind, form, product, eager=True) <= TIGHT


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("product", [jvp, stacked, vjp], ids=label)
def test_a_single_row(kind, product):
    """Of one row, the products of state and tangent are computed apart."""
    at = Case(kind, "plain", rows=1)
    found, right = (numbered(product(at, run, at.point, at.tangent)) for run in (at.by_rule, at.by_hand))
    assert compare(found, right) <= TIGHT


@pytest.mark.parametrize("product", [jvp, jvp_under_a_tape, vjp], ids=label)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_first_derivatives_in_a_graph(kind, product):
    assert error(kind, "masked", product) <= TIGHT


@pytest.mark.parametrize(("kind", "product"), [("gru", vjp), ("gru", stacked), ("lstm", jvp)], ids=label)
def test_first_derivatives_under_xla(kind, product):
    assert error(kind, "backwards", product, jit_compile=True) <= TIGHT


@pytest.mark.parametrize(
    ("kind", "form", "product"),
    [
        ("gru", "masked", forward_over_reverse),
        ("gru", "plain", reverse_over_reverse),
        ("gru", "masked", reverse_over_forward),
        pytest.param("gru", "masked", forward_over_forward, marks=pytest.mark.slow),
        ("gru_before", "masked", reverse_over_reverse),
        pytest.param("lstm", "masked", forward_over_reverse, marks=pytest.mark.slow),
        ("simple_rnn", "backwards", forward_over_reverse),
    ],
    ids=label,
)
def test_second_derivatives(kind, form, product):
    assert error(kind, form, product) <= TIGHT


@pytest.mark.parametrize("product", [jvp, vjp], ids=label)
@pytest.mark.parametrize("kind", CELLS)
def test_autodiff_in_the_body_gives_the_same_numbers(kind, product):
    assert error(kind, "masked", product, run="by_scan", eager=True) <= TIGHT


@pytest.mark.parametrize("form", ["masked", "backwards"])
def test_unrolled(form):
    at = case("gru", form)
    run = partial(at.by_rule, unrolled=True)
    for product in (jvp, vjp):
        found = tf.function(partial(product, at, run), autograph=False)(at.point, at.tangent)
        assert compare(numbered(found), wanted("gru", form, product)) <= TIGHT


def test_unrolled_needs_a_known_number_of_steps():
    at = case("simple_rnn", "plain")
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in at.point]
    specs[at.x_at] = tf.TensorSpec([None, B, F], tf.float64)
    run = tf.function(lambda *flat: at.by_rule(list(flat), unrolled=True), autograph=False)
    with pytest.raises(ValueError, match="known number of time steps"):
        run.get_concrete_function(*specs)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("product", [jvp, vjp], ids=label)
def test_free_batch_and_time(kind, product):
    at = case(kind, "plain")
    n = len(at.variables)
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in at.point[:n]]
    specs += [tf.TensorSpec([None, H], tf.float64)] * at.slots + [tf.TensorSpec([None, None, F], tf.float64)]
    run = tf.function(partial(product, at, at.by_rule), autograph=False, input_signature=[specs, specs])
    assert compare(numbered(run(at.point, at.tangent)), wanted(kind, "plain", product)) <= TIGHT


@pytest.mark.parametrize("kind", CELLS)
def test_adjoint_identity_and_central_differences(kind):
    at = case(kind, "masked")
    point = numbered(at.point)

    def listed(arrays):
        return [tf.constant(arrays[str(i)]) for i in range(len(arrays))]

    def pushed(inputs, tangents):
        return numbered(jvp(at, at.by_rule, listed(inputs), listed(tangents))[1])

    def pulled(inputs, cotangents):
        flat = listed(inputs)
        with tf.GradientTape() as tape:
            tape.watch(flat)
            found = at.by_rule(flat)
        return numbered(tape.gradient(found, flat, output_gradients=cotangents["0"]))

    assert adjoint_error(pushed, pulled, point) <= TOLERANCES["float64"].adjoint
    around = central_difference(lambda a: numbered(at.by_rule(listed(a))), point, numbered(at.tangent))
    assert compare(pushed(point, numbered(at.tangent)), around) <= TOLERANCES["float64"].difference


def test_tape_around_a_function_with_a_jvp_inside():
    at = case("gru", "masked")
    inside = tf.function(partial(slope, at, at.by_rule), autograph=False)
    with tf.GradientTape() as tape:
        tape.watch(at.point)
        found = inside(at.point, at.tangent)
    right = wanted("gru", "masked", reverse_over_forward)
    assert compare(numbered(tape.gradient(found, at.point)), right) <= TIGHT


def test_derivatives_around_a_function():
    at = case("gru", "masked")
    inside = tf.function(at.by_rule, autograph=False)
    for product in (jvp, vjp):
        found = product(at, inside, at.point, at.tangent)
        assert compare(numbered(found), wanted("gru", "masked", product)) <= TIGHT


def test_cotangent_of_a_zero_nudge_is_the_total_derivative_by_the_state():
    """dL/dh_t of a linear recurrence h' = 2 h with dL/dh_3 = 1 is 4, 2, 1."""
    cell = L.SimpleRNNCell(1, activation="linear", dtype="float64")
    cell.build((None, 1))
    rule = cells.find(cell)
    p, nudge = tf.zeros((3, 1, 1), tf.float64), tf.zeros((3, 1, 1), tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(nudge)
        after = recur(rule, [tf.constant([[2.0]], tf.float64)], [tf.ones((1, 1), tf.float64)], p, nudges=[nudge])[0][0]
        last = tf.reduce_sum(after[-1])
    assert tape.gradient(last, nudge).numpy().ravel().tolist() == [4, 2, 1]


# What is inside the loops.


def functions_of_loops(concrete):
    """Yield the functions that run at every step: bodies of while loops, and whatever they call."""
    definition = concrete.graph.as_graph_def()
    library = {f.signature.name: f for f in definition.library.function}
    every = [*definition.node, *(n for f in library.values() for n in f.node_def)]
    waiting = [n.attr["body"].func.name for n in every if n.op in ("While", "StatelessWhile")]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            called = [a.func.name for n in library[name].node_def for a in n.attr.values() if a.HasField("func")]
            waiting += [c for c in called if c]
            yield library[name]


def reads_of_variables(concrete):
    bodies = list(functions_of_loops(concrete))
    assert bodies
    nodes = [n.name for f in bodies for n in f.node_def if n.op in ("ReadVariableOp", "ResourceGather")]
    handles = [a.name for f in bodies for a in f.signature.input_arg if a.type == tf.resource.as_datatype_enum]
    return nodes + handles


@pytest.mark.parametrize("kind", ["gru", "gru_before", "lstm", "simple_rnn", "other"])
def test_weights_are_read_once_outside_the_loop(kind):
    cell = L.StackedRNNCells([L.GRUCell(2), L.LSTMCell(2)]) if kind == "other" else CELLS[kind][0](H, **CELLS[kind][1])
    layer = RNN(cell, return_sequences=True)
    layer.build((B, T, F))
    x = tf.TensorSpec([B, T, F])

    def run(x, dx):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = layer(x)
        with Forward(x, dx) as accumulator:
            again = layer(x)
        return tape.gradient(found, [x, *(v.value for v in layer.trainable_variables)]), accumulator.jvp(again)

    assert reads_of_variables(tf.function(run, autograph=False).get_concrete_function(x, x)) == []


def test_the_count_of_reads_can_fail():
    variable = tf.Variable(2.0)

    def run(x):
        return tf.while_loop(lambda i, _: i < T, lambda i, a: (i + 1, a * variable), (0, x))[1]

    assert reads_of_variables(tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec([])))


@pytest.mark.parametrize(
    ("product", "count"), [(states, 1), (jvp, 1), (stacked, 1), (vjp, 2), (jvp_under_a_tape, 2)], ids=label
)
def test_number_of_loops(product, count):
    """State and tangent share one loop unless a tape is open."""
    at = case("gru", "masked")
    traced = tf.function(partial(product, at, at.by_rule), autograph=False)
    definition = traced.get_concrete_function(at.point, at.tangent).graph.as_graph_def()
    every = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    assert sum(n.op in ("While", "StatelessWhile") for n in every) == count
