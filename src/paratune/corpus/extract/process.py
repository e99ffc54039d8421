"""Starts and watches the child process that reads documents, and replaces it when it dies.

A document that kills its process or exceeds a limit is read again by a new process, so that the result does not depend
on other documents. The time limit is CPU time, which does not depend on other processes of the machine; the limit of
wall time only ends a process that blocks.
"""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pydantic import TypeAdapter

from paratune.base.text import plain
from paratune.corpus.settings import Extract
from paratune.errors import LaunchError


@dataclass(frozen=True)
class ExtractedText:
    """The text of a document."""

    mime: str
    """MIME type by the first bytes."""
    text: str
    """A paragraph per line."""
    extractor: str
    """Library that extracted it."""
    title: str | None = None
    charset: str | None = None
    """Name in the Encoding standard (windows-1252), for plain text and HTML."""


@dataclass(frozen=True)
class NoText:
    """The reason why a document has no text."""

    reason: str
    """A few words; documents are counted by reason."""
    detail: str
    """The offending value."""


COMMAND = ("-P", "-m", "paratune.corpus.extract.child")
"""Arguments of Python; -P, so that files in the working directory are not imported."""
CLOCK_FACTOR = 10
"""Limit of wall time, in multiples of the limit of CPU time."""
LOOK_S = 1.0
"""Seconds between two looks at the clock; a timer for each document would start a thread for each."""
START_S = 600.0
"""Seconds that a process may take to start."""
NUM_TRIES = 2
"""Attempts to read a document before it is dropped, the last one in a new process."""
KILLED_TRIES, KILLED_WAIT_S = 5, 2.0
"""Attempts to read a document whose process is killed from outside, such as by the kernel when memory runs out, and
seconds of the first wait, which doubles each time."""
BYTES_A_CHARACTER = 12
"""Maximum bytes of a character in JSON: two escaped surrogates."""
OTHER_BYTES = 1 << 20
"""Maximum bytes of an answer, besides the text."""
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # arenas of threads take address space
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "RAYON_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
}
_NO_MEMORY = ("memory allocation of", "bad_alloc", "MemoryError", "ut of memory", "annot allocate memory")
"""Messages of libraries when memory runs out."""

_ANSWER = TypeAdapter(tuple[ExtractedText | NoText, bool])
"""Result, and whether the process needed much memory."""


class DocumentReader(AbstractContextManager["DocumentReader"]):
    """Reads documents in a child process; a context manager that ends the process."""

    def __init__(self, settings: Extract) -> None:
        self._settings = settings
        self._max_answer_bytes = OTHER_BYTES + BYTES_A_CHARACTER * settings.max_characters
        self._process: _Process | None = None

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, payload: bytes, declared: str | None) -> ExtractedText | NoText:
        """Return the text of a document, or the reason why there is none; `declared` is its declared MIME type.

        Raises:
            LaunchError: The process cannot be started.
        """
        num_tries = num_killed = 0
        while True:
            is_new = self._process is None
            num_tries += 1
            try:
                process = self._process = self._process or _Process(self._settings)
                result, strained = process.request(payload, declared, self._max_answer_bytes)
            except _Died as death:
                self._end()
                result = death.refused
                is_final = is_new and num_tries >= NUM_TRIES
                if death.by_others:
                    num_killed += 1
                    is_final = num_killed == KILLED_TRIES
                    time.sleep(0 if is_final else KILLED_WAIT_S * 2 ** (num_killed - 1))
            else:
                is_full = strained or (isinstance(result, NoText) and result.reason == "memory")
                is_final = is_new or not is_full
                if is_full:
                    self._end()
            if is_final:
                return result

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


@dataclass(eq=False)
class _Died(Exception):
    """The process ended without an answer."""

    refused: NoText
    by_others: bool = False


class _Process:
    def __init__(self, settings: Extract) -> None:
        self._time_s = settings.time_s
        self._was_late = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._connection, own = multiprocessing.Pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND, settings.model_dump_json(), str(own.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, **ENVIRONMENT},
                pass_fds=[own.fileno()],
            )
        except OSError as error:
            message = f"extract: the process cannot be started ({error}); fewer workers may help"
            raise LaunchError(message, code="launch.not_started", key="extract") from error
        finally:
            own.close()
        self._deadline, self._ended = time.monotonic() + START_S, threading.Event()
        threading.Thread(target=self._kill_late, daemon=True).start()
        try:
            started = json.loads(self._connection.recv_bytes(OTHER_BYTES))
        except (EOFError, OSError):
            death, output = self._death(), self._output_end()
            self.end()
            if death.by_others:  # such as by the kernel when memory runs out: started again, as when it reads
                raise death from None
            message = f"extract: the process that reads documents does not start: {output or 'no output'}"
            raise LaunchError(message, code="launch.not_started", key="extract") from None
        if started["left_mib"] < settings.memory_mib:
            # Otherwise documents would fail for lack of memory that the settings promise.
            self.end()
            message = f"extract.memory_mib: {settings.memory_mib} is more than the {started['left_mib']} MiB that the "
            message += "hard limit of address space (ulimit -Hv) leaves to a document besides the "
            message += f"{started['start_mib']} MiB of its process; lower the setting, or raise the limit"
            raise LaunchError(message, code="launch.not_started", key="extract.memory_mib", **started)

    def request(self, payload: bytes, declared: str | None, max_bytes: int) -> tuple[ExtractedText | NoText, bool]:
        """Send a document and return the answer, and whether the process needed much memory.

        Raises:
            _Died: There was no valid answer.
        """
        try:
            self._deadline = time.monotonic() + CLOCK_FACTOR * self._time_s
            self._connection.send_bytes(json.dumps(declared).encode())
            self._connection.send_bytes(payload)
            received = self._connection.recv_bytes(max_bytes)
            self._deadline = math.inf
            result, strained = _ANSWER.validate_python(json.loads(received))
            "".join(filter(None, vars(result).values())).encode()  # raises for lone surrogates
            return result, strained
        except (EOFError, ConnectionError):
            raise self._death() from None
        except (OSError, ValueError) as error:  # too long, or not an answer
            if self._was_late:  # an answer that ends in the middle
                raise self._death() from None
            raise _Died(NoText("crashed", f"its answer cannot be read: {plain(error)}")) from error

    def _kill_late(self) -> None:
        """Kill the process after its deadline: it may also block in the middle of a message."""
        while not self._ended.wait(LOOK_S):
            if time.monotonic() > self._deadline:
                self._was_late = True
                self._process.kill()
                return

    def end(self) -> None:
        """Kill the process and close its files."""
        self._ended.set()
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._output.close()

    def _death(self) -> _Died:
        code = self._process.wait()
        message = self._output_end()
        if self._was_late:
            return _Died(NoText("time", f"more than {CLOCK_FACTOR * self._time_s} s of wall time"))
        if code == -signal.SIGXCPU:
            return _Died(NoText("time", f"more than {self._time_s} s of CPU time"))
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        detail = ": ".join(part for part in (how, message) if part)
        if -code in (signal.SIGKILL, signal.SIGTERM):
            return _Died(NoText("killed", detail), by_others=True)
        return _Died(NoText("memory" if any(phrase in message for phrase in _NO_MEMORY) else "crashed", detail))

    def _output_end(self) -> str:
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 300))
        return " ".join(self._output.read().decode("utf-8", "replace").split())
