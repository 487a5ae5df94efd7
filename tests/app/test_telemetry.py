"""Traces: without a provider ids are only passed on; with one, FastAPI makes the spans and their ids are told."""

import logging
import random
from dataclasses import dataclass, field

import httpx2
import pytest
from opentelemetry import trace

from app.telemetry import TraceIdFilter

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def traces(caplog):
    """The trace ids of the access lines so far."""
    caplog.handler.addFilter(passing := TraceIdFilter())
    caplog.set_level(logging.INFO, "app.access")
    yield lambda: [record.trace_id for record in caplog.records if record.name == "app.access"]
    caplog.handler.removeFilter(passing)


def test_a_trace_is_passed_on(shell, traces):
    response = shell.get("/health/live", headers={"traceparent": VALID, "tracestate": "a=1,b=2"})
    assert response.headers["traceparent"] == VALID
    assert response.headers["tracestate"] == "a=1,b=2"
    assert "traceparent" not in shell.get("/health/live").headers
    assert traces() == [TRACE, "-"]


def test_a_later_version_is_read_as_far_as_it_is_known(shell, traces):
    shell.get("/health/live", headers={"traceparent": f"cc-{TRACE}-{PARENT}-01-what-will-be"})
    assert traces() == [TRACE]


@pytest.mark.parametrize(
    "invalid",
    [
        "",
        "nonsense",
        VALID[:-1],
        f"{VALID}-more",
        VALID.upper(),
        f"ff{VALID[2:]}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        f"{VALID};",
        VALID * 100,
    ],
)
def test_what_is_no_trace_is_ignored(shell, traces, invalid):
    response = shell.get("/health/live", headers={"traceparent": invalid})
    assert response.status_code == 200
    assert "traceparent" not in response.headers
    assert traces() == ["-"]


async def test_a_trace_ends_with_its_request(fake_app, traces):
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(fake_app), base_url="http://test") as client:
        await client.get("/health/live", headers={"traceparent": VALID})
        await client.get("/health/live")
    assert traces() == [TRACE, "-"]


@dataclass
class Span(trace.NonRecordingSpan):
    """A span that remembers; the rest of what a span can do leads nowhere."""

    name: str
    kind: trace.SpanKind
    parent: trace.SpanContext
    attributes: dict = field(default_factory=dict)
    ended: bool = False

    def __post_init__(self):
        trace_id = self.parent.trace_id if self.parent.is_valid else random.getrandbits(128)
        super().__init__(trace.SpanContext(trace_id, random.getrandbits(64), is_remote=False))

    def update_name(self, name):
        self.name = name

    def set_attributes(self, attributes):
        self.attributes |= attributes

    def end(self, end_time=None):
        self.ended = True


class Provider(trace.TracerProvider, trace.Tracer):
    """What a process with an SDK of OpenTelemetry sets up."""

    def __init__(self):
        self.spans = []

    def get_tracer(self, *_, **__):
        return self

    def start_span(self, name, context=None, kind=trace.SpanKind.INTERNAL, attributes=None, **_):
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(Span(name, kind, parent, dict(attributes or {})))
        return self.spans[-1]

    start_as_current_span = trace.NoOpTracer.start_as_current_span


@pytest.fixture
def provider(monkeypatch):
    provider = Provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider


def test_a_span_around_each_request(provider, shell, traces):
    body = {"model": "echo", "inputs": {"x": [1.0]}}
    response = shell.post("/evaluate", json=body, headers={"traceparent": VALID})
    (span,) = [span for span in provider.spans if span.kind == trace.SpanKind.SERVER]
    assert span.ended
    assert span.name == "POST /evaluate"
    assert trace.format_trace_id(span.parent.trace_id) == TRACE
    assert trace.format_span_id(span.parent.span_id) == PARENT
    assert span.attributes["http.response.status_code"] == 200
    own = trace.format_span_id(span.get_span_context().span_id)
    assert response.headers["traceparent"].startswith(f"00-{TRACE}-{own}-")
    assert traces() == [TRACE]


def test_a_span_of_its_own_when_no_trace_came(provider, shell, traces):
    shell.get("/health/live", headers={"traceparent": "nonsense"})
    (span,) = [span for span in provider.spans if span.kind == trace.SpanKind.SERVER]
    assert traces() == [trace.format_trace_id(span.get_span_context().trace_id)]
