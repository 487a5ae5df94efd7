"""Small JSON about the server itself: its models, and the probes."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.faces._face import EngineDep
from app.metrics import MEDIA_TYPE
from app.problems import responses
from pushforward.errors import Draining, UnknownModel


class ModelSummary(BaseModel):
    """A registered model in a line."""

    model_config = ConfigDict(extra="allow")

    name: str
    version: int


class ArraySpec(BaseModel):
    """An array of a model's signature; `null` in its shape is a free axis."""

    model_config = ConfigDict(extra="allow")

    name: str
    shape: list[int | None]
    dtype: str
    axes: list[str]
    differentiable: bool


class ModelVersion(BaseModel):
    """A version of a model, and where it comes from, unless it is built in."""

    version: int
    registered: str | None = Field(None, description="When, in UTC, as in ISO 8601.")
    sha256: str | None = Field(None, description="Of the archive.")
    bytes: int | None = Field(None, description="Size of the archive.")


class ModelDescription(ModelSummary):
    """A model's signature: everything that can go in, come out or be differentiated."""

    dtype: str
    inputs: list[ArraySpec]
    states: list[ArraySpec]
    parameters: list[ArraySpec]
    outputs: list[ArraySpec]
    hidden: list[ArraySpec]
    causal: bool
    ragged: bool = Field(description="Whether requests may have `lengths`; if not, `ragged_obstacle` says why.")
    ragged_obstacle: str | None = Field(None, description="What stands in the way of rows of different lengths.")
    strategies: list[str]
    notes: list[str] = Field(description="What is different here from the model that was saved.")
    versions: list[ModelVersion]


class Status(BaseModel):
    """The answer of a probe."""

    status: str


def router() -> APIRouter:
    """Make the routes of the catalogue and of the probes."""
    routes = APIRouter()

    @routes.get(
        "/models", tags=["models"], operation_id="models", summary="List the models", response_model=list[ModelSummary]
    )
    async def list_models(engine: EngineDep) -> list[dict[str, Any]]:
        return engine.listing()

    @routes.get(
        "/models/{name}",
        tags=["models"],
        operation_id="model",
        summary="Describe one model, as `name` or `name@version`",
        responses=responses(UnknownModel),
        response_model=ModelDescription,
    )
    async def describe_model(name: str, engine: EngineDep) -> dict[str, Any]:
        return await engine.describe(name)

    @routes.get("/health/live", tags=["health"], operation_id="live", summary="Is the process alive?")
    async def live() -> Status:
        return Status(status="live")

    @routes.get(
        "/health/ready",
        tags=["health"],
        operation_id="ready",
        summary="Are the models loaded and warm, and may more requests come?",
        responses=responses(Draining),
    )
    async def ready(request: Request) -> Status:
        # The server accepts connections only once the lifespan has warmed the models: to be asked is to be ready.
        if request.app.state.draining:
            raise Draining("the server is shutting down; send requests to another one", retry_after_s=5)
        return Status(status="ready")

    @routes.get(
        "/metrics",
        tags=["health"],
        operation_id="metrics",
        summary="Measures in the text format of Prometheus",
        response_class=Response,
        responses={200: {"description": "The measures", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(engine: EngineDep) -> Response:
        return Response(engine.metrics_page(), media_type=MEDIA_TYPE)

    return routes
