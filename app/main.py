"""The application factory: wiring only, and nothing at import."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from app import authorization, faces, keys, problems
from app.decompress import Decompress
from app.direct import Direct, Endpoint
from app.faces._face import Engine, Face, Operator
from app.lifespan import lifespan
from app.middleware import BodyLimit, Exchange, Unhandled
from app.settings import Settings
from pushforward._registry import scan

# The version of the HTTP API, not of the code: within one, there are only additions.
API_VERSION = "1"

DESCRIPTION = """
Derivatives of recurrent TensorFlow/Keras models over HTTP: Jacobian-vector products (JVP), vector-Jacobian products
(VJP) and more.

Every operator takes and gives JSON, safetensors or npz, by `Content-Type` and `Accept`.
Every error is a problem document (RFC 9457) whose `type` leads to its documentation.
"""


class _App(FastAPI):
    """FastAPI inside of our layers: those that it puts around each request do nothing for one to an operator.

    Args:
        layers: the outermost first; each is given what it is around.
        options: FastAPI's.
    """

    def __init__(self, layers: Sequence[Callable[[ASGIApp], ASGIApp]], **options: Any) -> None:
        super().__init__(**options)
        self._layers = layers

    def build_middleware_stack(self) -> ASGIApp:
        """Put the layers around FastAPI's own."""
        stack = super().build_middleware_stack()
        for layer in reversed(self._layers):
            stack = layer(stack)
        return stack


def create_app(
    settings: Settings | None = None,
    *,
    engine_factory: Callable[[Settings], Engine] | None = None,
    operators: Mapping[str, Operator] | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        settings: read from the environment if not given.
        engine_factory: makes the engine when the server starts; ours if not given.
        operators: the operators to make routes for; all of `app.operators` if not given.

    Raises:
        InvalidKeyFile: if the settings name a file of keys that can't be used.
    """
    settings = settings or Settings()
    known = None if settings.api_keys_file is None else keys.read(settings.api_keys_file)
    found: dict[str, Face] = scan(faces, "FACE")
    open_paths = (*authorization.OPEN_PATHS, *(path for face in found.values() for path in face.open_paths))
    direct: dict[str, Endpoint] = {}
    app = _App(
        [
            Exchange,
            partial(authorization.Authentication, keys=known, open_paths=open_paths),
            partial(BodyLimit, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s),
            Unhandled,
            partial(Decompress, max_bytes=settings.max_body_bytes),
            partial(Direct, endpoints=direct),
        ],
        title="Pushforward",
        version=API_VERSION,
        description=DESCRIPTION,
        lifespan=lifespan(lambda: (engine_factory or _engine)(settings)),
        telemetry={"metrics": False, "logs": False},
        exception_handlers=problems.HANDLERS,
        responses=problems.responses(),
    )
    app.state.direct, app.state.draining = direct, False
    operators = _operators() if operators is None else operators
    for face in found.values():
        face.mount(app, settings, operators)
    app.include_router(problems.router())
    if known is not None:
        app.openapi = partial(authorization.document, app.openapi, open_paths)
    return app


def _engine(settings: Settings) -> Engine:
    from app.engine import Engine

    return Engine.from_settings(settings)


def _operators() -> Mapping[str, Operator]:
    from app import operators

    return scan(operators, "OPERATOR")
