"""What is told of every request: its trace (W3C Trace Context), and one line in the log when it is over.

FastAPI makes the spans itself, from the request's `traceparent`, as soon as a tracer provider of OpenTelemetry is set
up; here their ids, or without spans those that came, are given to the log and sent back.
"""

import logging
from collections.abc import Sequence
from contextvars import Token

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from app.headers import header

Lines = Sequence[tuple[bytes, bytes]]

_W3C = TraceContextTextMapPropagator()

# Longer texts of a request are cut in the log.
_LONGEST = 200

_log = logging.getLogger("app.access")


class TraceIdFilter(logging.Filter):
    """Gives each log record the `trace_id` of the trace in whose context it was written."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        span = trace.get_current_span().get_span_context()
        record.trace_id = trace.format_trace_id(span.trace_id) if span.is_valid else "-"
        return True


def follow(scope: Scope) -> tuple[Lines, Token[context.Context] | None]:
    """Continue the trace that a request's `traceparent` names.

    One that does not follow https://www.w3.org/TR/trace-context/ is ignored.

    Returns:
        The headers that tell the trace to whoever asked, and what `leave` needs.
    """
    current = context.get_current()
    if not trace.get_current_span(current).get_span_context().is_valid:
        if not header(scope, b"traceparent"):
            return (), None
        current = _W3C.extract(Headers(scope=scope), current)
    sent_back: dict[str, str] = {}
    _W3C.inject(sent_back, current)
    lines = [(name.encode(), value.encode()) for name, value in sent_back.items()]
    return lines, context.attach(current)


def leave(token: Token[context.Context] | None) -> None:
    """End what `follow` began."""
    if token is not None:
        context.detach(token)


def tell(scope: Scope, status: int | None, seconds: float, failure: str | None) -> None:
    """Log a request, and have it counted if it was one to an operator.

    Its query, headers and body are never logged: they may hold secrets. Whoever handled the request may have told more
    of it in `request.state`: `operator`, `model` and `caller`.

    Args:
        scope: the request's.
        status: of its answer; None if there was none.
        seconds: from its headers to the answer's end.
        failure: the kind of exception that ended it, if one did.
    """
    _count(scope, status, seconds)
    _write(scope, status, seconds, failure)


def _count(scope: Scope, status: int | None, seconds: float) -> None:
    """Have the engine count a request to an operator; one that was cut off has the status that nginx gives it."""
    state, app = scope.get("state", {}), scope["app"]
    operator = scope["path"].removeprefix("/")
    if scope["method"] == "POST" and scope["path"] in app.state.direct and app.state.engine is not None:
        app.state.engine.count(operator, state.get("model", ""), status or 499, seconds)


def _write(scope: Scope, status: int | None, seconds: float, failure: str | None) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    client, state = scope.get("client"), scope.get("state", {})
    fields = {
        "client": client[0] if client else None,
        "caller": state.get("caller"),
        "method": scope["method"],
        "path": _shown(scope["path"]),
        "status": status,
        "duration_ms": round(seconds * 1e3, 3),
        "operator": state.get("operator"),
        "model": _shown(state["model"]) if "model" in state else None,
        "failure": failure,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    _log.info(" ".join(f"{name}={value}" for name, value in known.items()), extra={"fields": known})


def _shown(text: str) -> str:
    # A line break or a terminal's escape in it would forge lines of the log.
    cut = text[:_LONGEST]
    return cut if cut.isprintable() and " " not in cut else ascii(cut)
