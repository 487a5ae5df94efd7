"""`python -m app`: the server in the foreground, one process per device."""

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app.connection import impatient
from app.logs import configure
from app.main import create_app
from app.settings import Settings, is_loopback, variable

# Longer than clients keep idle connections, so that none of them sends into one that is just being closed.
KEEP_ALIVE_S = 75


_log = logging.getLogger("app")


def log_access(host: str, keys_file: Path | None) -> None:
    """Say who can use the server: before it listens, since it should not surprise whoever starts it."""
    if keys_file is not None:
        _log.info("requests need an API key of %s", keys_file)
    elif is_loopback(host):
        _log.info("no API keys (%s is not set), so listening on loopback only: %s", variable("api_keys_file"), host)
    else:
        _log.warning(
            "no API keys, but listening on %s: whoever reaches it may use it; set %s",
            host or "every interface",
            variable("api_keys_file"),
        )


class Server(uvicorn.Server):
    """Stops on the first SIGTERM as uvicorn does, but not before those had time to go elsewhere who ask if it is ready.

    Args:
        config: uvicorn's.
        app: what it serves.
        drain_s: how long it still accepts requests.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_s: float) -> None:
        super().__init__(config)
        self._app, self._drain_s = app, drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal is for those who can't wait."""
        state = self._app.state
        if self._drain_s == 0 or sig != signal.SIGTERM or state.draining:
            super().handle_exit(sig, frame)
            return
        state.draining = True
        threading.Timer(self._drain_s, super().handle_exit, (sig, frame)).start()


def _end(sig: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own warnings, many at each start
    settings = Settings()
    parser = argparse.ArgumentParser(prog="python -m app", description=__doc__)
    parser.add_argument("--host", default=settings.host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=settings.port, help="port to listen on (default: %(default)s)")
    arguments = parser.parse_args()
    configure(settings.log_level, settings.log_format)
    log_access(arguments.host, settings.api_keys_file)
    app = create_app(settings.model_copy(update={"host": arguments.host}))
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        # A second worker would have its own engine: neither batches nor compiled programs are shared.
        workers=1,
        log_config=None,
        http=impatient(settings.body_timeout_s, settings.send_timeout_s),
        log_level=settings.log_level,
        access_log=False,  # The application writes its own, which knows more.
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_s,
        server_header=False,
    )
    # uvicorn hands SIGTERM on once it has finished: this is where the process ends, well.
    signal.signal(signal.SIGTERM, _end)
    Server(config, app, settings.drain_s).run()


if __name__ == "__main__":
    main()
