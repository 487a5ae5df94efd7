"""Matrices of single steps: against formulas, and against stock Keras under a tape."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from app.calls import Call
from app.operators import jacobian, transitions
from app.operators._operator import Work
from app.programs import Programs
from models.model import Model
from pushforward.errors import NotDifferentiable

# They trace many models, which takes minutes: `make test-slow`.
pytestmark = pytest.mark.slow

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


def compute(model, inputs, *, operator=transitions.OPERATOR, programs=None, works=None, **options):
    """Run a call as the server does; return its arrays and its job, and list its works if asked to."""
    job = operator.prepare(model, Call("m", operator.name, {"inputs": inputs}, options))
    programs, found, steps = programs or Programs(compiled=0), [], job.steps()
    item = next(steps, None)
    while item is not None:
        if isinstance(item, Work):
            if works is not None:
                works.append(item)
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
    "own cell": lambda: sequential(L.GRU(2, return_sequences=True, **D), L.RNN(Leaky(3, **D), **D)),
    "softmax inside": lambda: sequential(L.SimpleRNN(3, "softmax", return_sequences=True, **D)),
    "skipping": skipping,
    "of fixed length": lambda: sequential(L.LSTM(3, return_sequences=True, **D), time=2),
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


def draw(model, batch=2, time=2, states=True):
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


def with_tokens():
    tokens = keras.Input((None,), dtype="int32")
    y = L.Embedding(5, 3, name="embedding", **D)(tokens)
    return randomise(keras.Model(tokens, L.Dense(2, **D)(L.LSTM(2, return_sequences=True, **D)(y))))


def test_tokens():
    """The state's matrices need no tangent of the input."""
    stock, model = with_tokens(), Model("m", with_tokens())
    inputs = {"x": RANDOM.integers(0, 5, size=(2, 2)).astype("int32")}
    found, _ = compute(model, inputs, parts=["C", "A"])
    assert list(found) == ["C", "A"]
    expected = wanted(stock, inputs["x"], trajectory(model, inputs))
    for part in "AC":
        np.testing.assert_allclose(found[part], expected[part], atol=CLOSE)
    for part in "BD":
        with pytest.raises(NotDifferentiable, match=r"int32, .* hidden\.embedding\.output in POST /jacobian, or only"):
            compute(model, inputs, parts=[part])
    assert transitions.OPERATOR.example(model)["parts"] == ["A", "C"]


def test_product_is_the_jacobian_over_all_steps():
    model = Model("m", NETWORKS["gru and lstm"]())
    inputs = draw(model, time=5)
    a = compute(model, inputs, parts=["A"])[0]["A"]
    whole = compute(model, inputs, operator=jacobian.OPERATOR, of="state", wrt="state")[0]["jacobian"]
    for b in range(2):
        np.testing.assert_allclose(np.linalg.multi_dot(a[b, ::-1]), whole[b], atol=CLOSE)


def test_layers_are_blocks():
    """A later layer's state before a step has no effect on an earlier layer's state after it, not even by rounding."""
    model = Model("m", NETWORKS["gru and lstm"]())
    found, job = compute(model, draw(model))
    assert [part.partition(".")[2] for part in job.extra["order"]] == ["h[0:3]", "h[3:5]", "c[5:7]"]
    a = found["A"]
    assert not a[..., :3, 3:].any()
    assert a[..., 3:, :3].all()
    assert not a[..., 3:, 5].any() == a[..., 3:, 5].all()


def test_taylor_is_exact_for_a_linear_model():
    layers = [L.SimpleRNN(n, "linear", return_sequences=True, name=f"r{n}", **D) for n in (3, 2)]
    model = made(*layers, L.Dense(2, **D))
    inputs = draw(model, batch=1, time=1)
    found, _ = compute(model, inputs)
    names = [s.name for s in model.signature.states]
    moves = {n: RANDOM.normal(size=a.shape) for n, a in inputs.items()}

    def after(inputs):
        run = model.run({n: tf.constant(a) for n, a in inputs.items()}, [*names, "y"])
        return np.concatenate([run[n][0] for n in names]), run["y"][0, 0]

    (state, y), (moved, y_moved) = after(inputs), after({n: a + moves[n] for n, a in inputs.items()})
    ds, dx = np.concatenate([moves[n][0] for n in names]), moves["x"][0, 0]
    a, b, c, d = (found[part][0, 0] for part in PARTS)
    np.testing.assert_allclose(state + a @ ds + b @ dx, moved, atol=CLOSE)
    np.testing.assert_allclose(y + c @ ds + d @ dx, y_moved, atol=CLOSE)


def test_eigenvalues_at_the_origin():
    layer = L.SimpleRNN(4, use_bias=False, name="rnn", return_sequences=True, **D)
    model = made(layer)
    found, _ = compute(model, {"x": np.zeros((1, 1, 2)), "state.rnn.h": np.zeros((1, 4))})
    kernel, recurrent = layer.get_weights()
    np.testing.assert_allclose(found["A"][0, 0], recurrent.T, atol=CLOSE)
    np.testing.assert_allclose(found["B"][0, 0], kernel.T, atol=CLOSE)
    eigenvalues = [np.sort_complex(np.linalg.eigvals(m)) for m in (found["A"][0, 0], recurrent)]
    np.testing.assert_allclose(*eigenvalues, atol=CLOSE)


def test_given_states_are_a_batch():
    model = Model("m", NETWORKS["last step"]())
    inputs = draw(model, batch=1, time=4)
    along, _ = compute(model, inputs)
    names = [s.name for s in model.signature.states]
    points = dict(zip(names, (s[0] for s in trajectory(model, inputs)), strict=True))
    at, job = compute(model, {"x": inputs["x"][0, :, None], **points})
    assert job.rows == 4
    for part in PARTS:
        np.testing.assert_allclose(at[part][:, 0], along[part][0], atol=CLOSE)


@pytest.mark.parametrize("kind", ["gru", "gru and lstm", "between"])
@pytest.mark.parametrize("time", [1, 3])
def test_compiled(kind, time):
    """With more rows than units, where XLA gets its own way to transpose."""
    model = Model("m", NETWORKS[kind]())
    inputs = draw(model, batch=12 // time, time=time)
    plain, compiled = (compute(model, inputs, programs=Programs(compiled=n))[0] for n in (0, 1))
    for part in PARTS:
        np.testing.assert_allclose(compiled[part], plain[part], atol=CLOSE)


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("states", [False, True])
def test_chunks(time, states, monkeypatch):
    model = Model("m", NETWORKS["skipping"]())
    inputs = draw(model, batch=3, time=time, states=states)
    whole, job = compute(model, inputs)
    assert job.info["chunks"] == 1
    monkeypatch.setattr(transitions, "CHUNK_BYTES", 6_000)
    works = []
    parts, job = compute(model, inputs, works=works)
    assert job.info["chunks"] > 1
    chunks = works[time > 1 :]
    assert sum(work.rows for work in chunks) == 3 * time
    assert len({work.rows for work in chunks[:-1]}) == 1
    for part in PARTS:
        assert parts[part].shape == whole[part].shape
        np.testing.assert_allclose(parts[part], whole[part], atol=CLOSE)


def with_two_outputs():
    x, other = keras.Input((None, 2), name="x", **D), keras.Input((2,), name="other", **D)
    y = L.GRU(3, return_sequences=True, **D)(x)
    return randomise(keras.Model([x, other], [y, L.Dense(2, **D)(other)]))


@pytest.mark.parametrize("budget", [transitions.CHUNK_BYTES, 3000])
def test_an_input_without_time(budget, monkeypatch):
    model, alone = Model("m", with_two_outputs()), Model("m", NETWORKS["gru"]())
    monkeypatch.setattr(transitions, "CHUNK_BYTES", budget)
    inputs = {"x": RANDOM.normal(size=(2, 3, 2)), "other": RANDOM.normal(size=(2, 2))}
    found, job = compute(model, inputs, parts=["A", "B"])
    assert (job.info["chunks"] == 1) == (budget > 3000)
    assert found["A"].shape == (2, 3, 3, 3)
    assert found["B"].shape == (2, 3, 3, 2)
    with pytest.raises(NotDifferentiable, match=r"one output, but there are 2: .*ask for the parts A and B"):
        compute(model, inputs)
    assert transitions.OPERATOR.example(model)["parts"] == ["A", "B"]
    assert "parts" not in transitions.OPERATOR.example(alone)
