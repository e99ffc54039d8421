"""Limits of the server, and the HTTP status of refused requests."""

from dataclasses import dataclass

DEFAULT_STATUS = 422
STATUS = {
    "serve.path": 404,
    "serve.method": 405,
    "serve.token": 401,
    "serve.host": 403,
    "serve.body_timeout": 408,
    "serve.body_too_large": 413,
    "serve.content_type": 415,
    "serve.rate": 429,
    "serve.queue_full": 429,
    "serve.client_gone": 499,
    "serve.failed": 500,
}
"""HTTP status by the code of an error; other errors of a request are `DEFAULT_STATUS`."""


@dataclass(frozen=True)
class ServingLimits:
    """Limits of requests and of batches."""

    max_wait_s: float = 0.005
    """Longest time that a row waits for others to fill its batch, while the model is idle."""
    max_tokens: int = 2048
    """Most tokens of a batch; a longer row is computed alone."""
    max_rows: int = 64
    """Most rows of a request."""
    max_chars: int = 20_000
    """Most characters of a text."""
    max_body_bytes: int = 1 << 20
    max_queue: int = 256
    """Most rows in the queue."""
    rate_per_s: float = 50.0
    """Requests per second of a client, with a burst of twice as many."""
    body_timeout_s: float = 30.0
    """Longest time in which a client sends its body."""
