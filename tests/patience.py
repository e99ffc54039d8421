"""Waiting times of tests: `from patience import PATIENCE_S, wait_for`.

A limit only costs time when it is reached: a test that waits for a condition ends as soon as it holds. This limit is
for a busy machine that is ten times slower than most.
"""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 600.0
T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"nothing after {timeout_s:g} s"
        time.sleep(0.01)
    return value
