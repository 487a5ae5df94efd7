"""Who may ask for what: a key for everything but what is open to all, and a role for routes that need more."""

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import Depends, Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from app.headers import header
from app.keys import Key, Keys, Role
from app.problems import problem
from pushforward.errors import Forbidden, Unauthorized

# The documentation, and what the `type` of a problem leads to: nothing here depends on what is served.
OPEN_PATHS = ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/problems", "/problems/{slug}")

_HEADER = "Authorization"
_SCHEME = "key"


class Authentication:
    """Refuses what comes without a known key, before any of its body is read; no path is open unless it is listed.

    Args:
        app: what is guarded.
        keys: the keys that are taken; None if everybody may do everything.
        open_paths: templates, written as those of routes, of what needs no key.
    """

    def __init__(self, app: ASGIApp, keys: Keys | None, open_paths: Iterable[str]) -> None:
        self.app = app
        self.keys = keys
        self.open_paths = [compile_path(path)[0] for path in open_paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["key"] = None
        if self.keys is not None and not self._open(scope):
            try:
                key = _authenticate(self.keys, header(scope, b"authorization"))
            except Unauthorized as error:
                response = problem(error, state.get("request_id"))
                response.headers["Connection"] = "close"  # so that a body, which may be large, is not even received
                await response(scope, receive, send)
                return
            state |= {"key": key, "caller": key.name}
        await self.app(scope, receive, send)

    def _open(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return any(pattern.match(path) for pattern in self.open_paths)


def _authenticate(keys: Keys, credentials: str) -> Key:
    scheme, _, given = credentials.partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        came = "another scheme or no key" if scheme else "none"
        raise Unauthorized(
            f"expected Bearer and a key, got {came}; ask whoever runs the server for a key", path=_HEADER
        )
    if (key := keys.find(given.strip())) is None:
        raise Unauthorized("expected a key that the server knows, got another one; check it for typos", path=_HEADER)
    return key


def requires(role: Role) -> Any:
    """Make the dependency of a route that needs a role above `use`, as in `dependencies=[requires("admin")]`.

    It comes before the endpoint: what that reads with `request.stream()` or `request.body()` is not read in vain.
    Without keys, everybody has every role.
    """

    async def check(request: Request) -> None:
        # Without the middleware in front there is no such attribute, and that must fail.
        key: Key | None = request.state.key
        if key is not None and not key.grants(role):
            raise Forbidden(
                f"expected a key of role {role}, got one of role {key.role}; use one that has it",
                path=_HEADER,
                expected=role,
                received=key.role,
            )

    return Depends(check)


def document(build: Callable[[], dict[str, Any]], open_paths: Iterable[str]) -> dict[str, Any]:
    """Add the keys to the OpenAPI document, and take out its examples: they name models, and everybody may read it."""
    openapi = build()
    scheme = {"type": "http", "scheme": "bearer", "description": "A key that whoever runs the server has made."}
    openapi["components"]["securitySchemes"] = {_SCHEME: scheme}
    openapi["security"] = [{_SCHEME: []}]
    for path, methods in openapi["paths"].items():
        for operation in methods.values():
            if path in open_paths:
                operation["security"] = []
            for content in operation.get("requestBody", {}).get("content", {}).values():
                content.pop("examples", None)
    return openapi
