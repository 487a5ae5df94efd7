"""`python -m app.health`: ask the server in this container if it is ready, as health checks do that have no curl.

It runs every few seconds beside the server, so it imports neither the application nor its settings.
"""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main() -> int:
    """Return 0 if the server accepts requests; else say why not and return 1."""
    url = f"http://127.0.0.1:{os.environ.get('PUSHFORWARD_PORT', '8000')}/health/ready"
    try:
        # Not through a proxy that the environment may name.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=TIMEOUT_S):
            return 0
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
