"""`python -m app`: the server in the foreground, one process per device."""

import argparse
import ipaddress
import logging.config
import os
from functools import partial
from pathlib import Path

import uvicorn

from app.logs import configuration
from app.main import create_app
from app.settings import Settings, variable

# Longer than clients keep idle connections, so that none of them sends into one that is just being closed.
KEEP_ALIVE_S = 75


_log = logging.getLogger("app")


def log_access(host: str, keys_file: Path | None) -> None:
    """Say who can use the server: before it listens, since it should not surprise whoever starts it."""
    if keys_file is not None:
        _log.info("requests need an API key of %s", keys_file)
    elif _loopback(host):
        _log.info("no API keys (%s is not set), so listening on loopback only: %s", variable("api_keys_file"), host)
    else:
        _log.warning(
            "no API keys, but listening on %s: whoever reaches it may use it; set %s",
            host or "every interface",
            variable("api_keys_file"),
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own warnings, many at each start
    settings = Settings()
    parser = argparse.ArgumentParser(prog="python -m app", description=__doc__)
    parser.add_argument("--host", default=settings.host, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=settings.port, help="port to listen on (default: %(default)s)")
    arguments = parser.parse_args()
    logging.config.dictConfig(configuration(settings.log_level, settings.log_format))
    log_access(arguments.host, settings.api_keys_file)
    uvicorn.run(
        partial(create_app, settings),
        factory=True,
        host=arguments.host,
        port=arguments.port,
        # A second worker would have its own engine: neither batches nor compiled programs are shared.
        workers=1,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,  # The application writes its own, which knows more.
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_s,
        server_header=False,
    )


if __name__ == "__main__":
    main()
