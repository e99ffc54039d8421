"""What the stages of the tests do to an input; in a module that other processes can import."""

import os
import signal
import time
from pathlib import Path

from paratune.corpus.rows import Lost
from paratune.errors import DataError


def even(each):
    """Keep even numbers."""
    for number in range(*each):
        yield {"number": number} if number % 2 == 0 else Lost(f"u{number}", "odd", str(number))


def marked(each):
    folder, number = each
    Path(folder, f"{number}.{time.monotonic_ns()}").touch()
    yield {"number": number}


def dies_once(each):
    flag, number = each
    if number == 1 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield {"number": number}


def dies(each):
    os.kill(os.getpid(), signal.SIGKILL)
    yield {"number": each}


def refuses(each):
    raise DataError(f"input {each} is bad", code="data.empty")
    yield


def letters(each):
    """Return each letter of a text as a key; a full stop has none."""
    return (None if letter == "." else letter.encode() for letter in each)
