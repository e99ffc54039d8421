"""The child process that extracts text from documents, with limits of memory and time.

    python -m paratune.corpus.extract.child SETTINGS SOCKET

It reads messages from a socket and sends answers until the socket is closed. A message is the declared MIME type in
JSON, and the bytes of the document. An answer is JSON and never a pickle, because this process reads untrusted
documents. The operating system enforces the limits, address space and CPU seconds, which do not depend on other
processes.
"""

import contextlib
import json
import logging
import math
import resource
import signal
import sys
import warnings
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path

from paratune.base.text import plain
from paratune.corpus.extract.document import RTF, extract, read_office
from paratune.corpus.extract.process import ExtractedText, NoText
from paratune.corpus.settings import Extract

MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file, such as that of its output."""
STRAINED = 0.5
"""Share of the memory limit above which a document is read again in a new process."""
MAX_DETAIL = 500
"""Maximum number of characters of the detail of a dropped document."""
FAILED = "unreadable"
"""Reason for a document that a library cannot read."""


def main() -> None:
    """Read documents until the socket is closed."""
    settings, connection = Extract.model_validate_json(sys.argv[1]), Connection(int(sys.argv[2]))
    memory_bytes = settings.memory_mib << 20
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):  # not possible in some containers
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel kills this process first
    read_office(b"{\\rtf1 .}", RTF)  # starts the threads of kreuzberg, which take address space until the process ends
    start_bytes = _peak_bytes()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    allowed = _limit(resource.RLIMIT_AS, start_bytes + memory_bytes) - start_bytes
    connection.send_bytes(json.dumps({"start_mib": start_bytes >> 20, "left_mib": allowed >> 20}).encode())
    while True:
        try:
            declared, payload = json.loads(connection.recv_bytes()), connection.recv_bytes()
        except EOFError:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + settings.time_s)
        result = _read(payload, declared, settings)
        strained = _peak_bytes() - start_bytes > STRAINED * memory_bytes
        if strained and isinstance(result, NoText) and result.reason == FAILED:  # libraries hide memory errors
            result = NoText("memory", result.detail)
        if isinstance(result, NoText):  # messages of libraries may contain bytes of the document
            result = replace(result, detail=plain(result.detail)[:MAX_DETAIL])
        connection.send_bytes(json.dumps([asdict(result), strained]).encode())


def _read(payload: bytes, declared: str | None, settings: Extract) -> ExtractedText | NoText:
    try:
        return extract(payload, declared, settings)
    except MemoryError:
        return NoText("memory", "out of memory")
    except RecursionError:
        return NoText(FAILED, "it is nested too deeply")
    except Exception as error:  # any exception of a library
        return NoText(FAILED, " ".join(f"{type(error).__name__}: {error}".split()))


def _limit(which: int, most: int) -> int:
    """Set a limit, and return it: the hard one of the machine if that is lower."""
    _, hard = resource.getrlimit(which)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (allowed, hard))
    return allowed


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmPeak")


if __name__ == "__main__":
    main()
