"""Each part of a hand-written rule against the stock Keras cell, one step at a time, without any loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import cells
from models.cells._cell import times
from models.gradcheck import TOLERANCES, compare
from pushforward._registry import scan

T, B, F, H, K = 3, 2, 4, 3, 2
TIGHT = TOLERANCES["float64"].equality
Forward = tf.autodiff.ForwardAccumulator
L = keras.layers


def bent(a):
    return 0.7 * tf.sin(a) + 0.1 * a


def softsign(a):
    return a / (1 + tf.abs(a))  # TensorFlow's own has no forward mode


VARIANTS = {
    "gru": (L.GRUCell, {}),
    "gru-relu": (L.GRUCell, {"activation": "relu"}),
    "gru-softsign-hard_sigmoid": (L.GRUCell, {"activation": "softsign", "recurrent_activation": "hard_sigmoid"}),
    "gru-custom": (L.GRUCell, {"activation": bent, "recurrent_activation": bent}),
    "gru-no-bias": (L.GRUCell, {"use_bias": False}),
    "gru-before": (L.GRUCell, {"reset_after": False}),
    "gru-before-relu": (L.GRUCell, {"reset_after": False, "activation": "relu"}),
    "gru-before-custom": (L.GRUCell, {"reset_after": False, "activation": bent, "recurrent_activation": "softsign"}),
    "gru-before-no-bias": (L.GRUCell, {"reset_after": False, "use_bias": False}),
    "lstm": (L.LSTMCell, {}),
    "lstm-relu": (L.LSTMCell, {"activation": "relu"}),
    "lstm-custom": (L.LSTMCell, {"activation": bent, "recurrent_activation": "softsign"}),
    "lstm-no-bias": (L.LSTMCell, {"use_bias": False}),
    "simple_rnn": (L.SimpleRNNCell, {}),
    "simple_rnn-relu": (L.SimpleRNNCell, {"activation": "relu"}),
    "simple_rnn-linear": (L.SimpleRNNCell, {"activation": "linear"}),
    "simple_rnn-custom": (L.SimpleRNNCell, {"activation": bent}),
    "simple_rnn-no-bias": (L.SimpleRNNCell, {"use_bias": False}),
}


def test_every_cell_of_the_registry_is_tested():
    assert {name.split("-")[0] for name in VARIANTS} == set(scan(cells, "CELL"))


class Case:
    """A Keras cell with random weights, T independent steps of it as a point, and directions."""

    def __init__(self, variant):
        make, options = VARIANTS[variant]
        self.rng = np.random.default_rng(1)
        self.cell = make(H, dtype="float64", **options)
        self.cell.build((None, F))
        for variable in self.cell.variables:
            if variable.dtype == "float64":  # the other one is the seed of its dropout
                variable.assign(self.rng.normal(size=variable.shape) * 0.7)
        self.variables = [v for v in self.cell.variables if v.dtype == "float64"]
        self.rule = cells.find(self.cell)
        self.weights = self.rule.weights(self.cell)
        self.x = self.draw(T, B, F)
        self.carry = [self.draw(T, B, H) for _ in self.rule.slots]
        self.tangents = self.like([*self.weights, self.x, *self.carry])

    def draw(self, *shape):
        return tf.constant(self.rng.normal(size=shape))

    def like(self, tensors, *lead):
        return [self.draw(*lead, *t.shape) for t in tensors]

    def stock(self, weights, x, carry):
        """Step the Keras cell at each of the T points and stack the states."""
        for role in ("activation", "recurrent_activation"):
            if getattr(self.cell, role, None) is keras.activations.softsign:
                setattr(self.cell, role, softsign)
        mapping = list(zip(self.variables, weights, strict=True))
        rows = []
        with keras.StatelessScope(state_mapping=mapping):
            for t in range(T):
                output, new = self.cell(x[t], [c[t] for c in carry])
                assert np.array_equal(output, new[0])
                rows.append(new)
        return [tf.stack(column) for column in zip(*rows, strict=True)]

    def linearised(self):
        consts, p = self.rule.consts(self.weights), self.rule.project(self.weights, self.x)
        q = times(self.carry[0], consts[0])
        inner, bulk = self.rule.linearise(consts, self.carry, p, q)
        return consts, p, inner, bulk

    def cut(self, flat):
        n = len(self.weights)
        return flat[:n], flat[n], flat[n + 1 :]


@pytest.fixture(params=VARIANTS)
def case(request):
    return Case(request.param)


def named(tensors):
    return {str(i): np.asarray(t) for i, t in enumerate(tensors)}


def added(a, b):
    return [y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)]


def test_step_is_that_of_keras(case):
    rule = case.rule
    consts = rule.consts(case.weights)
    found = rule.step(consts, case.carry, rule.project(case.weights, case.x), times(case.carry[0], consts[0]))
    assert compare(named(found), named(case.stock(case.weights, case.x, case.carry))) <= TIGHT


def test_push_and_source_are_the_tangent_of_the_keras_step(case):
    rule, flat = case.rule, [*case.weights, case.x, *case.carry]
    with Forward(flat, case.tangents) as accumulator:
        found = case.stock(*case.cut(flat))
    wanted = accumulator.jvp(found)
    with Forward(flat, case.tangents) as accumulator:
        weights, x, _ = case.cut(flat)
        moving = [*rule.consts(weights), rule.project(weights, x)]
    *d_consts, dp = accumulator.jvp(moving)
    consts, _, inner, bulk = case.linearised()
    sources = rule.source(consts, inner + bulk, case.carry, d_consts, dp)
    d_carry = case.cut(case.tangents)[2]
    pushed = rule.push(consts, inner, d_carry, times(d_carry[0], consts[0]))
    assert compare(named(added(sources, pushed)), named(wanted)) <= TIGHT


def test_sources_add_up_from_their_parts(case):
    rule = case.rule
    consts, p, inner, bulk = case.linearised()
    d_consts, (dp,) = case.like(consts), case.like([p])
    none = [None] * len(consts)
    together = rule.source(consts, inner + bulk, case.carry, d_consts, dp)
    parts = [rule.source(consts, inner + bulk, case.carry, none, dp)]
    for i, d in enumerate(d_consts):
        alone = [d if j == i else None for j in range(len(consts))]
        parts.append(rule.source(consts, inner + bulk, case.carry, alone, None))
    total = parts[0]
    for part in parts[1:]:
        total = added(total, part)
    assert compare(named(total), named(together)) <= TIGHT
    assert all(s is None for s in rule.source(consts, inner + bulk, case.carry, none, None))


def test_stacked_directions_are_single_ones_side_by_side(case):
    rule = case.rule
    consts, p, inner, bulk = case.linearised()
    d_consts, dp = case.like(consts, K), case.draw(T, K, *p.shape[1:])
    along = [tf.expand_dims(c, 1) for c in inner + bulk]
    sources = rule.source(consts, along, case.carry, d_consts, dp)
    for k in range(K):
        single = rule.source(consts, inner + bulk, case.carry, [d[k] for d in d_consts], dp[:, k])
        assert compare(named(s[:, k] for s in sources), named(single)) <= TIGHT
    first, tangents = [c[0] for c in inner], case.like([c[0] for c in case.carry], K)
    dq = times(tangents[0], consts[0])
    pushed = rule.push(consts, first, tangents, dq)
    for k in range(K):
        single = rule.push(consts, first, [d[k] for d in tangents], dq[k])
        assert compare(named(d[k] for d in pushed), named(single)) <= TIGHT


def test_one_step_without_a_time_axis(case):
    rule = case.rule
    consts, p, inner, bulk = case.linearised()
    d_consts, (dp,) = case.like(consts), case.like([p])
    carry = [c[1] for c in case.carry]
    q = times(carry[0], consts[0])
    alone = rule.linearise(consts, carry, p[1], q)
    assert compare(named(alone[0] + alone[1]), named(c[1] for c in inner + bulk)) <= TIGHT
    wanted = rule.source(consts, inner + bulk, case.carry, d_consts, dp)
    found = rule.source(consts, alone[0] + alone[1], carry, d_consts, dp[1])
    assert compare(named(found), named(s[1] for s in wanted)) <= TIGHT


def test_pull_and_collect_are_the_cotangent_of_the_keras_step(case):
    rule = case.rule
    flat = [*case.weights, case.x, *case.carry]
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = case.stock(*case.cut(flat))
    cotangents = case.like(found)
    wanted = tape.gradient(found, flat, output_gradients=cotangents, unconnected_gradients="zero")
    consts, _, inner, bulk = case.linearised()
    g_consts, gp = rule.collect(consts, inner + bulk, case.carry, cotangents)
    with tf.GradientTape() as tape:
        tape.watch(flat)
        weights, x, _ = case.cut(flat)
        moving = [*rule.consts(weights), rule.project(weights, x)]
    pulled = tape.gradient(moving, flat[: -len(case.carry)], output_gradients=[*g_consts, gp])
    back = rule.pull(consts, inner, cotangents)
    assert compare(named([*pulled, *back]), named(wanted)) <= TIGHT
