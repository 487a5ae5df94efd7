import logging

import pytest

from app.middleware import RequestIdFilter, request_id

BODY = b'{"model": "echo", "inputs": {"x": [1.0]}}'
JSON = {"Content-Type": "application/json"}


def test_request_id_is_echoed(shell):
    given = "abc.DEF:1-2_3"
    assert shell.get("/health/live", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "with space", "x" * 129, "semi;colon", "<script>"])
def test_request_id_is_made_when_absent_or_odd(shell, given):
    headers = {} if given is None else {"X-Request-Id": given}
    first = shell.get("/health/live", headers=headers).headers["x-request-id"]
    second = shell.get("/health/live", headers=headers).headers["x-request-id"]
    assert len(first) == 32
    assert first != second


def test_request_id_is_in_every_problem(shell):
    response = shell.get("/nowhere", headers={"X-Request-Id": "seen"})
    assert response.json()["request_id"] == response.headers["x-request-id"] == "seen"


def test_log_records_carry_the_request_id():
    record = logging.LogRecord("x", logging.INFO, "", 0, "text", None, None)
    token = request_id.set("r7")
    try:
        assert RequestIdFilter().filter(record)
    finally:
        request_id.reset(token)
    assert record.request_id == "r7"


def pieces(count):
    for _ in range(count):
        yield BODY


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_limit(make_shell, fake_engine, chunked):
    limit = 3 * len(BODY)
    with make_shell(max_body_mb=limit / 1e6) as client:
        content = pieces(4) if chunked else BODY * 4
        response = client.post("/evaluate", content=content, headers=JSON | {"X-Request-Id": "big"})
    problem = response.json()
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "/problems/too-large"
    assert str(limit) in problem["detail"]
    assert str(4 * len(BODY)) in problem["detail"]
    assert "PUSHFORWARD_MAX_BODY_MB" in problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"] == "big"
    assert fake_engine.calls == []


@pytest.mark.parametrize("chunked", [False, True])
def test_body_at_the_limit(make_shell, chunked):
    with make_shell(max_body_mb=len(BODY) / 1e6) as client:
        assert client.post("/evaluate", content=pieces(1) if chunked else BODY, headers=JSON).status_code == 200
