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


def process_id(path):
    """Keep the number of the process."""
    time.sleep(0.2)  # so that the other process gets a shard, too
    yield {"number": os.getpid()}


def slow(start, stop):
    """Keep numbers, a tenth of a second each."""
    for number in range(start, stop):
        time.sleep(0.1)
        yield {"number": number}


def waits(make, tasks, logs):
    """Take the place of an executor whose tasks do not begin."""
    time.sleep(3600)


def dies_at_3(number, *_):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    yield {"number": number}


def refuses(number, *_):
    raise DataError(f"input {number} is bad", code="data.empty")
    yield


def letters(text):
    """Return each letter of a text as a key, and None for a full stop."""
    return (None if letter == "." else letter.encode() for letter in text)


def fails_at_1(number):
    if number == 1:
        raise ValueError("the reason")
    time.sleep(2)
    yield {"number": number}
