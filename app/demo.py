"""`make demo`: start the server, ask it for a JVP over HTTP, check the answer against finite differences, stop."""

import os
import socket
import sys
import threading
import time

import numpy as np
import uvicorn

from app.main import create_app
from app.settings import Settings
from pushforward import Client

_LINES = "{:>4}  {:>22}  {:>22}"


def main() -> int:
    """Run the demonstration; the exit status is 0 if the derivative agrees with finite differences."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print("starting the server with the built-in models …", flush=True)
    listener = socket.create_server(("127.0.0.1", 0))
    settings = Settings(host="127.0.0.1", port=listener.getsockname()[1], models=("seed-gru",), log_level="warning")
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start; its log is above")
            time.sleep(0.05)
        return _ask(f"http://127.0.0.1:{settings.port}")
    finally:
        server.should_exit = True
        thread.join()


def _ask(url: str) -> int:
    x = np.linspace(0.1, 0.8, 8).reshape(1, 8, 1)
    v = np.sin(np.arange(1.0, 9.0)).reshape(1, 8, 1)
    with Client(url) as client:
        found = client.jvp("seed-gru", {"x": x}, {"x": v})
        step = 1e-5
        ahead, behind = (client.evaluate("seed-gru", {"x": x + s * step * v}).outputs["y"] for s in (1, -1))
    pushed, differences = found.tangents["y"], (ahead - behind) / (2 * step)
    print(f"POST {url}/jvp  model seed-gru, x of shape {x.shape}, one tangent; info {dict(found.info)}\n")
    print(_LINES.format("step", "tangent of y", "central difference"))
    for t in range(x.shape[1]):
        print(_LINES.format(t, f"{pushed[0, t, 0]:.15f}", f"{differences[0, t, 0]:.15f}"))
    error = float(np.abs(pushed - differences).max() / np.abs(pushed).max())
    good = error < 1e-7
    print(f"\nlargest difference {error:.1e} of the largest tangent: {'they agree' if good else 'THEY DIFFER'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
