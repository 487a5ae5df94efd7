"""The log of the server: one line per event on stderr, each with the ids of its request and of its trace."""

import json
import logging
import logging.config
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from app.settings import LogFormat, LogLevel


class TextFormatter(logging.Formatter):
    """Writes a record as one line of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s [%(request_id)s %(trace_id)s] %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Write the time, to the millisecond, as logging does by itself."""
        return f"{_second(int(record.created))},{int(record.msecs):03d}"


# Many records share one.
@lru_cache(4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object; the members of its `fields`, if it has any, stand beside the others."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        members: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": _known(record, "request_id"),
            "trace_id": _known(record, "trace_id"),
            **getattr(record, "fields", {}),
            "exception": self.formatException(record.exc_info) if record.exc_info else None,
            "stack": record.stack_info,
        }
        # In ASCII, which any text can be written in, half a surrogate pair included.
        return json.dumps({name: value for name, value in members.items() if value is not None}, default=str)


def _known(record: logging.LogRecord, name: str) -> str | None:
    value = getattr(record, name, "-")
    return None if value == "-" else value


def configure(level: LogLevel, form: LogFormat) -> None:
    """Set up the logging of this process."""
    logging.config.dictConfig(configuration(level, form))
    # None of this is written, and finding it out is half of what a line costs.
    # See https://docs.python.org/3/howto/logging.html#optimization
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.logAsyncioTasks = False  # pyright: ignore[reportAttributeAccessIssue]  # from Python 3.12
    logging._srcfile = None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def configuration(level: LogLevel, form: LogFormat) -> dict[str, Any]:
    """Describe the logging for `logging.config.dictConfig`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {
            "request_id": {"()": "app.middleware.RequestIdFilter"},
            "trace_id": {"()": "app.telemetry.TraceIdFilter"},
        },
        "formatters": {"text": {"()": "app.logs.TextFormatter"}, "json": {"()": "app.logs.JsonFormatter"}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": form, "filters": ["request_id", "trace_id"]}
        },
        "root": {"handlers": ["stderr"], "level": level.upper()},
    }
