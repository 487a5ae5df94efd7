"""What the server measures, for Prometheus: one registry to an engine, so that two in a process do not mix."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics import MetricWrapperBase

M = TypeVar("M", bound=MetricWrapperBase)

MEDIA_TYPE = CONTENT_TYPE_LATEST

_LABELS = ("operator", "model")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The measures, which any thread may add to: `metrics.chunks.labels("jacobian", "seed-gru").inc()`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests answered, or refused, by HTTP status.", "status")
        self.chunks = self._counter("chunks", "Chunks of Jacobians computed.")
        self.abandoned = self._counter(
            "abandoned", "Calls given up before their last chunk, because the client left or the deadline passed."
        )
        self.request_seconds = self._histogram("request_seconds", "From a request's headers to its answer's end.")
        self.queue_seconds = self._histogram("queue_seconds", "What a call waited for the device, in seconds.")
        self.compute_seconds = self._histogram("compute_seconds", "What a call was computed for, in seconds.")
        self.batch_rows = self._histogram("batch_rows", "Rows that were computed together.", _ROWS)

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Show a number that somebody else keeps: `read` is called for each page."""
        Gauge(f"pushforward_{name}", documentation, registry=self.registry).set_function(read)

    def forget(self, model: str) -> None:
        """Show no more of a model that is gone."""
        for measure in (
            self.requests,
            self.chunks,
            self.abandoned,
            self.request_seconds,
            self.queue_seconds,
            self.compute_seconds,
            self.batch_rows,
        ):
            measure.remove_by_labels({"model": model})
        labelled.cache_clear()

    def page(self) -> bytes:
        """Write all of them in the text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"pushforward_{name}_total", documentation, (*_LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(f"pushforward_{name}", documentation, _LABELS, registry=self.registry, buckets=buckets)


# Finding one by its labels takes longer than adding to it.
@lru_cache(4096)
def labelled(measure: M, *labels: str | int) -> M:
    """Return the part of a measure that has these labels."""
    return measure.labels(*labels)
