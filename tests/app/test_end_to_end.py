"""Every built-in model, operator, strategy and format, over HTTP: the derivatives are right, and arrive as they are."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.programs import Programs
from models.gradcheck import TOLERANCES, central_difference, compare

# From the files' names, so that nothing is imported while tests are collected.
ROOT = Path(__file__).parent.parent.parent
MODELS = [path.stem.replace("_", "-") for path in sorted((ROOT / "models" / "zoo").glob("[!_]*.py"))]
STRATEGIES = ["scan", "unrolled", "reverse"]
FORMATS = {"json": ("json", {}), "base64": ("json", {"encoding": "base64"}), "npz": ("npz", {})}
BATCH, TIME = 2, 3


def field(name, arrays):
    return {f"{name}.{key}": array for key, array in arrays.items()}


def pick(message, name):
    prefix = f"{name}."
    return {path.removeprefix(prefix): a for path, a in message.arrays.items() if path.startswith(prefix)}


class Case:
    """One model at one random point, with one random direction and codirection over every name of its signature."""

    def __init__(self, ask, description):
        self._ask, self.name, self.dtype = ask, description["name"], description["dtype"]
        self.tolerances = TOLERANCES[self.dtype]
        groups = {group: description[group] for group in ("inputs", "states", "hidden", "parameters", "outputs")}
        self._random = np.random.default_rng(7)
        self.point = self.draw(groups["inputs"] + groups["states"])
        self.tangents = self.draw(groups["inputs"] + groups["states"] + groups["hidden"] + groups["parameters"])
        self.cotangents = self.draw(groups["outputs"] + groups["states"] + groups["hidden"])

    def draw(self, specs, *front):
        sizes = {"batch": BATCH, "time": TIME}
        return {
            spec["name"]: self._random.standard_normal(
                [
                    *front,
                    *(sizes[axis] if n is None else n for n, axis in zip(spec["shape"], spec["axes"], strict=True)),
                ]
            ).astype(spec["dtype"])
            for spec in specs
        }

    def evaluate(self, point, **options):
        answer = self._ask("evaluate", self.name, field("inputs", point), outputs=list(self.cotangents), **options)
        return pick(answer, "outputs")

    def request(self, operator):
        arrays, targets = field("inputs", self.point), list(self.cotangents)
        if operator == "jvp":
            return arrays | field("tangents", self.tangents), {"outputs": targets}
        if operator == "vjp":
            return arrays | field("cotangents", self.cotangents), {"wrt": list(self.tangents)}
        return arrays, {"outputs": targets}

    @functools.cache  # noqa: B019 (the cases live as long as the module)
    def answer(self, operator, strategy):
        arrays, options = self.request(operator)
        return self._ask(operator, self.name, arrays, strategy=strategy, **options)

    def jvp(self, tangents, strategy="scan"):
        """Push tangents of some names forward, with the program that takes tangents of all names."""
        zeros = {name: np.zeros_like(array) for name, array in self.tangents.items()}
        arrays = field("inputs", self.point) | field("tangents", zeros | tangents)
        answer = self._ask("jvp", self.name, arrays, strategy=strategy, outputs=list(self.cotangents))
        return pick(answer, "tangents")


@pytest.fixture(scope="module")
def cases(server, ask):
    return {name: Case(ask, server.get(f"/models/{name}").json()) for name in MODELS}


@pytest.fixture
def case(cases, model):
    return cases[model]


def inner(a, b):
    assert a.keys() == b.keys()
    return sum(float(np.vdot(a[name].astype(float), b[name].astype(float))) for name in a)


def norm(a):
    return np.sqrt(inner(a, a))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adjoint_identity(case, strategy):
    pushed, pulled = (case.answer(operator, strategy) for operator in ("jvp", "vjp"))
    assert pushed.envelope["info"]["strategy"] == pulled.envelope["info"]["strategy"] == strategy
    assert {a.dtype.name for a in [*pushed.arrays.values(), *pulled.arrays.values()]} == {case.dtype}
    u, jv, jtu, v = case.cotangents, pick(pushed, "tangents"), pick(pulled, "cotangents"), case.tangents
    scale = max(norm(u) * norm(jv), norm(jtu) * norm(v))
    assert abs(inner(u, jv) - inner(jtu, v)) < case.tolerances.adjoint * scale


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
def test_strategies_agree(case, operator, strategy):
    found, wanted = case.answer(operator, strategy), case.answer(operator, "scan")
    assert compare(found.arrays, wanted.arrays, floor=1e-3) < case.tolerances.equality


@pytest.mark.parametrize("model", MODELS)
def test_central_differences_over_inputs_and_states(case):
    tangents = {name: case.tangents[name] for name in case.point}
    assert (
        compare(case.jvp(tangents), central_difference(case.evaluate, case.point, tangents), floor=1e-3)
        < case.tolerances.difference
    )


@pytest.mark.parametrize("model", MODELS)
def test_central_differences_over_hidden_states_and_weights(case, engine):
    # A request can give neither, so the model itself is asked.
    import tensorflow as tf

    served = engine.models[case.name]
    fixed = {name: tf.constant(array) for name, array in case.point.items()}
    rest = {name: served.default(name, fixed).numpy() for name in case.tangents if name not in case.point}
    run = tf.function(lambda moved: served.run(fixed | moved, list(case.cotangents)), autograph=False)

    def evaluate(moved):
        return {name: t.numpy() for name, t in run({n: tf.constant(a) for n, a in moved.items()}).items()}

    for kind in ("hidden.", "param."):
        tangents = {name: v for name, v in case.tangents.items() if name.startswith(kind)}
        differences = central_difference(evaluate, rest, tangents)
        assert compare(case.jvp(tangents), differences, floor=1e-3) < case.tolerances.difference


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_carries_the_same_bits(case, ask, operator, strategy, form):
    codec, extra = FORMATS[form]
    arrays, options = case.request(operator)
    found = ask(operator, case.name, arrays, codec=codec, strategy=strategy, **options, **extra)
    wanted = case.answer(operator, strategy)
    assert {path: a.shape for path, a in found.arrays.items()} == {path: a.shape for path, a in wanted.arrays.items()}
    for path, array in wanted.arrays.items():
        # JSON numbers carry no dtype; the model's has no more digits than they.
        assert found.arrays[path].astype(array.dtype).tobytes() == array.tobytes(), path
    casts = found.envelope["info"]["casts"]
    assert bool(casts) == (form == "json" and case.dtype == "float32"), casts


def stacked_and_single(case, ask, operator, field_name, strategy):
    arrays, options = case.request(operator)
    moving = [path for path in arrays if path.startswith(field_name)]
    draws = [
        {path: case._random.standard_normal(arrays[path].shape).astype(case.dtype) for path in moving} for _ in range(3)
    ]
    stacks = {path: np.stack([draw[path] for draw in draws]) for path in moving}
    found = ask(operator, case.name, arrays | stacks, strategy=strategy, **options)
    assert found.envelope["info"]["rows"] == 3 * BATCH
    singles = [ask(operator, case.name, arrays | draw, strategy=strategy, **options) for draw in draws]
    result = pick(found, "tangents" if operator == "jvp" else "cotangents")
    wanted = [pick(single, "tangents" if operator == "jvp" else "cotangents") for single in singles]
    together = {name: np.stack([single[name] for single in wanted]) for name in result}
    assert compare(result, together, floor=1e-3) < case.tolerances.equality
    assert compare(pick(found, "outputs"), pick(singles[0], "outputs")) < case.tolerances.equality


@pytest.mark.parametrize("model", MODELS)
def test_stacked_directions(case, ask):
    stacked_and_single(case, ask, "jvp", "tangents", "scan")
    stacked_and_single(case, ask, "vjp", "cotangents", "scan")


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_stacked_directions_in_every_strategy(cases, ask, strategy):
    stacked_and_single(cases["stacked-rnn"], ask, "jvp", "tangents", strategy)
    stacked_and_single(cases["stacked-rnn"], ask, "vjp", "cotangents", strategy)


def test_one_direction_beside_stacked_ones_belongs_to_each(cases, ask):
    case = cases["stacked-rnn"]
    arrays, options = case.request("jvp")
    path = "tangents.x"
    stack = np.stack([arrays[path], 2 * arrays[path]])
    found = ask("jvp", case.name, arrays | {path: stack}, **options)
    for k, factor in enumerate((1, 2)):
        single = ask("jvp", case.name, arrays | {path: factor * arrays[path]}, **options)
        pushed = {name: array[k] for name, array in pick(found, "tangents").items()}
        assert compare(pushed, pick(single, "tangents"), floor=1e-3) < case.tolerances.equality


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("front", [(), (2,)], ids=["single", "stacked"])
def test_what_does_not_depend_on_the_direction_is_zero_and_never_null(cases, server, strategy, front):
    # The first layer knows nothing of the second one's weights.
    case, weight, state = cases["stacked-rnn"], "param.rnn_2.kernel", "hidden.rnn_1.h"
    tangent, cotangent = np.ones([*front, 4, 4]), np.ones([*front, BATCH, TIME, 4])
    request = {"model": case.name, "inputs": {"x": case.point["x"].tolist()}, "strategy": strategy}
    jvp = server.post("/jvp", json=request | {"tangents": {weight: tangent.tolist()}, "outputs": [state]})
    vjp = server.post("/vjp", json=request | {"cotangents": {state: cotangent.tolist()}, "wrt": [weight]})
    for response, name, shape in ((jvp, "tangents", cotangent.shape), (vjp, "cotangents", tangent.shape)):
        assert response.status_code == 200, response.text
        (found,) = response.json()[name].values()
        assert np.asarray(found, float).shape == shape
        assert not np.any(found)


def test_reverse_mode_with_the_tangent_for_a_cotangent_is_no_jvp(cases, ask):
    case = cases["stacked-rnn"]
    x, v = {"inputs.x": case.point["x"]}, np.random.default_rng(3).standard_normal((BATCH, TIME, 4))
    pushed = ask("jvp", case.name, x | {"tangents.x": v}).arrays["tangents.y"]
    pulled = ask("vjp", case.name, x | {"cotangents.y": v}).arrays["cotangents.x"]
    assert pushed.shape == pulled.shape
    assert np.abs(pushed - pulled).max() > 0.1


def test_states_hand_a_sequence_on(cases, ask):
    x = np.random.default_rng(5).standard_normal((BATCH, 5, 1))
    outputs = ["y", "state.gru_1.h", "state.gru_2.h"]
    whole = ask("evaluate", "seed-gru", {"inputs.x": x}, outputs=outputs)
    first = ask("evaluate", "seed-gru", {"inputs.x": x[:, :2]}, outputs=outputs)
    states = field("inputs", {n: a for n, a in pick(first, "outputs").items() if n != "y"})
    second = ask("evaluate", "seed-gru", states | {"inputs.x": x[:, 2:]}, outputs=outputs)
    y = np.concatenate([first.arrays["outputs.y"], second.arrays["outputs.y"]], 1)
    assert compare({"y": y}, {"y": whole.arrays["outputs.y"]}) < 1e-12
    assert compare({"h": second.arrays[f"outputs.{outputs[2]}"]}, {"h": whole.arrays[f"outputs.{outputs[2]}"]}) < 1e-12


@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
def test_equal_requests_get_the_same_bits(cases, ask, operator):
    case = cases["seed-gru"]
    arrays, options = case.request(operator)
    first = case.answer(operator, "scan")
    for _ in range(3):
        again = ask(operator, case.name, arrays, strategy="scan", **options)
        assert {path: a.tobytes() for path, a in again.arrays.items()} == {
            path: a.tobytes() for path, a in first.arrays.items()
        }


def test_a_hundred_requests_at_once_do_not_mix(cases, ask):
    def request(k):
        case = cases[MODELS[k % len(MODELS)]]
        operator = ("evaluate", "jvp", "vjp")[k // len(MODELS) % 3]
        arrays, options = case.request(operator)
        own = np.random.default_rng(k).standard_normal(arrays["inputs.x"].shape).astype(case.dtype)
        return operator, case, arrays | {"inputs.x": own}, options | {"strategy": "scan"}

    def send(k):
        operator, case, arrays, options = request(k)
        return ask(operator, case.name, arrays, **options).arrays

    with ThreadPoolExecutor(25) as pool:
        together = list(pool.map(send, range(100)))
    for k, found in enumerate(together):
        assert compare(found, send(k), floor=1e-3) < request(k)[1].tolerances.equality


def test_a_compiled_program_gives_the_same_numbers_and_always_the_same_bits(cases, ask, engine, monkeypatch):
    case = cases["stacked-rnn"]
    x, v = case.point["x"][:, :2], case.tangents["x"][:, :2]
    plain = ask("jvp", case.name, {"inputs.x": x, "tangents.x": v})
    monkeypatch.setattr(engine._runs, "programs", Programs(compiled=1))
    answers = [ask("jvp", case.name, {"inputs.x": x, "tangents.x": v}) for _ in range(3)]
    assert [answer.envelope["info"]["compiled"] for answer in (plain, *answers)] == [False, True, True, True]
    for answer in answers:
        assert compare(answer.arrays, plain.arrays) < case.tolerances.equality
        assert all(a.tobytes() == answers[0].arrays[path].tobytes() for path, a in answer.arrays.items())


def test_info(cases, ask):
    case = cases["bi-gru"]
    x = np.ones((BATCH, TIME, 3))
    info = ask("evaluate", case.name, {"inputs.x": x}).envelope["info"]
    assert info["strategy"] == "scan"
    assert info["dtype"] == "float32"
    assert info["device"].endswith(":0")
    assert info["rows"] == BATCH
    assert info["nonfinite"] == 0
    assert info["casts"] == ["inputs.x: float64 to float32"]
    assert 0 <= info["queue_ms"] < 60_000
    assert 0 < info["compute_ms"] < 60_000


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity"])
def test_nonfinite_numbers_pass_through_and_are_counted(cases, server, bad):
    request = {"model": "stacked-rnn", "inputs": {"x": [[[bad, 0, 0, 0]], [[0, 0, 0, 0]]]}}
    response = server.post("/evaluate", json=request)
    y = json.loads(response.content)["outputs"]["y"]
    if bad == "NaN":
        assert y[0] == [["NaN"] * 4]
    assert response.json()["info"]["nonfinite"] == (4 if bad == "NaN" else 0)
    assert all(isinstance(number, float) for number in y[1][0])
