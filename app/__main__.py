"""`python -m app`: the server in the foreground, one process per device."""

import argparse
import os
from functools import partial
from typing import Any

import uvicorn

from app.connection import impatient
from app.main import create_app
from app.settings import Settings

# Longer than clients keep idle connections, so that none of them sends into one that is just being closed.
KEEP_ALIVE_S = 75


def log_config(level: str) -> dict[str, Any]:
    """Describe the logging: one line per event on stderr, each with the id of the request it belongs to."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request_id": {"()": "app.middleware.RequestIdFilter"}},
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request_id"]}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
    }


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own warnings, many at each start
    settings = Settings()
    parser = argparse.ArgumentParser(prog="python -m app", description=__doc__)
    parser.add_argument("--host", default=settings.host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=settings.port, help="port to listen on (default: %(default)s)")
    arguments = parser.parse_args()
    uvicorn.run(
        partial(create_app, settings),
        factory=True,
        host=arguments.host,
        port=arguments.port,
        # A second worker would have its own engine: neither batches nor compiled programs are shared.
        workers=1,
        http=impatient(settings.body_timeout_s),
        log_config=log_config(settings.log_level),
        log_level=settings.log_level,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_s,
        server_header=False,
    )


if __name__ == "__main__":
    main()
