"""The one table from error class to HTTP status, and the problem documents (RFC 9457) made from it."""

import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from pushforward import errors

MEDIA_TYPE = "application/problem+json"

# A subclass has its parent's status unless it stands here itself.
STATUS: dict[type[errors.PushforwardError], HTTPStatus] = {
    errors.PushforwardError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.MalformedBody: HTTPStatus.BAD_REQUEST,
    errors.Unauthorized: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.UnknownModel: HTTPStatus.NOT_FOUND,
    errors.AlreadyRegistered: HTTPStatus.PRECONDITION_FAILED,
    errors.ReservedName: HTTPStatus.CONFLICT,
    errors.NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    errors.TooSlow: HTTPStatus.REQUEST_TIMEOUT,
    errors.TooLarge: HTTPStatus(413),  # Its name changed between Python 3.12 and 3.13.
    errors.UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    errors.InvalidRequest: HTTPStatus(422),
    errors.UnsafeModel: HTTPStatus(422),
    errors.Overloaded: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Draining: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    errors.InternalError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# Longer texts are cut: they can only come from a request, and an error does not echo what was sent.
LONGEST = 1000

# The root is abstract, and the other one is what a client raises when there was no answer.
_NEVER_SENT = (errors.PushforwardError, errors.ConnectionFailed)

_log = logging.getLogger(__name__)


class Problem(BaseModel):
    """A problem document (RFC 9457). Branch on `type`; the other texts may change."""

    type: str = Field(description="A relative URI that names the kind of problem; GET it for documentation.")
    title: str = Field(description="What went wrong, the same for every problem of this type.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What went wrong this time, and what to change.")
    path: str | None = Field(None, description="The part of the request that is at fault, such as `inputs.x`.")
    expected: Any = Field(None, description="What was expected there.")
    received: Any = Field(None, description="What came instead; never the contents of an array.")
    request_id: str | None = Field(None, description="The request's id, as in the header X-Request-Id.")
    retry_after_s: float | None = Field(None, description="Seconds to wait before the same request, as in Retry-After.")


class ProblemPage(BaseModel):
    """The documentation of one type of problem."""

    type: str
    title: str
    status: int
    documentation: str


def status_of(error: type[errors.PushforwardError]) -> HTTPStatus:
    """Look an error class up, or the nearest of its parents."""
    return next(STATUS[cls] for cls in error.__mro__ if cls in STATUS)


def responses(*classes: type[errors.PushforwardError]) -> dict[int | str, dict[str, Any]]:
    """Describe, for OpenAPI, the problems that a route may answer; `default` stands for all others."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    texts: dict[int, list[str]] = {}
    for cls in classes:
        texts.setdefault(status_of(cls).value, []).append(f"{cls.title} (`/problems/{cls.slug}`)")
    described: dict[int | str, dict[str, Any]] = {
        status: {"description": "; ".join(titles), "content": content} for status, titles in sorted(texts.items())
    }
    return described | {"default": {"description": "Any other problem", "content": content}}


def problem(error: errors.PushforwardError, request_id: str | None) -> Response:
    """Make the answer to a request that ended in `error`."""
    status = status_of(type(error))
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("request %s failed: %s", request_id, error, exc_info=error)
        error = errors.InternalError("internal error; the server's log has more under this request id")
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="Pushforward"'
    return _document(error.to_problem(), status, request_id, headers)


def _document(
    members: Mapping[str, Any], status: HTTPStatus, request_id: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    document = {name: _cut(value) for name, value in members.items()} | {"status": status.value}
    if request_id is not None:
        document["request_id"] = request_id
    return Response(orjson.dumps(document, default=_plain), status, headers, MEDIA_TYPE)


def _cut(value: Any) -> Any:
    try:
        text = orjson.dumps(value, default=_plain).decode()
    except TypeError:
        return _plain(value)
    if len(text) <= LONGEST:
        return value
    start = str(value) if isinstance(value, str) else text
    return f"{start[:LONGEST]}…"


def _plain(value: Any) -> Any:
    # A NumPy number is a number; of anything else the type alone, since the text of an array would echo it.
    return value.item() if getattr(value, "ndim", None) == 0 else type(value).__name__


def request_id_of(request: Request) -> str | None:
    """Read the id that the middleware gave the request."""
    return getattr(request.state, "request_id", None)


async def _on_error(request: Request, error: errors.PushforwardError) -> Response:
    return problem(error, request_id_of(request))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    request_id = request_id_of(request)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"no route {request.method} {request.url.path}; /docs lists the routes"
        return problem(errors.NotFound(detail), request_id)
    status = HTTPStatus(error.status_code)
    detail = error.detail
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{request.url.path} takes {allowed}, got {request.method}"
    # These have no class of ours: RFC 9457 says that about:blank means no more than the status.
    members = {"type": "about:blank", "title": status.phrase, "detail": detail}
    return _document(members, status, request_id, error.headers)


async def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    # Each entry also holds the offending input, which is left out on purpose.
    detail = "; ".join(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors())
    return problem(errors.InvalidRequest(detail), request_id_of(request))


async def _on_departure(request: Request, error: ClientDisconnect) -> Response:
    # Nobody reads this answer; the status is for the access log, as nginx writes it.
    return Response(status_code=499)


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    errors.PushforwardError: _on_error,
    HTTPException: _on_http_error,
    RequestValidationError: _on_invalid,
    ClientDisconnect: _on_departure,
}


def router() -> APIRouter:
    """Make the routes that answer the `type` of a problem document with its documentation."""
    routes = APIRouter(prefix="/problems", tags=["problems"], responses=responses())
    pages = {cls.slug: _page(cls) for cls in errors.by_slug.values() if cls not in _NEVER_SENT}

    @routes.get("", operation_id="problems", summary="List every type of problem")
    async def list_problems() -> list[ProblemPage]:
        return list(pages.values())

    @routes.get("/{slug}", operation_id="problem", summary="Explain one type of problem")
    async def explain_problem(slug: str) -> ProblemPage:
        if slug not in pages:
            raise errors.NotFound(f"no problem type {slug!r}; /problems lists them", path="slug")
        return pages[slug]

    return routes


def _page(cls: type[errors.PushforwardError]) -> ProblemPage:
    documentation = inspect.cleandoc(cls.__doc__ or "")
    status = status_of(cls).value
    return ProblemPage(type=f"/problems/{cls.slug}", title=cls.title, status=status, documentation=documentation)
