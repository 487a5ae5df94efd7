"""The way past the router: what takes it, and what becomes of errors before and after an answer has begun."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse

from app.direct import Direct
from app.middleware import Exchange
from pushforward.errors import InvalidRequest


def ask(endpoint, path="/jvp", method="POST"):
    """What is sent, and what is raised."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return await asyncio.get_running_loop().create_future()  # the client stays and says nothing

    async def other(scope, receive, send):
        await PlainTextResponse("other")(scope, receive, send)

    # The layer around it says whether an answer has begun; of the app, that one only asks what is to be counted.
    app = SimpleNamespace(state=SimpleNamespace(direct={}))
    scope = {"type": "http", "method": method, "path": path, "headers": [], "state": {}, "app": app}
    try:
        asyncio.run(Exchange(Direct(other, {"/jvp": endpoint}))(scope, receive, send))
    except Exception as error:
        return sent, error
    return sent, None


async def fine(request):
    return PlainTextResponse("fine")


@pytest.mark.parametrize(
    ("path", "method", "body"), [("/jvp", "POST", b"fine"), ("/jvp", "GET", b"other"), ("/vjp", "POST", b"other")]
)
def test_takes_a_post_to_the_very_path(path, method, body):
    sent, error = ask(fine, path, method)
    assert error is None
    assert sent[1]["body"] == body


def test_an_error_of_ours_is_a_problem_document():
    async def refuse(request):
        raise InvalidRequest("no")

    sent, error = ask(refuse)
    assert error is None
    assert (sent[0]["status"], len(sent)) == (422, 2)


def test_any_other_error_is_left_to_those_around():
    async def fail(request):
        raise ZeroDivisionError

    sent, error = ask(fail)
    assert (sent, type(error)) == ([], ZeroDivisionError)


def test_an_answer_that_has_begun_is_not_begun_again():
    async def parts():
        yield b"a"
        raise InvalidRequest("too late")

    async def stream(request):
        return StreamingResponse(parts())

    sent, error = ask(stream)
    assert isinstance(error, InvalidRequest)
    assert [message["type"] for message in sent].count("http.response.start") == 1
