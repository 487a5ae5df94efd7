"""What a face is, and all it may know of the engine below it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, FastAPI, Request

from app.calls import Answer, Call
from app.settings import Settings


class Operator(Protocol):
    """What a face reads of an operator, to make its route and its documentation."""

    @property
    def name(self) -> str:
        """The name, which is also the route."""
        ...

    @property
    def summary(self) -> str:
        """One line for OpenAPI."""
        ...

    @property
    def description(self) -> str:
        """The paragraph below it."""
        ...

    @property
    def request_fields(self) -> Sequence[str]:
        """Array fields of a request, such as `inputs`."""
        ...

    @property
    def response_fields(self) -> Sequence[str]:
        """Array fields of an answer."""
        ...

    @property
    def options(self) -> Mapping[str, Mapping[str, Any]]:
        """Further members of a request, each with its JSON schema."""
        ...

    @property
    def required(self) -> Sequence[str]:
        """Fields and options that a request must have."""
        ...

    def example(self, model: Any) -> dict[str, Any]:
        """Make a small JSON request that runs on `model`."""
        ...


class Registration(Protocol):
    """What registers and removes models, as the faces see it."""

    def workspace(self) -> AbstractContextManager[Path]:
        """Make a directory for an archive that comes in; it is gone afterwards."""
        ...

    async def put(self, name: str, archive: Path, *, dtype: str | None, replace: bool) -> dict[str, Any]:
        """Register an archive as the next version of a model; return its description."""
        ...

    async def delete(self, name: str, number: int | None) -> None:
        """Remove one version of a model, or all of them."""
        ...


class Engine(Protocol):
    """The engine as the faces see it."""

    @property
    def models(self) -> Mapping[str, Any]:
        """The registered models by name."""
        ...

    async def start(self) -> None:
        """Load and warm the models."""
        ...

    async def close(self) -> None:
        """Finish what runs, refuse what comes."""
        ...

    def admit(self) -> None:
        """Refuse what would be refused whatever it says, before it is read."""
        ...

    async def __call__(self, call: Call) -> Answer:
        """Answer one call."""
        ...

    def listing(self) -> list[dict[str, Any]]:
        """Sum up each registered model."""
        ...

    async def describe(self, name: str) -> dict[str, Any]:
        """Describe one model: its signature, its strategies and its versions."""
        ...

    @property
    def registration(self) -> "Registration":
        """What registers and removes models."""
        ...

    def metrics_page(self) -> bytes:
        """Write the engine's measures in the text format of Prometheus."""
        ...

    def count(self, operator: str, model: str, status: int, seconds: float) -> None:
        """Count a request that was answered or refused."""
        ...


@dataclass(frozen=True)
class Face:
    """One protocol.

    Attributes:
        name: its name.
        mount: adds its routes, or a sub-application of its own, to the application.
        open_paths: its probes, as route templates from the root of the server: they need no key.
    """

    name: str
    mount: Callable[[FastAPI, Settings, Mapping[str, Operator]], None]
    open_paths: tuple[str, ...] = ()


async def _engine(request: Request) -> Engine:
    return request.state.engine


EngineDep = Annotated[Engine, Depends(_engine)]
