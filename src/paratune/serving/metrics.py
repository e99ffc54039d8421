"""Metrics of the server in the text format of Prometheus; nothing is sent, `/metrics` is read."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """Counters of one server, in a separate registry."""

    def __init__(self, num_queued: Callable[[], int], num_explanations: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        to = self._registry
        self._requests = Counter(
            "paratune_requests", "Requests by path and HTTP status.", ["path", "status"], registry=to
        )
        self._latency = Histogram(
            "paratune_request_seconds", "Time from a request to its answer.", ["path"], buckets=_SECONDS, registry=to
        )
        self._tokens = Counter("paratune_tokens", "Tokens that were computed.", registry=to)
        self._batch_rows = Histogram("paratune_batch_rows", "Rows of a batch.", buckets=_ROWS, registry=to)
        self._batch_tokens = Histogram("paratune_batch_tokens", "Tokens of a batch.", buckets=_TOKENS, registry=to)
        Gauge("paratune_queued_rows", "Rows that wait for a batch.", registry=to).set_function(num_queued)
        explanations = Gauge("paratune_explanations", "Explanations that wait or are computed.", registry=to)
        explanations.set_function(num_explanations)

    def count_request(self, path: str, status: int, duration_s: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._latency.labels(path).observe(duration_s)

    def count_batch(self, num_rows: int, num_tokens: int) -> None:
        self._batch_rows.observe(num_rows)
        self._batch_tokens.observe(num_tokens)
        self._tokens.inc(num_tokens)

    def text(self) -> bytes:
        """Return all metrics in the text format, version 0.0.4."""
        return generate_latest(self._registry)
