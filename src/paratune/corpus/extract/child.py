"""The child process that extracts text from documents, with limits of memory and time.

    python -m paratune.corpus.extract.child MEMORY_BYTES TIME_S

It reads messages from stdin and writes answers to stdout (`frames`) until stdin ends. The operating system enforces the
limits, address space and CPU seconds, which do not depend on other processes.
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
from paratune.corpus.extract.frames import read_frame, write_frame
from paratune.corpus.extract.office import warm_up
from paratune.corpus.extract.results import Document, ExtractedText, NoText, TextLimits

MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file, such as that of its stderr."""
STRAINED = 0.5
"""Share of the memory limit above which a document is read again in a new process."""
MAX_DETAIL = 500
"""Maximum number of characters of the detail of a dropped document."""
FAILED = "unreadable"
"""Reason for a document that a library cannot read."""


def main() -> None:
    """Read documents until stdin ends."""
    memory_bytes, time_s = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    warnings.simplefilter("ignore")
    frames_in, frames_out = sys.stdin.buffer, _own_stdout()
    _prefer_for_oom_killer()
    warm_up()
    start_bytes = _peak_bytes()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _limit(resource.RLIMIT_AS, start_bytes + memory_bytes)
    write_frame(frames_out, {"ready": True})
    while (message := read_frame(frames_in)) is not None:
        _limit_time(time_s)
        result = _read(*message)
        strained = _peak_bytes() - start_bytes > STRAINED * memory_bytes
        if strained and isinstance(result, NoText) and result.reason == FAILED:  # libraries hide memory errors
            result = NoText("memory", result.detail, result.mime)
        if isinstance(result, NoText):  # messages of libraries may contain bytes of the document
            result = replace(result, detail=plain(result.detail)[:MAX_DETAIL])
        write_frame(frames_out, {"result": asdict(result), "strained": strained})


def _read(header: dict[str, Any], payload: bytes) -> ExtractedText | NoText:
    try:
        limits = TextLimits(**header["limits"])
        if "read" in header:  # text of another program, to be normalised
            return finish({"text": payload.decode("utf-8", "replace"), **header["read"]}, limits=limits, **header["as"])
        return extract(Document(payload, **header["document"]), limits)
    except MemoryError:
        return NoText("memory", "out of memory")
    except RecursionError:
        return NoText(FAILED, "it is nested too deeply")
    except Exception as error:  # any exception of a library
        return NoText(FAILED, " ".join(f"{type(error).__name__}: {error}".split()))


def _own_stdout() -> BinaryIO:
    """Return stdout for answers, and redirect the output of libraries to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _prefer_for_oom_killer() -> None:
    """Make the kernel kill this process first when memory runs out."""
    with contextlib.suppress(OSError):  # not possible in some containers
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (allowed, hard))


def _limit_time(time_s: int) -> None:
    """Limit this process to `time_s` more seconds of CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + time_s)


def _peak_bytes() -> int:
    """Return the peak address space of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmPeak")


if __name__ == "__main__":
    main()
