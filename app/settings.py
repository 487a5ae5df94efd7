"""Everything an operator of the server can set, with its description: the table in the README is made from it."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LogLevel = Literal["critical", "error", "warning", "info", "debug"]
LogFormat = Literal["text", "json"]


class Settings(BaseSettings):
    """The server's settings, read from the environment once, by `create_app` or `python -m app`, and passed down."""

    model_config = SettingsConfigDict(env_prefix="PUSHFORWARD_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 lets the system choose one.")
    log_level: LogLevel = Field(default="info", description="Least severe level that is logged.")
    log_format: LogFormat = Field(
        default="text", description="How the log is written: `text` for people, `json`, an object a line, for machines."
    )
    api_keys_file: Path | None = Field(
        default=None, description="File of the API keys that are taken; without one, no key is needed."
    )
    drain_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds after SIGTERM in which requests are still accepted while `/health/ready` says no, so that "
        "a load balancer can look elsewhere.",
    )
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
    send_timeout_s: float = Field(
        default=60.0,
        ge=0.001,
        le=86_400,
        description="Seconds that a client may take nothing of its answer, or almost nothing; then the connection is "
        "closed and what is still to be computed is not. On Linux only.",
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
        default=None,
        description="Built-in models to serve, separated by commas; `none` for none of them, all of them if not set.",
    )
    model_dir: Path | None = Field(
        default=None,
        description="Directory in which registered models are kept, for one server alone; without one, they are gone "
        "when the server stops.",
    )
    watch_dir: Path | None = Field(
        default=None,
        description="Directory of `.keras` archives, each of which is registered under its file's name, and again when "
        "it changes.",
    )
    watch_s: float = Field(default=2.0, gt=0, description="Seconds between two looks into that directory.")
    uploads: bool | None = Field(
        default=None,
        description="Whether models may be registered and removed over HTTP. If not set: with API keys, or if the "
        "server listens on loopback only.",
    )
    allow_classes: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Classes of layers, cells and the like that archives may hold besides those of Keras that are "
        "known to be safe, such as `package.module.Class`, separated by commas. They are imported and run.",
    )
    max_parameters: int = Field(
        default=50_000_000, ge=1, description="Most weights, single numbers, that a registered model may have."
    )
    register_s: float = Field(
        default=120.0, gt=0, description="Seconds that loading and proving an archive may take; then it is refused."
    )
    register_mb: float = Field(
        default=4000.0, gt=0, description="MB of memory that loading and proving an archive may take."
    )
    warm: bool = Field(
        default=True, description="Build the programs of every model before the server accepts requests."
    )
    warm_shapes: Annotated[tuple[tuple[int, int], ...], NoDecode] = Field(
        default=(),
        description="Sizes, rows x steps such as `8x64,1x200`, for which XLA compiles the simplest request of each "
        "operator and model before the server accepts requests.",
    )
    compiled_programs: int = Field(
        default=32,
        ge=0,
        description="Programs that XLA compiles, for sizes that come often: a second or more once, in the background, "
        "then up to ten times faster. The one unused for longest makes room. 0: none.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        description="Threads of one operation on a CPU. One is the fastest for layers of up to some 128 units "
        "and leaves the other cores to HTTP; for larger ones, up to as many as there are cores.",
    )
    batch_rows: int = Field(
        default=64,
        ge=1,
        description="Most rows, sequences with one direction each, of different requests that are computed together.",
    )
    batch_wait_us: float = Field(
        default=0.0,
        ge=0,
        description="Microseconds that a request waits for others to be computed with. 0: only those that came while "
        "the device was busy are.",
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
            if value.strip() == "none":
                return ()
            return tuple(name for name in (part.strip() for part in value.split(",")) if name) or None
        return value

    @field_validator("warm_shapes", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(re.fullmatch(r"[1-9][0-9]{0,6}x[1-9][0-9]{0,6}", part) for part in parts):
            raise ValueError("expected rows x steps such as 8x64, separated by commas")
        return tuple(tuple(map(int, part.split("x"))) for part in parts)

    @field_validator("allow_classes", mode="before")
    @classmethod
    def _classes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", part) for part in parts):
            raise ValueError("expected names such as package.module.Class, separated by commas")
        return tuple(parts)

    @property
    def takes_uploads(self) -> bool:
        """Whether models may be registered over HTTP."""
        if self.uploads is not None:
            return self.uploads
        return self.api_keys_file is not None or is_loopback(self.host)

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


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def variable(field: str) -> str:
    """Name the environment variable of a field, for messages that say which setting to raise."""
    return f"{Settings.model_config.get('env_prefix', '')}{field}".upper()


def table() -> str:
    """Write the settings as the Markdown table that the README shows."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "not set" if field.default in (None, ()) else f"`{str(field.default).lower()}`"
        rows.append(f"| `{variable(name)}` | {default} | {field.description} |")
    return "\n".join(rows)
