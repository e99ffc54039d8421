"""Functions for stages in tests, in a module which other processes can import."""

import os
import signal
import time
from pathlib import Path

from paratune.corpus.shard import DroppedRow
from paratune.errors import DataError


def even(start, stop):
    """Keep even numbers."""
    for number in range(start, stop):
        yield {"number": number} if number % 2 == 0 else DroppedRow(f"u{number}", "odd", str(number))


def marked(folder, number):
    Path(folder, f"{number}.{time.monotonic_ns()}").touch()
    yield {"number": number}


def dies_once(flag, number):
    if number == 1 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield {"number": number}


def dies(number):
    os.kill(os.getpid(), signal.SIGKILL)
    yield {"number": number}


def refuses(number, *_):
    raise DataError(f"input {number} is bad", code="data.empty")
    yield


def letters(text):
    """Return each letter of a text as a key, and None for a full stop."""
    return (None if letter == "." else letter.encode() for letter in text)
