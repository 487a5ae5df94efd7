"""The matrices of each step, and recurrences run by them, against TensorFlow's own tape around the stock Keras cell."""

from functools import cache, partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import cells, matrices
from models._tf import cutting, stacked_accumulator
from models.gradcheck import TOLERANCES, compare
from models.matrices import input_matrix, pays, recur_by_matrices, state_matrix

T, F, H, K = 4, 2, 3, 5
TIGHT = TOLERANCES["float64"].equality
L = keras.layers
CELLS = {
    "gru": (L.GRUCell, {}),
    "gru_before": (L.GRUCell, {"reset_after": False, "activation": "relu"}),
    "gru_no_bias": (L.GRUCell, {"use_bias": False}),
    "lstm": (L.LSTMCell, {}),
    "simple_rnn": (L.SimpleRNNCell, {"activation": lambda a: tf.sin(a) + 0.1 * a}),
}
FORMS = {  # masked, nudged, reverse
    "plain": (False, False, False),
    "masked": (True, False, False),
    "backwards": (False, True, True),
    "masked_backwards": (True, True, True),
}


class Case:
    """A cell, a point and directions, and two ways to run it."""

    def __init__(self, kind, form="plain", rows=2):
        make, options = CELLS[kind]
        self.masked, self.nudged, self.reverse = FORMS[form]
        rng = np.random.default_rng(3)
        self.cell = make(H, dtype="float64", **options)
        self.cell.build((None, F))
        for variable in self.cell.trainable_variables:
            variable.assign(rng.normal(size=variable.shape))
        self.rule = cells.find(self.cell)
        self.weights = self.rule.weights(self.cell)
        self.slots, self.rows = len(self.rule.slots), rows
        shapes = [(rows, H)] * self.slots + [(T, rows, F)] + ([(T, rows, H)] * self.slots if self.nudged else [])
        self.point = [tf.constant(rng.normal(size=s)) for s in shapes]
        self.tangents = [tf.constant(rng.normal(size=(K, *s))) for s in shapes]
        outputs = [(T, rows, H)] * self.slots + [(rows, H)] * self.slots
        self.cotangents = [tf.constant(rng.normal(size=(K, *s))) for s in outputs]
        mask = [[[False], [True]], [[True], [True]], [[True], [False]], [[True], [True]]]
        self.mask = tf.constant(mask)[:, :rows] if self.masked else None

    def by_matrices(self, flat):
        carry, (x, *nudges) = flat[: self.slots], flat[self.slots :]
        options = {"mask": self.mask, "nudges": nudges or None, "reverse": self.reverse}
        after, final = recur_by_matrices(self.rule, self.weights, list(carry), x, **options)
        return [*after, *final]

    def by_hand(self, flat):
        states, (x, *nudges), rows = list(flat[: self.slots]), flat[self.slots :], {}
        for t in reversed(range(T)) if self.reverse else range(T):
            _, new = self.cell(x[t], states)
            if self.masked:
                new = [tf.where(self.mask[t], n, s) for n, s in zip(new, states, strict=True)]
            states = [n + e[t] for n, e in zip(new, nudges, strict=True)] if nudges else list(new)
            rows[t] = states
        return [*(tf.stack([rows[t][i] for t in range(T)]) for i in range(self.slots)), *states]


@cache
def case(kind, form="plain", rows=2):
    return Case(kind, form, rows)


@cache
def jacobians(kind, form, rows):
    """The derivative of each output by each part of the point, element by element, by TensorFlow's tape."""
    at = case(kind, form, rows)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(at.point)
        outputs = at.by_hand(at.point)
    return [
        [tape.jacobian(y, p, unconnected_gradients="zero", experimental_use_pfor=False).numpy() for p in at.point]
        for y in outputs
    ]


def numbered(tensors):
    return {str(i): np.asarray(t) for i, t in enumerate(tensors)}


def pushed_by_hand(at, kind, form, moving):
    return numbered(sum(contract(row[i], at.tangents[i]) for i in moving) for row in jacobians(kind, form, at.rows))


def contract(jacobian, tangents):
    """Apply `(*out, *in)` to each of `(K, *in)`."""
    inner = len(tangents.shape) - 1
    size = int(np.prod(tangents.shape[1:]))
    out = jacobian.shape[: jacobian.ndim - inner]
    return (np.reshape(tangents, (K, size)) @ jacobian.reshape(-1, size).T).reshape(K, *out)


def pulled_by_hand(at, kind, form, given):
    rows = jacobians(kind, form, at.rows)
    found = []
    for i, p in enumerate(at.point):
        total = 0
        for j in given:
            g = np.reshape(at.cotangents[j], (K, -1))
            total = total + g @ rows[j][i].reshape(g.shape[1], -1)
        found.append(total.reshape(K, *p.shape))
    return numbered(found)


def pushed(at, moving, point, tangents):
    with stacked_accumulator([point[i] for i in moving], [tangents[i] for i in moving]) as accumulator:
        outputs = at.by_matrices(point)
    return [accumulator.jvp(y) for y in outputs]


def pulled(at, given, point, cotangents):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(point)
        with cutting(tape) as links:
            outputs = at.by_matrices(point)
    (link,) = links
    found = link.backward(link.inputs, link.outputs, *(c if j in given else None for j, c in enumerate(cotangents)))
    assert len(outputs) == 2 * at.slots
    assert all(g is None for g in found[: len(at.weights)])
    parts = found[len(at.weights) :]
    return parts[: len(point)]


# Matrices of one step.


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", CELLS)
def test_a_and_b_are_the_jacobians_of_one_step(kind, rows):
    at = case(kind)
    rng = np.random.default_rng(rows)
    states = [tf.constant(rng.normal(size=(rows, H))) for _ in range(at.slots)]
    x = tf.constant(rng.normal(size=(rows, F)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([*states, x])
        after = tf.concat(at.cell(x, states)[1], -1)
    by_state = tf.concat([tape.batch_jacobian(after, s, experimental_use_pfor=False) for s in states], -1)
    by_x = tape.batch_jacobian(after, x, experimental_use_pfor=False)
    consts = at.rule.consts(at.weights)
    q = tf.matmul(states[0], consts[0])
    inner, bulk = at.rule.linearise(consts, states, at.rule.project(at.weights, x), q)
    # Row vectors: the matrices stand transposed.
    a = tf.linalg.matrix_transpose(state_matrix(at.rule, consts, inner))
    b = tf.linalg.matrix_transpose(input_matrix(at.rule, consts, at.weights[0], inner + bulk, states))
    assert a.shape == (rows, H * at.slots, H * at.slots)
    assert b.shape == (rows, H * at.slots, F)
    assert compare({"a": a.numpy(), "b": b.numpy()}, {"a": by_state.numpy(), "b": by_x.numpy()}) < TIGHT


@pytest.mark.parametrize(("count", "numbers", "wanted"), [(7, 4, False), (8, 4, True), (15, 64, False), (16, 64, True)])
def test_when_matrices_pay(count, numbers, wanted):
    assert pays(count, numbers) == wanted


# Recurrences.

BOTH = [(k, f) for k in CELLS for f in FORMS if k in ("gru", "lstm") or f in ("plain", "masked_backwards")]


@pytest.fixture(params=["formed", "step by step"])
def formed(request, monkeypatch):
    if request.param == "step by step":
        monkeypatch.setattr(matrices, "_AT_ONCE_BYTES", 0)
    return request.param


@pytest.mark.parametrize(("kind", "form"), BOTH)
def test_forward(kind, form, formed):
    at = case(kind, form)
    every = range(len(at.point))
    found = tf.function(partial(pushed, at, every), autograph=False)(at.point, at.tangents)
    assert compare(numbered(found), pushed_by_hand(at, kind, form, every)) < TIGHT


@pytest.mark.parametrize(("kind", "form"), BOTH)
def test_reverse(kind, form, formed):
    at = case(kind, form)
    every = range(len(at.cotangents))
    found = tf.function(partial(pulled, at, every), autograph=False)(at.point, at.cotangents)
    assert compare(numbered(found), pulled_by_hand(at, kind, form, every)) < TIGHT


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", ["gru", "gru_before", "lstm"])
def test_a_part_of_the_directions_for_any_number_of_rows(kind, rows, formed):
    at = case(kind, "plain", rows)
    for moving in ([0], [at.slots]):
        found = pushed(at, moving, at.point, at.tangents)
        assert compare(numbered(found), pushed_by_hand(at, kind, "plain", moving)) < TIGHT
    for given in ([0], [at.slots]):
        found = pulled(at, given, at.point, at.cotangents)
        assert compare(numbered(found), pulled_by_hand(at, kind, "plain", given)) < TIGHT


def test_nudges_alone():
    at = case("lstm", "masked_backwards")
    moving = [at.slots + 2]  # of the cell state only
    found = pushed(at, moving, at.point, at.tangents)
    assert compare(numbered(found), pushed_by_hand(at, "lstm", "masked_backwards", moving)) < TIGHT


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_sizes_that_are_free_when_traced(kind):
    """Then matrices are formed step by step, since nobody knows how much they take."""
    at = case(kind)
    free = [tf.TensorSpec([None, H], tf.float64)] * at.slots + [tf.TensorSpec([None, None, F], tf.float64)]
    many = [tf.TensorSpec([None, *s.shape], tf.float64) for s in free]
    every = range(len(at.point))
    run = tf.function(partial(pushed, at, every), autograph=False, input_signature=[free, many])
    assert compare(numbered(run(at.point, at.tangents)), pushed_by_hand(at, kind, "plain", every)) < TIGHT


def test_under_xla():
    at = case("gru", "masked_backwards")
    every = range(len(at.point))

    def both(point, tangents, cotangents):
        return pushed(at, every, point, tangents), pulled(at, range(2 * at.slots), point, cotangents)

    found = tf.function(both, autograph=False, jit_compile=True)(at.point, at.tangents, at.cotangents)
    assert compare(numbered(found[0]), pushed_by_hand(at, "gru", "masked_backwards", every)) < TIGHT
    assert compare(numbered(found[1]), pulled_by_hand(at, "gru", "masked_backwards", range(2))) < TIGHT


# What it is not for.


def test_weights_and_single_directions_are_refused():
    at = case("gru")
    with (
        pytest.raises(ValueError, match="stacked tangents"),
        tf.autodiff.ForwardAccumulator(at.point[1], at.tangents[1][0]),
    ):
        at.by_matrices(at.point)
    kernel = at.weights[0]
    with (
        pytest.raises(ValueError, match="stacked tangents"),
        stacked_accumulator([kernel], [tf.ones([K, *kernel.shape], tf.float64)]),
    ):
        at.by_matrices(at.point)
    with tf.GradientTape() as tape:
        tape.watch(at.point)
        outputs = at.by_matrices(at.point)
    with pytest.raises(ValueError, match="stacked cotangents"):
        tape.gradient(outputs[0], at.point)
