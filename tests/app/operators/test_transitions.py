"""Matrices of single steps: against formulas, against stock Keras under a tape, and as the server sends them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from app.calls import Call
from app.operators import transitions
from app.operators._operator import Work
from app.programs import Programs
from models.model import Model

L = keras.layers
CLOSE = 1e-10
RANDOM = np.random.default_rng(5)
PARTS = ("A", "B", "C", "D")


def randomise(network, scale=0.5):
    rng = np.random.default_rng(11)
    network.set_weights([rng.normal(size=w.shape) * scale for w in network.get_weights()])
    return network


def sequential(*layers, features=2, time=None, dtype="float64"):
    x = y = keras.Input((time, features), dtype=dtype)
    for layer in layers:
        y = layer(y)
    return randomise(keras.Model(x, y))


def made(*layers, **options):
    return Model("m", sequential(*layers, **options))


def compute(model, inputs, *, operator=transitions.OPERATOR, programs=None, **options):
    """Run a call as the server does; return its arrays and further members."""
    job = operator.prepare(model, Call("m", operator.name, {"inputs": inputs}, options))
    programs, found, steps = programs or Programs(compiled_shapes=0), [], job.steps()
    item = next(steps, None)
    while item is not None:
        if isinstance(item, Work):
            item = steps.send(programs.run(model, operator.name, item)[0])
        else:
            found.append(item)
            item = next(steps, None)
    if job.whole is not None:
        joined = np.concatenate([part.reshape(-1) for part in found])
        return {job.whole.field: joined.reshape(job.whole.shape)}, job
    return found[-1], job


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def test_lstm_by_hand():
    """The formulas of Hochreiter and Schmidhuber with a forget gate, in the order i, f, g, o and the state (h, c)."""
    units, features = 3, 2
    layer = L.LSTM(units, return_sequences=True, dtype="float64", name="lstm")
    model = made(layer, features=features)
    kernel, recurrent, bias = layer.get_weights()
    x, h, c = RANDOM.normal(size=features), RANDOM.normal(size=units), RANDOM.normal(size=units)
    given = {"x": x[None, None], "state.lstm.h": h[None], "state.lstm.c": c[None]}
    found, job = compute(model, given)
    ai, af, ag, ao = np.split(x @ kernel + h @ recurrent + bias, 4)
    i, f, g, o = sigmoid(ai), sigmoid(af), np.tanh(ag), sigmoid(ao)
    new = f * c + i * g
    a, b = np.zeros((6, 6)), np.zeros((6, features))
    for to in range(units):
        for weights, matrix, column in ((recurrent, a, 0), (kernel, b, 0)):
            for start in range(weights.shape[0]):
                ui, uf, ug, uo = (weights[start, gate * units + to] for gate in range(4))
                dc = g[to] * i[to] * (1 - i[to]) * ui + c[to] * f[to] * (1 - f[to]) * uf + i[to] * (1 - g[to] ** 2) * ug
                dh = np.tanh(new[to]) * o[to] * (1 - o[to]) * uo + o[to] * (1 - np.tanh(new[to]) ** 2) * dc
                matrix[to, column + start], matrix[units + to, column + start] = dh, dc
        a[units + to, units + to] = f[to]
        a[to, units + to] = o[to] * (1 - np.tanh(new[to]) ** 2) * f[to]
    np.testing.assert_allclose(found["A"], a[None, None], atol=CLOSE)
    np.testing.assert_allclose(found["B"], b[None, None], atol=CLOSE)
    # The output is h.
    np.testing.assert_array_equal(found["C"], found["A"][:, :, :units])
    np.testing.assert_array_equal(found["D"], found["B"][:, :, :units])
    assert job.extra == {"order": ["lstm.h[0:3]", "lstm.c[3:6]"]}


class Leaky(keras.layers.Layer):
    """A cell without a rule, with two slots of which neither is the output."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units, self.state_size, self.output_size = units, [units, 2], units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1] + self.units + 2, self.units), name="kernel")

    def call(self, x, states):
        h, slow = states
        h = 0.5 * h + tf.sin(tf.concat([x, h, slow], -1) @ self.kernel)
        return h * tf.exp(slow[:, :1]), [h, 0.9 * slow + tf.tanh(h[:, :2])]


def skipping():
    """Three layers of which the last one sees the first directly, and an input that has no time."""
    x = keras.Input((None, 2), dtype="float64", name="x")
    first = L.GRU(3, return_sequences=True, dtype="float64", name="one")(x)
    second = L.SimpleRNN(2, return_sequences=True, dtype="float64", name="two")(first)
    joined = L.Concatenate(dtype="float64")([first, second, x])
    third = L.LSTM(2, return_sequences=True, dtype="float64", name="three")(joined)
    return randomise(keras.Model(x, L.Dense(3, "softmax", dtype="float64")(third)))


D = {"dtype": "float64"}
NETWORKS = {
    "gru": lambda: sequential(L.GRU(4, return_sequences=True, **D)),
    "gru, reset before": lambda: sequential(L.GRU(4, return_sequences=True, reset_after=False, **D)),
    "gru and lstm": lambda: sequential(L.GRU(3, return_sequences=True, **D), L.LSTM(2, return_sequences=True, **D)),
    "last step": lambda: sequential(L.LSTM(3, return_sequences=True, **D), L.LSTM(2, **D), L.Dense(2, "tanh", **D)),
    "head": lambda: sequential(L.GRU(3, return_sequences=True, **D), L.Dense(3, "softmax", **D)),
    "between": lambda: sequential(
        L.Dense(3, "tanh", **D),
        L.SimpleRNN(3, "elu", return_sequences=True, **D),
        L.LayerNormalization(**D),
        L.GRU(2, return_sequences=True, reset_after=False, **D),
        L.Dense(1, **D),
    ),
    "own cell": lambda: sequential(
        L.RNN(Leaky(3, **D), return_sequences=True, **D), L.GRU(2, return_sequences=True, **D)
    ),
    "below own cell": lambda: sequential(L.GRU(2, return_sequences=True, **D), L.RNN(Leaky(3, **D), **D)),
    "softmax inside": lambda: sequential(L.SimpleRNN(3, "softmax", return_sequences=True, **D)),
    "stacked cells": lambda: sequential(
        L.RNN(L.StackedRNNCells([L.GRUCell(2, **D), L.LSTMCell(3, **D)], **D), return_sequences=True, **D),
        L.Dense(2, **D),
    ),
    "skipping": skipping,
    "of fixed length": lambda: sequential(L.LSTM(3, return_sequences=True, **D), time=3),
}


def one_step_of_keras(network, x, states):
    """Call the layers of a copy one after the other, as Keras runs them; return the flat new state, and y."""
    values, rest, new = {}, list(states), []
    for operation in network.operations:
        if isinstance(operation, L.InputLayer):
            found = x
        else:
            given = [values[id(t)] for t in operation.input] if isinstance(operation.input, list) else None
            given = values[id(operation.input)] if given is None else given
            if isinstance(operation, L.RNN):
                count = len(keras.tree.flatten(operation.get_initial_state(1)))
                initial = keras.tree.pack_sequence_as(operation.get_initial_state(1), rest[:count])
                rest = rest[count:]
                operation.return_state, kept = True, operation.return_state
                found, *after = operation.call(given, initial_state=initial)
                operation.return_state = kept
                new += keras.tree.flatten(after)
            else:
                found = operation(given)
        values[id(operation.output)] = found
    return tf.concat(new, -1), values[id(network.outputs[0])]


def wanted(network, x, states):
    """Differentiate one step at a time by an eager tape; `states` are those before each step, `(batch, time, n)`."""
    rows = {part: [] for part in PARTS}
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            point = tf.constant(x[b : b + 1, t : t + 1])
            before = [tf.constant(s[b : b + 1, t]) for s in states]
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(list(before))
                if point.dtype.is_floating:
                    tape.watch(point)
                state, y = one_step_of_keras(network, point, before)
            for out, (by_state, by_x) in ((state, "AB"), (y, "CD")):
                n = int(out.shape[-1])
                columns = tape.jacobian(out, before, experimental_use_pfor=False, unconnected_gradients="zero")
                rows[by_state].append(np.concatenate([c.numpy().reshape(n, -1) for c in columns], -1))
                if point.dtype.is_floating:
                    column = tape.jacobian(out, point, experimental_use_pfor=False, unconnected_gradients="zero")
                    rows[by_x].append(column.numpy().reshape(n, -1))
    return {p: np.reshape(r, (*x.shape[:2], *r[0].shape)) for p, r in rows.items() if r}


def trajectory(model, inputs):
    """The states before every step, in the order of the signature."""
    names = [s.name for s in model.signature.states]
    given = {n: tf.constant(a) for n, a in inputs.items()}
    after = model.run(given, [n.replace("state.", "hidden.", 1) for n in names])
    first = {n: inputs[n] if n in inputs else model.default(n, given).numpy() for n in names}
    return [
        np.concatenate([first[n][:, None], after[n.replace("state.", "hidden.", 1)].numpy()[:, :-1]], 1) for n in names
    ]


def draw(model, batch=2, time=3, states=True):
    inputs = {"x": RANDOM.normal(size=(batch, time, *model.signature.inputs[0].shape[2:]))}
    if states:
        inputs |= {s.name: RANDOM.normal(size=(batch, *s.shape[1:])) * 0.5 for s in model.signature.states}
    return inputs


@pytest.mark.parametrize("kind", NETWORKS)
def test_against_keras(kind):
    stock = NETWORKS[kind]()
    model = Model("m", NETWORKS[kind]())
    inputs = draw(model, states=kind != "head")
    found, job = compute(model, inputs)
    expected = wanted(stock, inputs["x"], trajectory(model, inputs))
    assert {p: a.shape for p, a in found.items()} == {p: a.shape for p, a in expected.items()}
    for part in PARTS:
        np.testing.assert_allclose(found[part], expected[part], atol=CLOSE, rtol=CLOSE, err_msg=part)
    assert job.rows == inputs["x"].shape[0] * inputs["x"].shape[1]
