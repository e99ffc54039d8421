"""The process that reads documents, one after the other, under limits that it sets itself before the first.

    python -m paratune.corpus.extract.child MEMORY_BYTES TIME_S

Messages come on stdin and answers go to stdout (`frames`). It ends by itself when stdin does. The limits are of the
system: address space, and seconds of the processor, so that neither depends on what else the machine does.
"""

import contextlib
import logging
import math
import os
import resource
import signal
import sys
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from paratune.base.text import plain
from paratune.corpus.extract.document import extract, finish
from paratune.corpus.extract.found import Document, Extracted, Kept, Refused
from paratune.corpus.extract.frames import read_frame, write_frame
from paratune.corpus.extract.office import warm_up

MAX_FILE_BYTES = 1 << 20
"""Most that it may write to any file: its messages to stderr are kept in one."""
STRAINED = 0.5
"""Share of the memory that a document may take in a process that has read others before; beyond, it gets a new one."""
MAX_DETAIL = 500
"""Characters of what is said of a document that is dropped."""
FAILED = "unreadable"
"""Reason of what a library stumbles over."""


def main() -> None:
    """Read documents until there are no more."""
    memory_bytes, time_s = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    warnings.simplefilter("ignore")
    frames_in, frames_out = sys.stdin.buffer, _own_stdout()
    _die_first()
    warm_up()
    start_bytes = _peak_bytes()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _limit(resource.RLIMIT_AS, start_bytes + memory_bytes)
    write_frame(frames_out, {"ready": True})
    while (message := read_frame(frames_in)) is not None:
        _limit_time(time_s)
        found = _read(*message)
        strained = _peak_bytes() - start_bytes > STRAINED * memory_bytes
        if strained and isinstance(found, Refused) and found.reason == FAILED:  # libraries hide of what they failed
            found = Refused("memory", found.detail, found.mime)
        if isinstance(found, Refused):  # what a library says may hold bytes of the document
            found = replace(found, detail=plain(found.detail)[:MAX_DETAIL])
        write_frame(frames_out, {"found": asdict(found), "strained": strained})


def _read(header: dict[str, Any], payload: bytes) -> Extracted | Refused:
    try:
        kept = Kept(**header["kept"])
        if "read" in header:  # by another program; what is left is to make it fit to keep
            return finish({"text": payload.decode("utf-8", "replace"), **header["read"]}, kept=kept, **header["as"])
        return extract(Document(payload, **header["document"]), kept)
    except MemoryError:
        return Refused("memory", "no memory was left")
    except RecursionError:
        return Refused(FAILED, "it is nested too deeply")
    except Exception as error:  # of any library, for a document that it did not expect
        return Refused(FAILED, " ".join(f"{type(error).__name__}: {error}".split()))


def _own_stdout() -> BinaryIO:
    """Keep stdout for the answers; what libraries print there goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _die_first() -> None:
    """Ask the system to end this process before others when the machine has no memory left."""
    with contextlib.suppress(OSError):  # not in every container
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (allowed, hard))


def _limit_time(time_s: int) -> None:
    """End this process when it has used so many more seconds of the processor; nothing in it can hold that off."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + time_s)


def _peak_bytes() -> int:
    """Return the most address space that this process has had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmPeak")


if __name__ == "__main__":
    main()
