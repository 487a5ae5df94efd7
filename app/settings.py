"""Everything an operator of the server can set, with its description: the table in the README is made from it."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LogLevel = Literal["critical", "error", "warning", "info", "debug"]


class Settings(BaseSettings):
    """The server's settings, read from the environment once, by `create_app` or `python -m app`, and passed down."""

    model_config = SettingsConfigDict(env_prefix="PUSHFORWARD_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 lets the system choose one.")
    log_level: LogLevel = Field(default="info", description="Least severe level that is logged.")
    shutdown_s: int = Field(
        default=60,
        ge=0,
        description="Seconds that requests in flight may still take after SIGTERM; more than the slowest call.",
    )
    max_body_mb: float = Field(
        default=64.0,
        gt=0,
        description="Largest request body in MB (10^6 bytes), also once decompressed, and in JSON once parsed, where a "
        "number takes 8 bytes; more is refused: 413.",
    )
    body_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that a request's body may take to arrive; slower ones are refused: 408. Its headers may "
        "take as long; then the connection is closed.",
    )
    max_response_mb: float = Field(
        default=256.0, gt=0, description="Largest answer in MB (10^6 bytes); more is refused: 413."
    )
    max_json_mb: float = Field(
        default=32.0,
        gt=0,
        description="Largest Jacobian in MB of binary size that is written as JSON; more is refused: 413.",
    )
    max_stream_mb: float = Field(
        default=10_000.0,
        gt=0,
        description="Largest Jacobian in MB that is sent as safetensors, which is done while it is computed; more is "
        "refused: 413.",
    )
    models: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        default=None, description="Built-in models to serve, separated by commas; all of them if not set."
    )
    models_dir: Path | None = Field(
        default=None, description="Directory of `.keras` archives to serve beside the built-in models."
    )
    warm: bool = Field(
        default=True, description="Build the programs of every model before the server accepts requests."
    )
    compiled_shapes: int = Field(
        default=8,
        ge=0,
        description="Shapes of each program that XLA compiles when they first come: a second or more once, then up to "
        "ten times faster. 0: none.",
    )
    timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that a call may take, and each chunk of one that is sent while it is computed; a "
        "request's own `timeout_s` can only shorten it.",
    )
    queue_size: int = Field(default=256, ge=1, description="Calls that may wait or run at once; more are refused: 503.")

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name for name in (part.strip() for part in value.split(",")) if name) or None
        return value

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 1e6)

    @property
    def max_response_bytes(self) -> int:
        """`max_response_mb` in bytes."""
        return int(self.max_response_mb * 1e6)

    @property
    def max_json_bytes(self) -> int:
        """`max_json_mb` in bytes."""
        return int(self.max_json_mb * 1e6)

    @property
    def max_stream_bytes(self) -> int:
        """`max_stream_mb` in bytes."""
        return int(self.max_stream_mb * 1e6)


def variable(field: str) -> str:
    """Name the environment variable of a field, for messages that say which setting to raise."""
    return f"{Settings.model_config.get('env_prefix', '')}{field}".upper()


def table() -> str:
    """Write the settings as the Markdown table that the README shows."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "not set" if field.default is None else f"`{str(field.default).lower()}`"
        rows.append(f"| `{variable(name)}` | {default} | {field.description} |")
    return "\n".join(rows)
