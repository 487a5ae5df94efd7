"""What an HTTP response means to a client: JSON, or an error."""

from typing import Any, cast

import httpx2
import orjson

from pushforward.errors import PushforwardError, from_problem
from pushforward.wire import Message
from pushforward.wire._negotiate import for_content_type

_NO_LIMIT = 2**63


def read_json(response: httpx2.Response) -> Any:
    """Parse an answer that is JSON.

    Raises:
        PushforwardError: if it is not.
    """
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        raise _foreign(response) from None


def read_message(response: httpx2.Response) -> Message:
    """Parse an answer of named arrays.

    Raises:
        PushforwardError: if it is in no wire format, or damaged.
    """
    try:
        return for_content_type(response.headers.get("Content-Type")).decode(response.content, max_bytes=_NO_LIMIT)
    except PushforwardError as error:
        raise unreadable(response, error) from error


def unreadable(response: httpx2.Response, reason: object) -> PushforwardError:
    """A successful answer that is not what it should be."""
    content_type = response.headers.get("Content-Type") or "untyped"
    return PushforwardError(f"the server's {content_type} answer can't be read: {reason}")


def error_of(response: httpx2.Response) -> PushforwardError:
    """The error that a response describes, in the server's words if it is one of ours."""
    if response.headers.get("Content-Type", "").startswith("application/problem+json"):
        try:
            problem = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            return _foreign(response)
        if isinstance(problem, dict):
            error = from_problem(cast("dict[str, Any]", problem))
            error.request_id = error.request_id or response.headers.get("X-Request-ID")
            retry_after = response.headers.get("Retry-After", "")
            if error.retry_after_s is None and retry_after.isdecimal():
                error.retry_after_s = float(retry_after)
            return error
    return _foreign(response)


def _foreign(response: httpx2.Response) -> PushforwardError:
    """An answer that does not come from this service, such as a proxy's."""
    request, content_type = response.request, response.headers.get("Content-Type", "no content type")
    return PushforwardError(
        f"{request.method} {address(request.url)}{request.url.path} answered {response.status_code} "
        f"{response.reason_phrase} ({content_type}), which is no answer of a Pushforward server; "
        f"check the URL and what stands between: {response.text[:200]!r}"
    )


def address(url: httpx2.URL) -> str:
    """The server's address without the credentials that a URL may hold."""
    return f"{url.scheme}://{url.netloc.decode()}"
