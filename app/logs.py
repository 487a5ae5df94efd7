"""The log of the server: one line per event on stderr, each with the ids of its request and of its trace."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from app.settings import LogFormat, LogLevel


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


def configuration(level: LogLevel, form: LogFormat) -> dict[str, Any]:
    """Describe the logging for `logging.config.dictConfig`."""
    text = {"format": "%(asctime)s %(levelname)s %(name)s [%(request_id)s %(trace_id)s] %(message)s"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {
            "request_id": {"()": "app.middleware.RequestIdFilter"},
            "trace_id": {"()": "app.telemetry.TraceIdFilter"},
        },
        "formatters": {"text": text, "json": {"()": "app.logs.JsonFormatter"}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": form, "filters": ["request_id", "trace_id"]}
        },
        "root": {"handlers": ["stderr"], "level": level.upper()},
    }
