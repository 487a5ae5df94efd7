"""The contract of every operator, and of the tensor programs that they share, without HTTP."""

from pathlib import Path

import numpy as np
import pytest

from app.calls import Call
from app.operators import _programs as programs
from models.gradcheck import compare
from pushforward.errors import InvalidRequest, NotDifferentiable

ROOT = Path(__file__).parent.parent.parent.parent
OPERATORS = [path.stem for path in sorted((ROOT / "app" / "operators").glob("[!_]*.py"))]
STRATEGIES = ["scan", "unrolled", "reverse"]
X = np.linspace(-1, 1, 24).reshape(2, 3, 4)


@pytest.fixture
def model(engine):
    return engine.models["stacked-rnn"]


@pytest.fixture
def prepare(engine, model):
    def prepare(operator, options=None, model=model, **fields):
        arrays = {"inputs": {"x": X}} | fields
        job = engine.operators[operator].prepare(model, Call(model.name, operator, arrays, options or {}))
        return next(job.steps())

    return prepare


def test_are_found_by_their_files(engine):
    assert sorted(engine.operators) == OPERATORS


@pytest.mark.parametrize("name", OPERATORS)
def test_declaration(engine, name):
    operator = engine.operators[name]
    assert operator.name == name
    assert operator.summary
    assert operator.description.endswith(".")
    assert "inputs" in operator.request_fields
    assert operator.response_fields
    assert set(operator.required) <= {*operator.request_fields, *operator.options}
    for option, schema in operator.options.items():
        assert schema.get("description"), option


@pytest.mark.parametrize("name", OPERATORS)
def test_example_fits_every_model(engine, name):
    operator = engine.operators[name]
    for model in engine.models.values():
        if name == "transitions" and model.signature.obstacle:
            with pytest.raises(NotDifferentiable, match="step by step"):
                operator.example(model)
            continue
        example = operator.example(model)
        assert set(example) <= {"model", *operator.request_fields, *operator.options}
        arrays = {f: {n: np.asarray(a) for n, a in example.get(f, {}).items()} for f in operator.request_fields}
        options = {n: a for n, a in example.items() if n in operator.options}
        job = operator.prepare(model, Call(model.name, name, arrays, options))
        work = next(job.steps())
        assert job.rows >= 1
        assert all(a.dtype == model.dtype for path, a in work.feeds.items() if path.partition(".")[0] in arrays)


DIRECTIONS = {"evaluate": {}, "jvp": {"tangents": {"x": X}}, "vjp": {"cotangents": {"y": X}}}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", DIRECTIONS)
def test_work(prepare, name, strategy):
    work = prepare(name, {"strategy": strategy}, **DIRECTIONS[name])
    assert work.rows == 2
    assert work.strategy == strategy
    assert work.exact == (strategy == "unrolled")
    assert work.casts == []
    assert set(work.feeds) == {"inputs.x", *(f"{f}.{n}" for f, group in DIRECTIONS[name].items() for n in group)}
    auto = prepare(name, **DIRECTIONS[name])
    assert auto.strategy in STRATEGIES
    assert (auto.key == work.key) == (auto.strategy == strategy)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_casts_are_noted(prepare, name):
    x = X.astype(np.float32)
    fields = {field: dict.fromkeys(group, x) for field, group in DIRECTIONS[name].items()}
    work = prepare(name, inputs={"x": x}, **fields)
    assert sorted(work.casts) == sorted(f"{path}: float32 to float64" for path in work.feeds)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_what_the_caller_gave_stays_as_it_is(prepare, name):
    x = X.copy()
    x.flags.writeable = False
    prepare(name, inputs={"x": x}, **DIRECTIONS[name])
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("selection", [["y"], ["state.rnn_1.h", "y"], ["y", "state.rnn_1.h"]])
def test_programs_of_different_selections_are_kept_apart(prepare, selection):
    found = {tuple(s): prepare("evaluate", {"outputs": s}).key for s in ([*selection], ["hidden.rnn_2.h"], ["y"][:1])}
    assert len(set(found.values())) == len(found)
    keys = [prepare("vjp", {"wrt": wrt}, cotangents={"y": X}).key for wrt in (["x"], ["param.rnn_1.bias"])]
    assert keys[0] != keys[1]


def test_stacked_directions_are_rows(prepare):
    stack = np.stack([X, X, X])
    assert prepare("jvp", tangents={"x": stack}).rows == 6
    assert prepare("vjp", cotangents={"y": stack}).rows == 6
    work = prepare("jvp", tangents={"x": stack, "state.rnn_1.h": X[:, 0]})
    assert work.feeds["tangents.state.rnn_1.h"].shape == (3, 2, 4)


def test_a_direction_without_any_array(prepare):
    for name in ("jvp", "vjp"):
        with pytest.raises(InvalidRequest, match="got none"):
            prepare(name)


@pytest.fixture
def quadratic():
    """Two outputs of two inputs, one of them independent of the second input; and the point."""
    import tensorflow as tf

    def run(point):
        a, b = point["a"], point["b"]
        return {"p": a * a * b, "q": tf.sin(a)}

    point = {"a": tf.constant([1.0, 2.0], tf.float64), "b": tf.constant([3.0, -1.0], tf.float64)}
    return run, point


def tensors(arrays):
    import tensorflow as tf

    return {name: tf.constant(array, tf.float64) for name, array in arrays.items()}


def numbers(found):
    return {name: tensor.numpy() for name, tensor in found.items()}


@pytest.mark.parametrize("push", ["push", "push_each", "push_by_reverse"])
@pytest.mark.parametrize("stacked", [False, True])
def test_push(quadratic, push, stacked):
    run, point = quadratic
    da, db = np.array([[1.0, 0.5], [0.0, 2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    wanted = {"p": 2 * np.array([3.0, -2.0]) * da + np.array([1.0, 4.0]) * db, "q": np.cos([1.0, 2.0]) * da}
    if push == "push_each":
        if not stacked:
            pytest.skip("of stacked directions only")
        found = programs.push_each(run, point, tensors({"a": da, "b": db}))
    else:
        directions = {"a": da, "b": db} if stacked else {"a": da[0], "b": db[0]}
        found = getattr(programs, push)(run, point, tensors(directions), stacked)
    if not stacked:
        wanted = {name: array[0] for name, array in wanted.items()}
    assert compare(numbers(found[1]), wanted) < 1e-14
    assert compare(numbers(found[0]), {"p": np.array([3.0, -4.0]), "q": np.sin([1.0, 2.0])}) < 1e-14


@pytest.mark.parametrize("push", ["push", "push_by_reverse"])
@pytest.mark.parametrize("front", [(), (3,)])
def test_push_along_what_an_output_does_not_depend_on(quadratic, push, front):
    run, point = quadratic
    _, pushed = getattr(programs, push)(run, point, tensors({"b": np.ones((*front, 2))}), bool(front))
    np.testing.assert_array_equal(pushed["q"], np.zeros((*front, 2)))


@pytest.mark.parametrize("stacked", [False, True])
def test_pull(quadratic, stacked):
    run, point = quadratic
    dp, dq = np.array([[1.0, 0.5], [0.0, 2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    directions = {"p": dp, "q": dq} if stacked else {"p": dp[0], "q": dq[0]}
    _, pulled = programs.pull(run, point, tensors(directions), ["a", "b"], stacked)
    wanted = {"a": 2 * np.array([3.0, -2.0]) * dp + np.cos([1.0, 2.0]) * dq, "b": np.array([1.0, 4.0]) * dp}
    assert compare(numbers(pulled), wanted if stacked else {n: a[0] for n, a in wanted.items()}) < 1e-14


def test_pull_from_what_does_not_depend_on_the_input(quadratic):
    run, point = quadratic
    _, pulled = programs.pull(run, point, tensors({"q": np.ones(2)}), ["b"], stacked=False)
    np.testing.assert_array_equal(pulled["b"], np.zeros(2))
