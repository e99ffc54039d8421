"""Readers get files that Hypothesis draws: valid files, and damaged copies of each.

Each batch runs in a separate process: only that process ends if a reader crashes or hangs in native code. Hypothesis
draws the document and a seed for each damaged copy; when a trial is repeated alone, it reduces a failure to a small
example.
"""

import faulthandler
import json
import logging
import os
import random
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from . import warm
from .findings import DIFFERENCE, STUCK, TRACEBACK, Finding

EXAMPLES = 100
"""Documents of a batch."""
COPIES = 4
"""Damaged copies of each document."""
INPUT_S = 30.0
"""Seconds that a reader may take for one input."""
BATCH_S = 600.0
_LONGEST = 4
"""Maximum number of edits of a damaged copy."""


class Difference(AssertionError):
    """A reader returned a wrong result for an input."""


class Stuck(BaseException):
    """A reader took too long for an input; no reader catches this exception."""


@dataclass(frozen=True)
class Reader:
    """A reader of one kind of file, and its checks."""

    name: str
    documents: st.SearchStrategy[Any]
    render: Callable[[Any], bytes]
    """The valid file of a document."""
    whole: Callable[[Any, bytes, Path], None]
    """Called with a document, its file and an empty folder; raises `Difference` if the reader's result is wrong."""
    damaged: Callable[[Any, bytes, Path], None]
    """The same for a damaged file."""
    prepare: Callable[[], None] = lambda: None
    """Called before the first input, in the process from which batches are forked; may be called again."""


def differ(subject: str, expected: Any, actual: Any) -> None:
    """Raise `Difference` if two values differ."""
    if expected != actual and not (expected != expected and actual != actual):
        raise Difference(f"{subject}: {str(actual)[:500]}, expected {str(expected)[:500]}")


def damage(raw: bytes, draw: random.Random) -> bytes:
    """Return a copy of a file with a few edits: bytes flipped, inserted, deleted, duplicated or moved, or truncated."""
    bad = bytearray(raw)
    for _ in range(draw.randint(1, _LONGEST)):
        at, width = draw.randrange(len(bad) + 1), draw.choice((1, 1, 2, 8, 64))
        edit = draw.choice(("flip", "byte", "insert", "delete", "double", "move", "cut"))
        if edit == "flip" and at < len(bad):
            bad[at] ^= 1 << draw.randrange(8)
        elif edit == "byte" and at < len(bad):
            bad[at] = draw.choice(b'\x00\xff\n\r\t",;{}[]:\\ 0-') if draw.random() < 0.5 else draw.randrange(256)
        elif edit == "insert":
            bad[at:at] = (
                draw.randbytes(width) if draw.random() < 0.5 else draw.choice((b'"', b"\n", b"\r", b"\0", b"{"))
            )
        elif edit == "delete":
            del bad[at : at + width]
        elif edit == "double":
            bad[at:at] = bad[at : at + width]
        elif edit == "move":
            part = bad[at : at + width]
            del bad[at : at + width]
            other = draw.randrange(len(bad) + 1)
            bad[other:other] = part
        elif edit == "cut" and draw.random() < 0.3:
            del bad[at:]
    return bytes(bad)


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `Stuck` in the block after some seconds; native code that does not return ends the process soon after."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Stuck(f"did not finish within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(2 * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def feed(
    reader: Reader, seed: int, folder: Path, *, num_examples: int = EXAMPLES, reduces: bool = False
) -> tuple[int, list[Finding]]:
    """Feed a reader in this process.

    Args:
        reader: The reader.
        seed: Seed of the draws.
        folder: Folder for files; emptied for each input.
        num_examples: Number of documents.
        reduces: Whether a failure is reduced to a small example, which takes minutes.

    Returns:
        Number of inputs, and the findings, with trial 0.
    """
    count = 0
    reader.prepare()

    def one_input(check: Callable[[Any, bytes, Path], None], document: Any, raw: bytes) -> None:
        nonlocal count
        count += 1
        with tempfile.TemporaryDirectory(dir=folder) as place, limit(INPUT_S):
            check(document, raw, Path(place))

    @seeded(seed)
    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, *((Phase.shrink,) if reduces else ())),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(reader.documents, st.lists(st.integers(0, 1 << 32), min_size=COPIES, max_size=COPIES))
    def inputs(document: Any, seeds: list[int]) -> None:
        raw = reader.render(document)
        one_input(reader.whole, document, raw)
        for number in seeds:
            one_input(reader.damaged, document, damage(raw, random.Random(number)))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            inputs()
    except (Exception, Stuck) as error:
        sort = DIFFERENCE if isinstance(error, Difference) else STUCK if isinstance(error, Stuck) else TRACEBACK
        text = "".join(traceback.format_exception(error, limit=-6))[-3000:]
        return count, [Finding(sort, reader.name, 0, text)]
    finally:
        logging.disable(logging.NOTSET)
    return count, []


def run_batch(reader: Reader, number: int, seed: int, folder: Path, *, reduces: bool) -> tuple[int, list[Finding]]:
    """Feed a reader in a separate process; return the number of inputs and the findings."""
    own = random.Random(f"{seed}/{reader.name}/{number}").randrange(1 << 32)
    folder.mkdir(parents=True, exist_ok=True)
    output, log = folder / f"{reader.name}.json", folder / f"{reader.name}.out"

    def work() -> None:
        warm.redirect_output(log)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            count, findings = feed(reader, own, Path(place), reduces=reduces)
        output.write_text(
            json.dumps([count, [[batch_findings.sort, batch_findings.text] for batch_findings in findings]])
        )

    output.unlink(missing_ok=True)
    code = _wait(warm.fork(work))
    if code is None or not output.exists():
        sort = STUCK if code is None or code == 1 else TRACEBACK
        output_end = log.read_text("utf-8", "replace")[-3000:]
        return 0, [Finding(sort, reader.name, number, f"the process exited with {code}: {output_end}")]
    count, batch_findings = json.loads(output.read_text())
    for path in (output, log):
        path.unlink(missing_ok=True)
    return count, [Finding(sort, reader.name, number, text) for sort, text in batch_findings]


def _wait(pid: int) -> int | None:
    """Return the exit code of a child; None where it had to be killed."""
    end = time.monotonic() + BATCH_S
    while time.monotonic() < end:
        number, status = os.waitpid(pid, os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
