"""How long tests wait for what takes seconds: `from patience import PATIENCE_S, wait_for`.

A test that waits for a condition is as quick as the machine, and a limit costs nothing where it is not reached: this
one is for a machine that is busy and ten times slower than most.
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
