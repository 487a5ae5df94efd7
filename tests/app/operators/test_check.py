"""The check of an answer passes where the answer is right, and is tested itself: a wrong answer must fail."""

import itertools

import keras
import numpy as np
import pytest

from app.calls import Call
from app.operators import _check, transitions
from app.operators._sides import Side
from app.operators._slices import parse, select
from models.gradcheck import TOLERANCES
from models.model import Model

# They trace many models, which takes minutes: `make test-slow`.
pytestmark = pytest.mark.slow

L = keras.layers
BATCH, TIME, K = 2, 4, 3
ZOO = ["bi-gru", "lstm-last", "seed-gru", "stacked-rnn"]


@pytest.fixture
def solve(engine, drive):
    """Answer a call without HTTP: `answer, check = solve(model, "jvp", inputs=..., tangents=...)`."""

    def solve(model, operator, options=None, **arrays):
        call = Call(model.name, operator, arrays, {"check": True, **(options or {})})
        job = engine.operators[operator].prepare(model, call)
        items, _ = drive(model, job.steps())
        if job.whole is None:
            (answer,) = items
        else:
            flat = np.concatenate([part.reshape(-1) for part in items])
            answer = {job.whole.field: flat.reshape(job.whole.shape)}
        return answer, lambda changed: drive(model, job.check(changed))[1]

    return solve


def draw(specs, *front, seed=7):
    rng, sizes = np.random.default_rng(seed), {"batch": BATCH, "time": TIME}
    shapes = {s.name: [sizes.get(a, n) for a, n in zip(s.axes, s.shape, strict=True)] for s in specs}
    return {s.name: rng.normal(size=(*front, *shapes[s.name])).astype(s.dtype) for s in specs}


def request(model, operator, *front):
    """Draw a request over every name of the signature."""
    s = model.signature
    arrays, sources = {"inputs": draw((*s.inputs, *s.states))}, (*s.inputs, *s.states, *s.hidden, *s.parameters)
    targets = (*s.outputs, *s.states, *s.hidden)
    if operator == "jvp":
        return {"outputs": [a.name for a in targets]}, arrays | {"tangents": draw(sources, *front, seed=8)}
    if operator == "vjp":
        return {"wrt": [a.name for a in sources]}, arrays | {"cotangents": draw(targets, *front, seed=8)}
    return {}, arrays


def wrong(answer, factor=1.001):
    field = {"tangents", "cotangents", "jacobian"}
    return {p: a * a.dtype.type(factor) if p.partition(".")[0] in field else a for p, a in answer.items()}


def passes(found, dtype):
    tolerances = TOLERANCES[dtype]
    assert found["tolerance"] == {"adjoint": tolerances.adjoint, "difference": tolerances.difference}
    assert found["adjoint"] <= tolerances.adjoint
    assert found["difference"] <= tolerances.difference
    assert found["step"] > 0
    assert found["passed"] is True
    return True


def fails(found):
    assert found["adjoint"] > found["tolerance"]["adjoint"]
    assert found["difference"] > found["tolerance"]["difference"]
    assert found["passed"] is False
    return True


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("operator", ["jvp", "vjp"])
@pytest.mark.parametrize("front", [(), (K,)], ids=["single", "stacked"])
def test_right_products_pass_and_wrong_ones_fail(engine, solve, name, operator, front):
    model = engine.models[name]
    options, arrays = request(model, operator, *front)
    answer, check = solve(model, operator, options, **arrays)
    assert passes(check(answer), model.dtype)
    assert fails(check(wrong(answer, 1.001 if model.dtype == "float64" else 2.0)))


@pytest.mark.parametrize("operator", ["jvp", "vjp"])
@pytest.mark.parametrize("strategy", ["unrolled", "reverse"])
def test_every_strategy_is_checked(engine, solve, operator, strategy):
    model = engine.models["stacked-rnn"]
    options, arrays = request(model, operator)
    answer, check = solve(model, operator, options | {"strategy": strategy}, **arrays)
    assert passes(check(answer), model.dtype)
    assert fails(check(wrong(answer)))


@pytest.mark.parametrize("operator", ["jvp", "vjp"])
def test_one_wrong_direction_among_stacked_ones_is_seen_however_short_it_is(engine, solve, operator):
    model = engine.models["stacked-rnn"]
    options, arrays = request(model, operator, K)
    field = "tangents" if operator == "jvp" else "cotangents"
    scales = np.array([1e6, 1.0, 1e-6])
    arrays[field] = {n: a * scales.reshape(K, *[1] * (a.ndim - 1)) for n, a in arrays[field].items()}
    answer, check = solve(model, operator, options, **arrays)
    assert passes(check(answer), model.dtype)
    one = {p: a.copy() for p, a in answer.items()}
    for path, array in one.items():
        if path.startswith(field):
            array[2] *= 1.001
    assert fails(check(one))


BLOCKS = {
    "bi-gru": [("y[-1]", "x[:2]"), ("y[1, 0]", "param.bi.forward.kernel[0]")],
    "lstm-last": [("y", "x[-2:, 3]"), ("state", "state"), ("state.lstm.c", "hidden.lstm.h[::-1, :3]")],
    "seed-gru": [
        ("hidden.gru_2.h[::2]", "x[:3]"),
        ("state", "state.gru_1"),
        ("hidden.gru_2.h[1:3, 5]", "param.gru_1.kernel"),
    ],
    "stacked-rnn": [
        ("y", "x"),
        ("y[-1]", "param.rnn_1.kernel"),
        ("state", "state"),
        ("y[1:3, ::-2]", "hidden.rnn_1.h"),
    ],
}


CASES = [(n, *pair) for n, pairs in BLOCKS.items() for pair in pairs]


@pytest.mark.parametrize(
    ("name", "of", "wrt", "mode"), [(*case, ("forward", "reverse")[i % 2]) for i, case in enumerate(CASES)]
)
def test_right_blocks_pass_and_wrong_ones_fail(engine, solve, name, of, wrt, mode):
    model = engine.models[name]
    _, arrays = request(model, "jacobian")
    answer, check = solve(model, "jacobian", {"of": of, "wrt": wrt, "mode": mode}, **arrays)
    assert passes(check(answer), model.dtype)
    assert fails(check(wrong(answer, 1.001 if model.dtype == "float64" else 2.0)))
    # Numbers that are large enough, but in the wrong places.
    assert fails(check({"jacobian": np.roll(answer["jacobian"], 1, 0) + 0.1}))


def test_blocks_of_single_steps_are_checked_together(engine, drive):
    """The matrices of a state-space model, whose steps are a batch."""
    model = engine.models["stacked-rnn"]
    s = model.signature
    inputs = draw((*s.inputs, *s.states))
    inputs["x"] = inputs["x"][:, :1]
    job = transitions.OPERATOR.prepare(model, Call(model.name, "transitions", {"inputs": inputs}))
    (answer,), _ = drive(model, job.steps())

    def side(name, arrays, axes, sizes):
        return Side(tuple(arrays), select(parse(name, "of"), axes, sizes, "of"), batched=True, timed=False)

    units = sum(a.shape[-1] for a in s.states)
    state = side("state", s.states, ["unit"], [units])
    x, y = (side(a.name, [a], ["time", "feature"], [1, 4]) for a in (s.inputs[0], s.outputs[0]))
    blocks = {"A": (state, state), "B": (state, x), "C": (y, state), "D": (y, x)}
    feeds = {f"inputs.{n}": a for n, a in inputs.items()}
    check = _check.of_blocks(model, feeds, blocks)
    assert passes(drive(model, check(answer))[1], model.dtype)
    for part in blocks:
        assert fails(drive(model, check({**answer, part: answer[part] * 1.001}))[1]), part


_NAMES = itertools.count()


def made(network):
    # Programs are kept by the models' names.
    return Model(f"made-{next(_NAMES)}", network)


def sequence_model(*layers, features=3, dtype="float64"):
    keras.utils.set_random_seed(3)
    return made(keras.Sequential([keras.Input((None, features), dtype=dtype), *layers]))


def masked_models():
    def sequential():
        return sequence_model(L.Masking(0.5, dtype="float64"), L.GRU(4, return_sequences=True, dtype="float64"))

    def beside():
        keras.utils.set_random_seed(3)
        x = keras.Input((None, 3), dtype="float64")
        h = L.GRU(3, return_sequences=True, dtype="float64")(L.Masking(0.5, dtype="float64")(x))
        return made(keras.Model(x, L.Add(dtype="float64")([h, x])))

    def deep():
        first = L.Dense(3, activation="relu", kernel_initializer="identity", dtype="float64")
        return sequence_model(
            first, L.Masking(0.5, dtype="float64"), L.LSTM(4, return_sequences=True, dtype="float64", name="lstm")
        )

    return {"sequential": sequential, "beside": beside, "deep": deep}


@pytest.mark.parametrize("kind", masked_models())
@pytest.mark.parametrize("operator", ["jvp", "vjp", "jacobian"])
def test_masks_are_held_fixed(solve, kind, operator):
    model = masked_models()[kind]()
    inputs = draw(model.signature.inputs)
    inputs["x"] = np.abs(inputs["x"]) + 0.1
    inputs["x"][0, 1] = inputs["x"][1, 2:] = 0.5
    options, arrays = request(model, operator) if operator != "jacobian" else ({"of": "y", "wrt": "x"}, {})
    answer, check = solve(model, operator, options, **{**arrays, "inputs": inputs})
    assert passes(check(answer), model.dtype)
    assert fails(check(wrong(answer)))


def test_numbers_at_a_kink_are_left_to_the_adjoint_identity(solve):
    model = sequence_model(L.SimpleRNN(4, activation="relu", return_sequences=True, dtype="float64", name="rnn"))
    # Without a bias every number of the first sample lies at the kink, none of the other sample does.
    x = np.zeros((2, 3, 3))
    x[1] = np.random.default_rng(0).normal(size=(3, 3))
    v = np.random.default_rng(1).normal(size=(2, 3, 3))
    for operator, options, arrays in (
        ("jvp", {}, {"tangents": {"x": v}}),
        ("vjp", {}, {"cotangents": {"y": np.ones((2, 3, 4))}}),
        ("jacobian", {"of": "y", "wrt": "x"}, {}),
    ):
        answer, check = solve(model, operator, options, inputs={"x": x}, **arrays)
        found = check(answer)
        assert "of 24 numbers have a kink" in found["note"]
        assert passes(found, model.dtype)
        assert fails(check(wrong(answer)))


def test_where_there_are_kinks_only_the_difference_is_null(solve):
    model = sequence_model(L.SimpleRNN(4, activation="relu", dtype="float64", name="rnn"))
    # Weights of one sign, so that all units go up with their input.
    model._network.set_weights([np.abs(w) for w in model._network.get_weights()])
    zeros = {"inputs": {"x": np.zeros((1, 2, 3))}}
    answer, check = solve(model, "jvp", **zeros, tangents={"x": np.ones((1, 2, 3))})
    found = check(answer)
    assert found["difference"] is None
    assert found["adjoint"] == 0.0
    assert found["passed"] is True
    assert found["note"].startswith("4 of 4 numbers have a kink")
    assert check({**answer, "tangents.y": answer["tangents.y"] + 1})["passed"] is False


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("operator", ["jvp", "vjp", "jacobian"])
@pytest.mark.parametrize("where", ["inputs", "directions"])
def test_what_is_not_finite_gives_null_and_a_note(engine, solve, bad, operator, where):
    model = engine.models["stacked-rnn"]
    options, arrays = request(model, operator)
    fields = [f for f in arrays if (f == "inputs") == (where == "inputs")]
    if not fields:
        pytest.skip("a Jacobian has no directions")
    for array in arrays[fields[0]].values():
        array.flat[0] = bad
    options = options or {"of": "y", "wrt": "x"}
    answer, check = solve(model, operator, options, **arrays)
    found = check(answer)
    if where == "directions" or np.isnan(bad):
        assert found["adjoint"] is found["difference"] is None
        assert "not finite" in found["note"]
        assert found["passed"] is False


def test_directions_too_large_to_be_squared_are_not_taken_for_right(engine, solve):
    model = engine.models["stacked-rnn"]
    options, arrays = request(model, "jvp")
    arrays["tangents"] = {n: a * 1e300 for n, a in arrays["tangents"].items()}
    answer, check = solve(model, "jvp", options, **arrays)
    found = check(answer)
    assert found["adjoint"] is None
    assert found["passed"] is False


def test_a_direction_of_zeros_passes(engine, solve):
    model = engine.models["stacked-rnn"]
    x = draw(model.signature.inputs)
    answer, check = solve(model, "jvp", inputs=x, tangents={"x": np.zeros_like(x["x"])})
    found = check(answer)
    assert found["adjoint"] == found["difference"] == 0.0
    assert found["passed"] is True


def test_integers_on_both_sides(solve):
    keras.utils.set_random_seed(5)
    tokens = keras.Input((None,), dtype="int32")
    y = L.LSTM(4, return_sequences=True, dtype="float64", name="lstm")(
        L.Embedding(5, 3, mask_zero=True, dtype="float64", name="embedding")(tokens)
    )
    model = made(keras.Model(tokens, {"best": keras.ops.argmax(y, -1), "y": y}))
    inputs = {"x": np.array([[1, 2, 0, 4], [3, 0, 0, 1]], np.int32)}
    v = {"hidden.embedding.output": np.random.default_rng(0).normal(size=(2, 4, 3))}
    answer, check = solve(model, "jvp", inputs=inputs, tangents=v)
    assert passes(check(answer), "float64")
    answer, check = solve(model, "jvp", {"outputs": ["best"]}, inputs=inputs, tangents=v)
    assert check(answer)["passed"] is True
    wrt = ["hidden.embedding.output", "param.embedding.embeddings", "param.lstm.kernel"]
    answer, check = solve(model, "vjp", {"wrt": wrt}, inputs=inputs, cotangents={"y": np.ones((2, 4, 4))})
    assert passes(check(answer), "float64")


def test_arrays_of_very_different_sizes_are_all_seen(engine, solve):
    model = engine.models["stacked-rnn"]
    options, arrays = request(model, "vjp")
    arrays["inputs"]["state.rnn_2.h"] *= 1e4
    answer, check = solve(model, "vjp", options, **arrays)
    assert passes(check(answer), model.dtype)
    assert fails(check(wrong(answer)))


def test_half_precision_inside_has_its_tolerances(solve):
    keras.utils.set_random_seed(5)
    x = keras.Input((None, 3))
    y = L.Dense(2, dtype="float32")(L.GRU(4, return_sequences=True, dtype="mixed_float16")(x))
    model = made(keras.Model(x, y))
    options, arrays = request(model, "jvp")
    answer, check = solve(model, "jvp", options, **arrays)
    assert passes(check(answer), "float16")


def test_the_check_takes_any_sizes_in_one_program(engine, programs, solve):
    model = engine.models["stacked-rnn"]
    traced = []
    for time in (3, 5):
        x = np.random.default_rng(time).normal(size=(1, time, 4))
        answer, check = solve(model, "jvp", inputs={"x": x}, tangents={"x": x})
        assert passes(check(answer), model.dtype)
        traced.append(len(programs._graphs))
    assert traced[0] == traced[1]


# ----------------------------------------------------------------------------------------------------------- over HTTP

REQUESTS = {
    "jvp": {"tangents": {"x": [[[1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.0, 0.0]]]}},
    "vjp": {"cotangents": {"y": [[[1.0, 0.0, 0.5, 0.0], [0.0, 2.0, 0.0, 0.0]]]}},
    "jacobian": {"of": "y[-1]", "wrt": "x"},
}
X = [[[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]]


@pytest.mark.parametrize("operator", REQUESTS)
def test_info_holds_the_check_if_it_was_asked_for(server, operator):
    body = {"model": "stacked-rnn", "inputs": {"x": X}, **REQUESTS[operator]}
    first, again = (server.post(f"/{operator}", json={**body, "check": True}).json()["info"]["check"] for _ in "ab")
    assert passes(first, "float64")
    assert first == again
    for plain in (body, {**body, "check": False}):
        assert "check" not in server.post(f"/{operator}", json=plain).json()["info"]
    response = server.post(f"/{operator}", json={**body, "check": "yes"})
    assert (response.status_code, response.json()["path"]) == (422, "check")


def test_a_check_that_tells_nothing_is_json(server):
    body = {"model": "stacked-rnn", "inputs": {"x": [[["NaN", 0, 0, 0]]]}, "tangents": {"x": [[[1, 0, 0, 0]]]}}
    response = server.post("/jvp", json={**body, "check": True})
    assert response.json()["info"]["check"]["adjoint"] is None


def test_evaluate_has_nothing_to_check(server):
    response = server.post("/evaluate", json={"model": "stacked-rnn", "inputs": {"x": X}, "check": True})
    assert (response.status_code, response.json()["path"]) == (422, "check")


def test_a_plan_is_not_checked(server):
    body = {"model": "stacked-rnn", "inputs": {"x": X}, "plan": True, "check": True, **REQUESTS["jacobian"]}
    assert "check" not in server.post("/jacobian", json=body).json()["info"]


def test_a_jacobian_that_is_sent_while_it_is_computed_is_refused(server):
    x = np.zeros((1, 300, 4)).tolist()
    body = {"model": "stacked-rnn", "inputs": {"x": x}, "of": "y", "wrt": "x", "check": True}
    response = server.post("/jacobian", json=body)
    assert (response.status_code, response.json()["path"]) == (422, "check")
