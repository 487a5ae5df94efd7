"""The tester is tested: what it must let through and, more important, what it must not."""

import numpy as np
import pytest

from models.gradcheck import TOLERANCES, adjoint_error, central_difference, compare, random_like

DTYPES = ["float64", "float32", "float16"]


def point(dtype):
    rng = np.random.default_rng(3)
    return {"w": rng.normal(size=(4, 3)).astype(dtype), "x": rng.normal(size=(5, 4)).astype(dtype), "n": np.arange(5)}


def function(at):
    y = np.tanh(at["x"] @ at["w"])
    return {"y": y, "mean": y.mean(0)}


def jvp(at, tangents, wrong=0.0):
    dx, dw = (tangents.get(n, np.zeros_like(at[n])) for n in ("x", "w"))
    dy = (1 - np.tanh(at["x"] @ at["w"]) ** 2) * (dx @ at["w"] + at["x"] @ dw) * at["x"].dtype.type(1 + wrong)
    return {"y": dy, "mean": dy.mean(0)}


def vjp(at, cotangents, wrong=0.0):
    g = cotangents["y"] + cotangents["mean"] / at["x"].dtype.type(5)
    g = g * (1 - np.tanh(at["x"] @ at["w"]) ** 2)
    return {"w": at["x"].T @ g * at["x"].dtype.type(1 + wrong), "x": g @ at["w"].T}


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_rules_pass(dtype):
    at = point(dtype)
    assert adjoint_error(jvp, vjp, at) <= TOLERANCES[dtype].adjoint
    tangents = random_like({n: at[n] for n in ("w", "x")}, np.random.default_rng(5))
    assert compare(jvp(at, tangents), central_difference(function, at, tangents)) <= TOLERANCES[dtype].difference


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_rule_wrong_by_a_thousandth_fails_the_adjoint_identity(dtype):
    at = point(dtype)
    assert adjoint_error(lambda *a: jvp(*a, wrong=1e-3), vjp, at) > TOLERANCES[dtype].adjoint
    assert adjoint_error(jvp, lambda *a: vjp(*a, wrong=1e-3), at) > TOLERANCES[dtype].adjoint


def test_a_rule_wrong_by_a_thousandth_fails_central_differences():
    at = point("float64")
    tangents = random_like({n: at[n] for n in ("w", "x")}, np.random.default_rng(5))
    wrong = jvp(at, tangents, wrong=1e-3)
    assert compare(wrong, central_difference(function, at, tangents)) > TOLERANCES["float64"].difference


@pytest.mark.parametrize(("dtype", "wrong"), [("float32", 0.02), ("float16", 1.0), ("float16", -2.0)])
def test_what_narrow_dtypes_can_still_see(dtype, wrong):
    at = point(dtype)
    tangents = random_like({n: at[n] for n in ("w", "x")}, np.random.default_rng(5))
    found = jvp(at, tangents, wrong=wrong)
    assert compare(found, central_difference(function, at, tangents)) > TOLERANCES[dtype].difference


def test_one_wrong_input_among_several_is_seen():
    at = point("float64")
    with pytest.raises(ValueError, match=r"expected the names \['w'\], got \['w', 'x'\]"):
        adjoint_error(jvp, vjp, at, wrt=["w"])
    only_w = lambda at, g: {"w": vjp(at, g)["w"]}  # noqa: E731
    assert adjoint_error(jvp, only_w, at, wrt=["w"]) <= TOLERANCES["float64"].adjoint


def test_transposed_rule_fails_although_sums_agree():
    matrix = np.array([[1.0, 2.0], [5.0, 3.0]])
    forward = lambda at, v: {"y": matrix @ v["x"]}  # noqa: E731
    backward = lambda at, u: {"x": matrix @ u["y"]}  # noqa: E731
    ones = {"x": np.ones(2)}
    assert forward(ones, ones)["y"].sum() == (matrix.T @ np.ones(2)).sum()
    assert adjoint_error(forward, backward, ones) > 1e-2


def test_step_follows_the_size_of_the_point_and_of_the_direction():
    at = {"x": np.array([1e6, -3e6])}
    square = lambda at: {"y": at["x"] ** 2}  # noqa: E731
    for length in (1e-8, 1.0, 1e8):
        v = {"x": np.array([1.0, 2.0]) * length}
        wanted = {"y": 2 * at["x"] * v["x"]}
        assert compare(central_difference(square, at, v), wanted) < 1e-9


def test_given_step_is_used():
    found = central_difference(lambda at: {"y": at["x"] ** 3}, {"x": np.array(1.0)}, {"x": np.array(1.0)}, step=0.5)
    assert found["y"] == 3.25  # 3 x² + s²


def test_inputs_without_tangent_stay_and_keep_their_dtype():
    seen = []
    central_difference(lambda at: seen.append(at["n"].dtype) or function(at), point("float32"), {"x": np.ones((5, 4))})
    assert seen == [np.arange(5).dtype] * 2


def test_compare():
    one = {"a": np.array([1.0, 2.0]), "b": np.array([1e-9])}
    assert compare(one, one) == 0
    assert compare({"a": one["a"], "b": np.array([1.1e-9])}, one) == pytest.approx(0.1)
    assert compare({"a": one["a"], "b": np.array([1.1e-9])}, one, floor=1.0) == pytest.approx(1e-10)
    assert compare({"a": np.array([1.0, np.nan]), "b": one["b"]}, one) == float("inf")
    assert compare(one, {"a": np.array([1.0, np.inf]), "b": one["b"]}) == float("inf")
    assert compare({"a": np.array([np.nan])}, {"a": np.array([np.nan])}) == 0
    assert compare({"a": np.array([1e-300])}, {"a": np.array([0.0])}) == float("inf")


def test_compare_refuses_other_names_and_shapes():
    with pytest.raises(ValueError, match=r"expected the names \['a'\], got \['b'\]"):
        compare({"b": np.ones(2)}, {"a": np.ones(2)})
    with pytest.raises(ValueError, match=r"a: expected shape \(2,\), got \(1, 2\)"):
        compare({"a": np.ones((1, 2))}, {"a": np.ones(2)})
