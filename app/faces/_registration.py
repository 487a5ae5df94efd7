"""The routes by which models come and go."""

from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import Field

from app.authorization import requires
from app.faces._catalogue import ModelDescription
from app.faces._face import EngineDep
from app.problems import responses
from app.settings import Settings, variable
from pushforward import errors

_ARCHIVE = {
    "requestBody": {
        "required": True,
        "description": 'The file that `model.save("name.keras")` writes, as it is.',
        "content": {"application/zip": {"schema": {"description": "The archive's bytes."}}},
    }
}

Name = Annotated[str, Path(description="Up to 100 letters, digits, dots, dashes and underscores.")]


class RegisteredModel(ModelDescription):
    """A version that was registered."""

    adjoint_error: float = Field(
        description="How far the two sides of the adjoint identity of a JVP and a VJP were apart, relative to their "
        "size, when the model was proved."
    )


def router(settings: Settings) -> APIRouter:
    """Make the routes; without the right to register over HTTP they only say so."""

    async def allowed() -> None:
        if not settings.takes_uploads:
            raise errors.Forbidden(
                "models can't be registered or removed over HTTP here; have API keys set up on the server with "
                f"{variable('api_keys_file')}, or {variable('uploads')} set to true"
            )

    routes = APIRouter(tags=["models"], dependencies=[requires("admin"), Depends(allowed)])

    @routes.put(
        "/models/{name}",
        operation_id="register",
        summary="Register a `.keras` archive as a model's next version",
        description="The archive is checked without running anything in it, loaded in a process of its own, "
        "compiled for a small shape and put to the adjoint identity before anybody finds it. Requests that "
        "are under way finish on the version that they began with.",
        status_code=201,
        response_model=RegisteredModel,
        openapi_extra=_ARCHIVE,
        responses=responses(
            errors.MalformedBody,
            errors.Forbidden,
            errors.ReservedName,
            errors.AlreadyRegistered,
            errors.TooLarge,
            errors.UnsafeModel,
            errors.InvalidRequest,
            errors.Overloaded,
            errors.Draining,
        ),
    )
    async def register(
        request: Request,
        response: Response,
        engine: EngineDep,
        name: Name,
        dtype: Annotated[
            Literal["float32", "float64"] | None,
            Query(description="Convert the weights to this, and compute in it; if not given, as they are saved."),
        ] = None,
        if_none_match: Annotated[
            str | None, Header(description="`*` refuses to add a version to a model that is there.")
        ] = None,
    ) -> dict[str, Any]:
        if if_none_match not in (None, "*"):
            raise errors.InvalidRequest(
                f"expected *, got {if_none_match[:80]!r}; versions have no other tags", path="If-None-Match"
            )
        with engine.registration.workspace() as directory:
            archive = FilePath(directory) / "archive"
            with archive.open("wb") as file:
                async for piece in request.stream():
                    file.write(piece)
            found = await engine.registration.put(name, archive, dtype=dtype, replace=if_none_match is None)
        response.headers["Location"] = f"{request.scope.get('root_path', '')}/models/{name}@{found['version']}"
        return found

    @routes.delete(
        "/models/{name}",
        operation_id="delete",
        summary="Remove a model, or one version of it",
        description="Requests that are under way finish. The numbers of removed versions are not given again.",
        status_code=204,
        responses=responses(errors.Forbidden, errors.UnknownModel, errors.ReservedName, errors.Overloaded),
    )
    async def delete(
        engine: EngineDep,
        name: Name,
        version: Annotated[int | None, Query(ge=1, description="Only this one.")] = None,
    ) -> None:
        await engine.registration.delete(name, version)

    return routes
