"""A long sequence piece by piece through the real server is the whole sequence, whatever the pieces."""

from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
from fastapi.testclient import TestClient

import pushforward
from app.main import create_app
from app.settings import Settings
from models.gradcheck import compare
from pushforward.errors import InvalidArray, InvalidRequest, PushforwardError, UnknownName

BATCH, TIME = 2, 20
# 2 x 10, 4 x 5, 20 x 1, pieces that differ in length, and one piece.
SIZES = [10, 5, 1, 7, 50]
SLOW = pytest.mark.slow  # Each model has its programs traced, which takes seconds.
CLOSE = {"float64": 1e-12, "float32": 1e-5}


BUILT_IN = {True: ("stacked-rnn", "bi-gru"), False: ("seed-gru", "lstm-last")}
QUICK = {*BUILT_IN[True], "constant", "steps", "tokens", "causal-conv"}


def archives():
    """What makes each model."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(2)
    wide = {"dtype": "float64"}

    def sequence(*axes, **options):
        return keras.Input((None, *axes), **options)

    def stack():
        cells = [layers.GRUCell(3, **wide), layers.SimpleRNNCell(2, **wide)]
        return [
            sequence(3, **wide),
            layers.LSTM(4, return_sequences=True, name="lstm", **wide),
            layers.RNN(layers.StackedRNNCells(cells, **wide), return_sequences=True, name="cells", **wide),
            layers.Dense(2, activation="tanh", name="dense", **wide),
        ]

    def constant():
        x, c = sequence(3, name="series", **wide), keras.Input((2,), name="constant", **wide)
        last = layers.LSTM(4, name="lstm", **wide)(x)
        return keras.Model([x, c], layers.Dense(2, name="dense", **wide)(layers.Concatenate(**wide)([last, c])))

    def wired():
        x = sequence(3, **wide)
        run, state = layers.GRU(3, return_sequences=True, return_state=True, **wide)(x)
        return keras.Model(x, layers.GRU(3, name="wired", **wide)(run, initial_state=state))

    def merged():
        a, b = sequence(3), sequence(3)
        return keras.Model([a, b], layers.GRU(2, return_sequences=True)(layers.Add()([a, b])))

    def tokens():
        embedding = layers.Embedding(5, 3, name="embedding", **wide)
        return [sequence(dtype="int32"), embedding, layers.GRU(4, return_sequences=True, name="gru", **wide)]

    def causal_conv():
        return [sequence(3), layers.Conv1D(4, 3, padding="causal", name="context"), layers.GRU(2)]

    return {
        "constant": constant,
        "steps": lambda: [sequence(3, **wide), layers.Dense(2, activation="tanh", name="dense", **wide)],
        "tokens": tokens,
        "causal-conv": causal_conv,
        "stack": stack,
        "images": lambda: [sequence(4, 4, 1, **wide), layers.ConvLSTM2D(2, 1, name="conv", **wide)],
        "masked": lambda: [sequence(3), layers.Masking(name="mask"), layers.GRU(2, return_sequences=True)],
        "wired": wired,
        "fixed": lambda: [keras.Input((20, 3)), layers.GRU(2, return_sequences=True)],
        "merged": merged,
    }


@pytest.fixture(scope="module")
def client_of(tmp_path_factory):
    """A client of the server that has a model: of one for the quick tests, of another for the slow ones."""
    with ExitStack() as stack:

        @cache
        def client(quick):
            import keras

            directory = tmp_path_factory.mktemp("archives")
            for name, make in archives().items():
                if (name in QUICK) == quick:
                    made = make()
                    model = keras.Sequential(made) if isinstance(made, list) else made
                    model.save(directory / f"{name}.keras")
            settings = Settings(
                models=BUILT_IN[quick], watch_dir=directory, warm=False, compiled_programs=0, timeout_s=300
            )
            server = stack.enter_context(TestClient(create_app(settings)))
            return stack.enter_context(pushforward.Client("http://testserver", transport=server._transport))

        yield lambda name: client(name in QUICK)


@pytest.fixture
def client(client_of):
    return client_of("stacked-rnn")


class Case:
    """A model at a random point, with random directions over every name of its signature."""

    def __init__(self, client, name):
        self.client, self.name, self.model = client, name, client.model(name)
        self.rng = np.random.default_rng(5)
        inputs, states, hidden, parameters, outputs = (
            self.model[group] for group in ("inputs", "states", "hidden", "parameters", "outputs")
        )
        self.inputs = self.draw(inputs) | self.draw(states)
        moving = [a for a in (*inputs, *states, *hidden, *parameters) if a["differentiable"]]
        self.tangents = self.draw(moving)
        self.outputs = [a["name"] for a in (*outputs, *states, *hidden)]
        self.cotangents = self.draw([*outputs, *states, *hidden])
        self.wrt = list(self.tangents)
        self.close = CLOSE[self.model["dtype"]]

    def draw(self, specs, *front):
        sizes = {"batch": BATCH, "time": TIME}
        found = {}
        for spec in specs:
            shape = [sizes[a] if n is None else n for n, a in zip(spec["shape"], spec["axes"], strict=True)]
            numbers = self.rng.normal(size=[*front, *shape]) * 0.5
            integers = np.dtype(spec["dtype"]).kind == "i"
            found[spec["name"]] = self.rng.integers(0, 5, shape) if integers else numbers.astype(spec["dtype"])
        return found

    def chunked(self, size):
        return self.client.chunked(self.name, self.inputs, size=size)

    def whole_jvp(self, tangents=None, **options):
        return self.client.jvp(self.name, self.inputs, tangents or self.tangents, outputs=self.outputs, **options)

    def whole_vjp(self, cotangents=None, **options):
        return self.client.vjp(self.name, self.inputs, cotangents or self.cotangents, wrt=self.wrt, **options)


OTHERS = ["seed-gru", "lstm-last", "stack", "tokens", "images", "steps"]
NAMES = ["stacked-rnn", "constant", *(pytest.param(name, marks=SLOW) for name in OTHERS)]


@pytest.fixture(scope="module")
def cases(client_of):
    return cache(lambda name: Case(client_of(name), name))


@pytest.fixture(params=NAMES, scope="module")
def case(request, cases):
    return cases(request.param)


@pytest.mark.parametrize("size", SIZES)
def test_pieces_are_the_whole(case, size):
    """With respect to sequences, initial states, hidden states and weights at once, of outputs and states."""
    long = case.chunked(size)
    assert long.pieces == -(-TIME // size)
    pushed, whole = long.jvp(case.tangents, outputs=case.outputs).collect(), case.whole_jvp()
    assert compare(pushed.outputs, whole.outputs) <= case.close
    assert compare(pushed.tangents, whole.tangents) <= case.close
    assert pushed.steps == slice(0, TIME)
    evaluated = long.evaluate(outputs=case.outputs).collect()
    assert compare(evaluated.outputs, whole.outputs) <= case.close
    pulled = long.vjp(case.cotangents, wrt=case.wrt)
    assert compare(pulled.cotangents, case.whole_vjp().cotangents) <= case.close
    assert (pulled.steps, pulled.pieces, pulled.model, pulled.version) == (TIME, long.pieces, case.name, 1)


def test_without_the_cotangent_of_the_state_gradients_differ(cases):
    """What a stateful model fed in halves gives: the outputs of the whole, and other gradients."""
    case = cases("stacked-rnn")
    weights = [name for name in case.wrt if name.startswith("param.")]
    cotangents = {"y": case.cotangents["y"]}
    states = {n: a for n, a in case.inputs.items() if n.startswith("state.")}
    found, outputs = dict.fromkeys(weights, 0.0), []
    for steps in (slice(0, 10), slice(10, 20)):
        inputs = {"x": case.inputs["x"][:, steps], **states}
        pulled = case.client.vjp(case.name, inputs, {"y": cotangents["y"][:, steps]}, wrt=weights)
        found = {n: found[n] + pulled.cotangents[n] for n in weights}
        outputs.append(pulled.outputs["y"])
        states = case.client.evaluate(case.name, inputs, outputs=list(states)).outputs
    whole = case.client.vjp(case.name, case.inputs, cotangents, wrt=weights)
    assert compare({"y": np.concatenate(outputs, 1)}, {"y": whole.outputs["y"]}) <= case.close
    assert all(compare({n: found[n]}, {n: whole.cotangents[n]}) > 1e-3 for n in weights if "rnn_1" in n)
    carried = case.chunked(10).vjp(cotangents, wrt=weights).cotangents
    assert compare(carried, whole.cotangents) <= case.close


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stacked-rnn", "stack"])
def test_stacked_directions(cases, name):
    case = cases(name)
    names = ("inputs", "states", "hidden", "parameters")
    tangents = case.draw([a for group in names for a in case.model[group]], 3)
    cotangents = case.draw([a for group in ("outputs", "states", "hidden") for a in case.model[group]], 3)
    # Those that are not stacked count for every direction.
    tangents["x"], cotangents["y"] = tangents["x"][0], cotangents["y"][0]
    pushed = case.chunked(7).jvp(tangents, outputs=case.outputs).collect()
    assert compare(pushed.tangents, case.whole_jvp(tangents).tangents) <= case.close
    pulled = case.chunked(7).vjp(cotangents, wrt=case.wrt)
    assert compare(pulled.cotangents, case.whole_vjp(cotangents).cotangents) <= case.close


def pieces_of(array, axis=1):
    return np.split(array, [3, 11], axis)


class Sliced:
    """What is only ever sliced, like a data set on a disk."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def __getitem__(self, item):
        return self._array[item].tolist()


def test_wherever_pieces_come_from(cases, tmp_path):
    case = cases("stacked-rnn")
    x, v, u = case.inputs["x"], case.tangents["x"], case.cotangents["y"]
    pushed, pulled = case.client.jvp(case.name, x, v), case.client.vjp(case.name, x, u)
    xs, vs, us = pieces_of(x), pieces_of(v), pieces_of(u)
    np.save(tmp_path / "x.npy", x)
    by_function = {"pieces": 3}
    for inputs, options, tangents in (
        (iter(xs), {}, iter(vs)),
        (iter(xs), {}, v),
        (iter(xs), {}, {"x": vs.__getitem__}),
        (xs.__getitem__, by_function, vs.__getitem__),
        (x.tolist(), {"size": 9}, v.tolist()),
        (Sliced(x), {"size": 9}, Sliced(v)),
        (np.load(tmp_path / "x.npy", mmap_mode="r"), {"size": 9}, v),
    ):
        long = case.client.chunked(case.name, {"x": inputs}, **options)
        found = long.jvp(tangents).collect()
        assert compare({"y": found.tangents["y"]}, {"y": pushed.tangents["y"]}) <= case.close
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", x.dtype, x.shape)
    for inputs, options, cotangents in (
        (xs.__getitem__, by_function, {"y": us.__getitem__}),
        (xs.__getitem__, by_function, u),
        (xs.__getitem__, by_function, lambda piece: {"y": us[piece.index]}),
        (x, {"size": 9}, Sliced(u)),
    ):
        long = case.client.chunked(case.name, inputs, **options)
        out[:] = np.nan
        assert long.vjp(cotangents, out={"x": out}).cotangents["x"] is out
        assert compare({"x": out}, {"x": pulled.cotangents["x"]}) <= case.close


def test_pieces_come_one_by_one(cases):
    case = cases("stacked-rnn")
    made = []

    def piece(index):
        made.append(index)
        return pieces_of(case.inputs["x"])[index]

    long = case.client.chunked(case.name, piece, pieces=3)
    found = long.evaluate(outputs=["hidden.rnn_2.h", "state.rnn_2.h"])
    assert not made
    first = next(found)
    assert (made, first.index, first.steps, first.tangents) == ([0], 0, slice(0, 3), {})
    np.testing.assert_array_equal(first.outputs["state.rnn_2.h"], first.outputs["hidden.rnn_2.h"][:, -1])
    assert found.collect().steps == slice(3, TIME)
    with pytest.raises(ValueError, match="no piece left"):
        found.collect()


def test_the_gradient_of_a_loss(cases):
    case = cases("stacked-rnn")
    x, target = case.inputs["x"], case.cotangents["y"]
    outputs = case.client.evaluate(case.name, x).outputs["y"]
    whole = case.client.vjp(case.name, x, 2 * (outputs - target), wrt=case.wrt[-3:])
    shown = []

    def bars(**options):
        import tqdm

        shown.append(tqdm.tqdm(disable=None, **options))
        return shown[-1]

    found = case.client.chunked(case.name, x, size=6).vjp(
        lambda piece: {"y": 2 * (piece.outputs["y"] - target[:, piece.steps])}, wrt=case.wrt[-3:], progress=bars
    )
    assert compare(found.cotangents, whole.cotangents) <= case.close
    assert shown[0].total == 8


def test_a_loss_of_the_last_step_counts_once(cases):
    case = cases("constant")
    whole = case.client.vjp(case.name, case.inputs, case.cotangents["y"], wrt=case.wrt)
    found = case.chunked(6).vjp(lambda piece: {"y": case.cotangents["y"]}, wrt=case.wrt)
    assert compare(found.cotangents, whole.cotangents) <= case.close


def test_a_piece_without_cotangents_has_zeros(cases):
    case = cases("steps")
    out = np.full_like(case.inputs["x"], np.nan)

    def cotangents(piece):
        return {"y": case.cotangents["y"][:, piece.steps]} if piece.index == 1 else {}

    found = case.chunked(5).vjp(cotangents, wrt=["x", "param.dense.kernel"], out={"x": out}).cotangents
    masked = np.zeros_like(case.cotangents["y"])
    masked[:, 5:10] = case.cotangents["y"][:, 5:10]
    whole = case.client.vjp(case.name, case.inputs, masked, wrt=["x", "param.dense.kernel"])
    assert compare(found, whole.cotangents) <= case.close
    with pytest.raises(InvalidRequest, match=r"^cotangents: expected at least one"):
        case.chunked(5).vjp(lambda _: {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bi-gru", r"layer '.*' \(Bidirectional\) looks beyond its own time step"),
        ("causal-conv", r"layer 'context' \(Conv1D\) looks beyond"),
        pytest.param("masked", "layer 'mask'", marks=SLOW),
        pytest.param("wired", "the initial state of layer 'wired' comes from another layer", marks=SLOW),
        pytest.param("merged", "2 inputs with a time axis", marks=SLOW),
        pytest.param("fixed", "no input has a free time axis", marks=SLOW),
    ],
)
def test_models_that_can_t_be_cut_are_refused(client_of, name, reason):
    with pytest.raises(InvalidRequest, match=reason):
        client_of(name).chunked(name, np.zeros((2, 20, 3)), size=5)


X = np.zeros((2, 20, 4))


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda c: c("stacked-rnn", X), InvalidRequest, "^size: expected a positive number: .* got nothing"),
        (lambda c: c("stacked-rnn", X, size=0), InvalidRequest, "^size: .* got 0"),
        (lambda c: c("stacked-rnn", X, size=5, pieces=4), InvalidRequest, "^pieces: expected nothing: .* got 4"),
        (lambda c: c("stacked-rnn", iter([X]), size=5), InvalidRequest, "^size: expected nothing"),
        (lambda c: c("stacked-rnn", lambda i: X), InvalidRequest, "^pieces: expected a positive number"),
        (lambda c: c("stacked-rnn", {"state.rnn_1.h": X}, size=5), InvalidArray, r"^inputs\.x: expected the sequence"),
        (lambda c: c("stacked-rnn", X[0], size=5), InvalidArray, r"^inputs\.x: expected 3 axes, got 2"),
        (lambda c: c("stacked-rnn", X[None], size=5), InvalidArray, r"^inputs\.x: expected 3 axes, got 4"),
        (lambda c: list(c("stacked-rnn", X[:, :0], size=5).evaluate()), InvalidArray, "one step or more"),
        (lambda c: c("stacked-rnn", X, size=5).evaluate(outputs=["z"]), UnknownName, r"^outputs\[0\]: .*'z'.* y"),
        (lambda c: c("stacked-rnn", X, size=5).jvp({}), InvalidRequest, "^tangents: expected at least one"),
        (lambda c: c("stacked-rnn", X, size=5).jvp({"z": X}), UnknownName, r"^tangents\.z: "),
        (lambda c: next(c("stacked-rnn", X, size=5).jvp(X[:, :19])), InvalidArray, "expected 20 steps, .* got 19"),
        (
            lambda c: list(c("stacked-rnn", X, size=5).jvp(iter([X[:, :5]] * 3))),
            InvalidArray,
            r"^tangents\.x: expected 5 steps in piece 3, as the inputs have, got 0",
        ),
        (
            lambda c: list(c("stacked-rnn", X, size=10).jvp(iter([X[:, :10]] * 3))),
            InvalidArray,
            "expected 20 steps, as the inputs have, got more",
        ),
        (
            lambda c: list(c("stacked-rnn", iter([X, X]), size=None).jvp(np.zeros((2, 41, 4)))),
            InvalidArray,
            "expected 40 steps, as the inputs have, got more",
        ),
        (lambda c: c("stacked-rnn", iter([X])).vjp(X), InvalidRequest, r"^inputs\.x: an iterator is read once"),
        (lambda c: c("stacked-rnn", X, size=5).vjp(iter([X])), InvalidRequest, r"^cotangents\.y: an iterator"),
        (lambda c: c("stacked-rnn", X, size=5).vjp({}), InvalidRequest, "^cotangents: expected at least one"),
        (lambda c: c("stacked-rnn", X, size=5).vjp({"z": X}), UnknownName, r"^cotangents\.z: "),
        (lambda c: c("stacked-rnn", X, size=5).vjp(X[:, :19]), InvalidArray, "expected 20 steps, .* got 19"),
        (lambda c: c("stacked-rnn", X, size=5).vjp(X, wrt=["z"]), UnknownName, r"^wrt\[0\]: "),
        (lambda c: c("tokens", X[:, :, 0].astype(int), size=5).vjp(X), InvalidRequest, "^wrt: expected names of st"),
        (lambda c: c("stacked-rnn", X, size=5).vjp(X, out={"z": X}), InvalidRequest, r"^out: .*\['x'\]; got \['z'\]"),
        (
            lambda c: c("stacked-rnn", X, size=5).vjp(X, out={"x": X.astype("f4")}),
            ValueError,
            r"out\.x: expected shape \(2, 20, 4\) of float64, got shape \(2, 20, 4\) of float32",
        ),
    ],
)
def test_mistakes_are_told(client, ask, kind, message):
    with pytest.raises(kind, match=message):
        ask(client.chunked)


def test_an_iterator_is_read_once(client):
    long = client.chunked("stacked-rnn", iter(np.split(X, 2, 1)))
    assert len(list(long.evaluate())) == 2
    with pytest.raises(InvalidRequest, match="another sweep begins here"):
        next(long.evaluate())


def test_an_error_tells_its_piece(client):
    pieces = [X[:, :5], X[:, :5, :3]]
    with pytest.raises(PushforwardError) as caught:
        client.chunked("stacked-rnn", iter(pieces)).evaluate().collect()
    assert caught.value.path == "inputs.x"
    assert caught.value.__notes__ == ["in piece 1, steps 5 to 10"]


def test_all_pieces_go_to_one_version(client, monkeypatch):
    asked = []
    call = client.call
    monkeypatch.setattr(
        client,
        "call",
        lambda operator, model, *args, **more: (asked.append((operator, model)), call(operator, model, *args, **more))[
            1
        ],
    )
    client.chunked("stacked-rnn", X, size=10).vjp(X)
    assert asked == [(operator, "stacked-rnn@1") for operator in ("evaluate", "vjp", "vjp")]
