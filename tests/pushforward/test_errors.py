import pickle

import pytest

from pushforward import errors
from pushforward.errors import InvalidArray, InvalidRequest, PushforwardError, by_slug, from_problem


@pytest.mark.parametrize("error", by_slug.values())
def test_every_error_survives_the_journey_through_a_problem_document(error):
    sent = error(
        "expected a, got b; do c", path="inputs.x", expected=[1, None], received=[2], request_id="r", retry_after_s=2.5
    )
    problem = sent.to_problem()
    received = from_problem(problem)
    assert type(received) is error
    assert vars(received) == vars(sent)
    assert str(received) == str(sent) == problem["detail"] == "inputs.x: expected a, got b; do c"


@pytest.mark.parametrize("error", by_slug.values())
def test_every_error_has_a_documentation_page_and_its_own_slug(error):
    assert len(error.__doc__.splitlines()) > 2
    assert error.title
    assert "\n" not in error.title
    assert issubclass(error, PushforwardError)
    assert error.slug == "error" or "".join(part.title() for part in error.slug.split("-")) == error.__name__


@pytest.mark.parametrize("error", by_slug.values())
def test_the_drawn_tree_is_the_tree(error):
    assert f"── {error.__name__}\n" in errors.__doc__ or error is PushforwardError
    assert (f"│   ├── {error.__name__}" in errors.__doc__ or f"│   └── {error.__name__}" in errors.__doc__) == (
        InvalidRequest in error.__mro__[1:]
    )


def test_members_without_a_value_are_left_out():
    assert InvalidArray("no").to_problem() == {
        "type": "/problems/invalid-array",
        "title": "An array does not fit",
        "detail": "no",
    }


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ({"type": "/problems/from-the-future", "detail": "new", "unheard": 1}, "new"),
        ({"type": "about:blank", "title": "Not Found"}, "Not Found"),
        ({}, "Error"),
        ({"type": 3, "detail": None}, "Error"),
    ],
)
def test_unknown_problems_become_the_base_error(problem, text):
    error = from_problem(problem)
    assert type(error) is PushforwardError
    assert str(error) == text


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(InvalidArray("detail", path="inputs.x", request_id="r")))
    assert (type(error), str(error), error.request_id) == (InvalidArray, "inputs.x: detail", "r")
