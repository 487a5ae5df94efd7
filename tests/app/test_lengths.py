"""`lengths` over HTTP: in every format, refused where they don't fit, and joined with others in the batcher."""

import keras
import numpy as np
import pytest

from app.calls import Call
from app.programs import Programs
from models.model import Model
from models.zoo import bi_gru, lstm_last, seed_gru
from pushforward import Client
from pushforward.wire import Message, codecs
from tests.app.joining import OPERATORS, assert_same, key

X = np.random.default_rng(3).normal(size=(2, 3, 1))
LENGTHS = np.array([2, 0])


@pytest.mark.parametrize("codec", codecs())
def test_an_array_in_every_format(ask, codec):
    found = ask("evaluate", "seed-gru", {"inputs.x": X, "lengths": LENGTHS}, codec=codec)
    alone = ask("evaluate", "seed-gru", {"inputs.x": X[:1, :2]}, codec=codec)
    np.testing.assert_allclose(found.arrays["outputs.y"][:1, :2], alone.arrays["outputs.y"], rtol=0, atol=1e-14)


@pytest.mark.parametrize("codec", ["safetensors", "npz"])
def test_in_the_envelope_of_binary_formats(ask, codec):
    found = ask("evaluate", "seed-gru", {"inputs.x": X}, codec=codec, lengths=[2, 0])
    expected = ask("evaluate", "seed-gru", {"inputs.x": X, "lengths": LENGTHS.astype(np.uint8)}, codec=codec)
    np.testing.assert_array_equal(found.arrays["outputs.y"], expected.arrays["outputs.y"])


def test_not_a_number_in_the_padding(server):
    inputs = {"x": [[[0.5], ["NaN"]], [["Infinity"], ["NaN"]]]}
    body = {"model": "seed-gru", "inputs": inputs, "lengths": [1, 0], "tangents": inputs}
    answer = server.post("/jvp", json=body).json()
    assert answer["info"]["nonfinite"] == 0
    assert not np.any(answer["tangents"]["y"][1])


@pytest.mark.parametrize(
    ("lengths", "path", "slug", "text"),
    [
        ([2], "lengths", "invalid-array", "one length per row, shape (2,), got shape (1,)"),
        ([[2, 3]], "lengths", "invalid-array", "got shape (1, 2)"),
        ([2, -1], "lengths[1]", "invalid-array", "from 0 to 3, the size of the time axis, got -1"),
        ([4, 1], "lengths[0]", "invalid-array", "got 4"),
        ([2.0, 1.5], "lengths", "invalid-array", "expected integers"),
        ([True, False], "lengths", "invalid-array", "expected integers"),
        ([2, None], "lengths", "invalid-array", "got null"),
        ("two", "lengths", "invalid-array", "expected numbers"),
    ],
    ids=str,
)
def test_lengths_that_do_not_fit(server, lengths, path, slug, text):
    for body in ({}, {"tangents": {"x": X.tolist()}}):
        body |= {"model": "seed-gru", "inputs": {"x": X.tolist()}, "lengths": lengths}
        answer = server.post("/jvp" if "tangents" in body else "/evaluate", json=body)
        problem = answer.json()
        assert (answer.status_code, problem["path"]) == (422, path), problem
        assert problem["type"] == f"/problems/{slug}"
        assert text in problem["detail"]


def test_lengths_that_are_given_twice(server):
    codec = codecs()["safetensors"]
    content = codec.encode(Message({"model": "seed-gru", "lengths": [1, 2]}, {"inputs.x": X, "lengths": LENGTHS}))
    answer = server.post("/evaluate", content=content, headers={"Content-Type": codec.media_type})
    assert answer.status_code == 422
    assert "send one of them" in answer.json()["detail"]


def test_a_model_with_a_layer_that_padding_gets_past():
    model = Model("flat", keras.Sequential([keras.Input((3, 1)), keras.layers.Flatten(name="flat")]))
    x = X.astype("float32")

    def prepare(lengths):
        return OPERATORS["evaluate"].prepare(model, Call("flat", "evaluate", {"inputs": {"x": x}}, lengths=lengths))

    with pytest.raises(Exception, match=r"layer 'flat' \(Flatten\).*send rows of one length"):
        prepare(LENGTHS)
    np.testing.assert_array_equal(prepare(np.array([3, 3])).work.feeds["inputs.x"], x)


def test_sequences_of_several_lengths_and_none():
    a, b = keras.Input((None, 1), name="a"), keras.Input((None, 1), name="b")
    two = Model("two", keras.Model([a, b], keras.layers.Add()([keras.layers.GRU(2)(t) for t in (a, b)])))
    arrays = {"inputs": {"a": X.astype("float32"), "b": X[:, :2].astype("float32")}}
    with pytest.raises(Exception, match=r"inputs.a has 3 steps, inputs.b has 2"):
        OPERATORS["evaluate"].prepare(two, Call("two", "evaluate", arrays, lengths=LENGTHS))
    flat = Model("flat", keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]))
    arrays = {"inputs": {"x": X[:, 0].astype("float32")}}
    with pytest.raises(Exception, match="no input with a time axis"):
        OPERATORS["evaluate"].prepare(flat, Call("flat", "evaluate", arrays, lengths=LENGTHS))


def test_the_description_tells(server):
    for name in ("seed-gru", "bi-gru", "lstm-last", "stacked-rnn"):
        found = server.get(f"/models/{name}").json()
        assert (found["ragged"], found["ragged_obstacle"]) == (True, None)


def test_the_description_names_the_layer():
    network = keras.Sequential([keras.Input((3, 1)), keras.layers.Flatten(name="flat")])
    found = Model("flat", network).signature.describe()
    assert found["ragged"] is False
    assert "layer 'flat' (Flatten)" in found["ragged_obstacle"]


def test_the_client(server):
    with Client("http://testserver", transport=server._transport) as client:
        found = client.jvp("seed-gru", X, np.ones_like(X), lengths=[2, 0])
        block = client.jacobian("seed-gru", X, of="y[-1, 0]", wrt="x", lengths=LENGTHS)
        pulled = client.vjp("seed-gru", X, np.ones_like(X), lengths=(2, 0))
        alone = client.jacobian("seed-gru", X[:1, :2], of="y[-1, 0]", wrt="x")
    assert not found.tangents["y"][1].any()
    assert not pulled.cotangents["x"][0, 2:].any()
    np.testing.assert_allclose(block.jacobian[0, :2], alone.jacobian[0], rtol=0, atol=1e-14)


def test_a_kind_of_requests_is_looked_at_each_time(server):
    """What was found out for the lengths of one request is not taken for those of the next."""
    for lengths, status in (([2, 0], 200), ([3, 3], 200), ([4, 0], 422), ([2, 1], 200)):
        body = {"model": "seed-gru", "inputs": {"x": X.tolist()}, "lengths": lengths}
        answer = server.post("/evaluate", json=body)
        assert answer.status_code == status
        if status == 200:
            y = np.array(answer.json()["outputs"]["y"])
            np.testing.assert_array_equal(y[0, lengths[0] :], np.repeat(y[0, lengths[0] - 1 :][:1], 3 - lengths[0], 0))


@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
@pytest.mark.parametrize(
    "entry",
    [bi_gru, *(pytest.param(e, marks=pytest.mark.slow) for e in (lstm_last, seed_gru))],
    ids=lambda e: e.MODEL.name,
)
def test_joined_with_others_of_other_lengths(entry, operator):
    rng = np.random.default_rng(5)
    model, graphs = entry.MODEL.load(), Programs(compiled=0)
    signature = model.signature
    (x,), (y,) = signature.inputs, signature.outputs
    state = signature.states[-1]

    def work(rows, time):
        sizes = {"batch": rows, "time": time}

        def array(spec):
            shape = [sizes[axis] if n is None else n for n, axis in zip(spec.shape, spec.axes, strict=True)]
            return rng.normal(size=shape).astype(spec.dtype)

        arrays = {"inputs": {"x": array(x), state.name: array(state)}}
        arrays |= {"jvp": {"tangents": {"x": array(x)}}, "vjp": {"cotangents": {y.name: array(y)}}}.get(operator, {})
        options = {"wrt": ["x", state.name]} if operator == "vjp" else {"outputs": [y.name, state.name]}
        lengths = rng.integers(0, time + 1, rows)
        lengths[0] = 0
        call = Call(model.name, operator, arrays, options, lengths=lengths)
        return OPERATORS[operator].prepare(model, call).work

    works = [work(2, 9), work(1, 12), work(3, 10)]
    assert len({key(w) for w in works}) == 1
    found, _ = graphs.run_group(model, operator, works)
    for w, part in zip(works, found, strict=True):
        assert_same(part, graphs.run(model, operator, w)[0], model.dtype)
