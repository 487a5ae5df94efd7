import logging

import numpy as np
import orjson
import pytest

from app import problems
from pushforward import errors

SENT = [cls for cls in errors.by_slug.values() if cls not in (errors.PushforwardError, errors.ConnectionFailed)]


def repr_of(value):
    return type(value).__name__


def body_of(error):
    return orjson.loads(problems.problem(error, "r1").body)


@pytest.mark.parametrize("cls", SENT)
def test_every_error_has_a_status_and_a_page(cls, shell):
    status = problems.status_of(cls)
    assert status >= 400
    page = shell.get(body_of(cls("text"))["type"])
    assert page.status_code == 200
    assert page.json()["status"] == status
    assert page.json()["title"] == cls.title
    assert page.json()["documentation"]


def test_the_list_has_every_page_once(shell):
    pages = shell.get("/problems").json()
    assert sorted(page["type"] for page in pages) == sorted(f"/problems/{cls.slug}" for cls in SENT)


@pytest.mark.parametrize(
    ("cls", "status"),
    [
        (errors.MalformedBody, 400),
        (errors.Unauthorized, 401),
        (errors.Forbidden, 403),
        (errors.UnknownModel, 404),
        (errors.NotFound, 404),
        (errors.NotAcceptable, 406),
        (errors.TooLarge, 413),
        (errors.UnsupportedMediaType, 415),
        (errors.InvalidRequest, 422),
        (errors.InvalidArray, 422),
        (errors.UnknownName, 422),
        (errors.NotDifferentiable, 422),
        (errors.InvalidSlice, 422),
        (errors.UnsafeModel, 422),
        (errors.InternalError, 500),
        (errors.Overloaded, 503),
        (errors.Draining, 503),
        (errors.DeadlineExceeded, 504),
    ],
)
def test_statuses(cls, status):
    assert problems.status_of(cls) == status


def test_members(shell):
    error = errors.InvalidArray("expected (2, 1), got (3,)", path="inputs.x", expected=(2, 1), received=(3,))
    assert body_of(error) == {
        "type": "/problems/invalid-array",
        "title": errors.InvalidArray.title,
        "status": 422,
        "detail": "inputs.x: expected (2, 1), got (3,)",
        "path": "inputs.x",
        "expected": [2, 1],
        "received": [3],
        "request_id": "r1",
    }


def test_can_be_raised_again_by_a_client():
    error = errors.UnknownName("no such output", path="outputs", expected=["y"])
    again = errors.from_problem(body_of(error))
    assert type(again) is errors.UnknownName
    assert (again.detail, again.path, again.expected) == (error.detail, error.path, error.expected)


@pytest.mark.parametrize(
    "received", ["x" * 10**6, list(range(10**5)), np.zeros(10**5), {"x": np.ones(3)}, 10**40, np.int64(3)], ids=repr_of
)
def test_nothing_large_is_echoed(received):
    response = problems.problem(errors.InvalidRequest("z" * 10**6, received=received), "r1")
    assert len(response.body) < 3 * problems.LONGEST
    assert "1.0, 1.0" not in response.body.decode()


def test_unknown_route(shell):
    response = shell.get("/nowhere")
    assert response.status_code == 404
    assert response.headers["content-type"] == problems.MEDIA_TYPE
    assert response.json()["type"] == "/problems/not-found"
    assert "GET /nowhere" in response.json()["detail"]


def test_wrong_method(shell):
    response = shell.get("/jvp")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.headers["content-type"] == problems.MEDIA_TYPE
    assert response.json()["type"] == "about:blank"
    assert "POST" in response.json()["detail"]


def test_unknown_page(shell):
    response = shell.get("/problems/none-such")
    assert response.status_code == 404
    assert response.json()["type"] == "/problems/not-found"


def test_waiting_time(shell):
    response = shell.post("/evaluate", json={"model": "busy", "inputs": {"x": [1.0]}})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"


def test_our_own_fault_is_logged_and_not_told(shell, caplog):
    with caplog.at_level(logging.ERROR):
        request = {"model": "boom", "inputs": {"x": [1.0]}}
        response = shell.post("/evaluate", json=request, headers={"X-Request-Id": "me-1"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "me-1"
    assert response.headers["content-type"] == problems.MEDIA_TYPE
    assert response.json()["request_id"] == "me-1"
    assert response.json()["detail"].startswith("internal error")
    assert "secret" not in response.text
    assert "RuntimeError" not in response.text
    assert "a secret of the server" in caplog.text
    assert "me-1" in caplog.text
    assert "Traceback" in caplog.text
