"""A way past the router for the requests that there are many of."""

from collections.abc import Awaitable, Callable, Mapping

from opentelemetry.trace import INVALID_SPAN, get_current_span
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.problems import HANDLERS

Endpoint = Callable[[Request], Awaitable[Response]]


class Direct:
    """Hands a POST to the endpoint of its very path, without the router's search and its layers around endpoints.

    These take longer than a small model computes. The same endpoints are routes as well, for the documentation and for
    all that is no such request.

    Args:
        app: answers everything else.
        endpoints: by path; it may be filled later.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self.app = app
        self.endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        found = self.endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        # As FastAPI does once its router has found a route.
        span = get_current_span()
        if span is not INVALID_SPAN:
            span.update_name(f"POST {scope['path']}")
            span.set_attribute("http.route", scope["path"])
        request = Request(scope, receive, send)
        try:
            response = await found(request)
            await response(scope, receive, send)
        except Exception as error:
            handler = next((HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS), None)
            if handler is None or scope["state"]["begun"]:
                raise
            await (await handler(request, error))(scope, receive, send)
