"""From a started engine to a drained one: what the server holds while it accepts requests."""

import gc
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypedDict

from fastapi import FastAPI

from app.faces._face import Engine

# How long the event loop waits for the interpreter's lock while a codec's thread has it, several times per request:
# with Python's 5 ms a probe took up to 90 ms beside a large JSON body, with 1 ms 40 ms, at the same throughput.
SWITCH_INTERVAL_S = 0.001


class State(TypedDict):
    """What a request finds in `request.state`."""

    engine: Engine


def lifespan(make_engine: Callable[[], Engine]) -> Callable[[FastAPI], AbstractAsyncContextManager[State]]:
    """Make the lifespan around one engine: built and warm before the first request, drained after the last."""

    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncGenerator[State]:
        engine = make_engine()
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            await engine.start()
            # A collection would look at all of TensorFlow and the models again, which stops everything for 0.3 s.
            gc.collect()
            gc.freeze()
            # For the OpenAPI document, whose examples need the models: it is built without a request at hand.
            app.state.engine = engine
            yield {"engine": engine}
        finally:
            app.state.engine = None
            await engine.close()
            gc.unfreeze()
            sys.setswitchinterval(before)

    return run
