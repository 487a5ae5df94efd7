"""`"check": true` on transitions: the four matrices are checked together, whatever parts of them were asked for."""

import numpy as np
import pytest

import models.zoo
from app.calls import Call
from app.operators import transitions
from pushforward._registry import scan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served():
    return {name: entry.load() for name, entry in scan(models.zoo, "MODEL").items() if name != "bi-gru"}


def ask(model, steps, **options):
    x = np.random.default_rng(0).normal(size=(2, steps, model.signature.inputs[0].shape[-1])).astype(model.dtype)
    return transitions.OPERATOR.prepare(model, Call(model.name, "transitions", {"inputs": {"x": x}}, options))


def answer(drive, model, job):
    return job.joined(drive(model, job.steps())[0])


@pytest.mark.parametrize("parts", [["A", "B", "C", "D"], ["A"], ["D", "A"]])
@pytest.mark.parametrize("steps", [1, 4])
def test_right_matrices_pass(drive, served, steps, parts):
    for model in served.values():
        job = ask(model, steps, check=True, parts=parts)
        _, found = drive(model, job.check(answer(drive, model, job)))
        assert found["passed"], (model.name, found)
        assert 0 <= found["adjoint"] <= found["tolerance"]["adjoint"]
        assert 0 <= found["difference"] <= found["tolerance"]["difference"]


@pytest.mark.parametrize("part", ["A", "B", "C", "D"])
def test_a_matrix_wrong_by_a_thousandth_fails(drive, served, part):
    model = served["stacked-rnn"]
    job = ask(model, 3, check=True)
    arrays = answer(drive, model, job)
    _, found = drive(model, job.check({**arrays, part: arrays[part] * 1.001}))
    assert not found["passed"]
    assert found["adjoint"] > 1e-5
    assert found["difference"] > 1e-5


def test_without_the_option_nothing_is_checked(served):
    assert ask(served["stacked-rnn"], 1).check is None
