"""What the server counts, for Prometheus: one registry to an engine, so that two in a process do not mix."""

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

MEDIA_TYPE = CONTENT_TYPE_LATEST

_LABELS = ("operator", "model")


class Metrics:
    """The counters, which any thread may raise: `metrics.chunks.labels("jacobian", "seed-gru").inc()`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.chunks = Counter(
            "pushforward_chunks_total", "Chunks of Jacobians computed.", _LABELS, registry=self.registry
        )
        self.abandoned = Counter(
            "pushforward_abandoned_total",
            "Calls given up before their last chunk, because the client left or the deadline passed.",
            _LABELS,
            registry=self.registry,
        )

    def page(self) -> bytes:
        """Write all of them in the text format."""
        return generate_latest(self.registry)
