"""The stage's side of the process that reads documents: it is started, watched, and replaced when it dies.

A document that ends its process, or takes more than it may, is read once more by a new one that has read nothing
before: what comes out of it depends neither on the documents before it nor on how the work is shared. Time is that of
the processor, so that neighbours on the machine do not count; the clock only ends a process that waits for nothing.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from paratune.base.text import plain
from paratune.corpus.extract.found import Document, Extracted, Kept, Refused
from paratune.corpus.extract.frames import TornFrame, read_frame, write_frame
from paratune.corpus.extract.settings import Extract
from paratune.errors import LaunchError

COMMAND = ("-P", "-m", "paratune.corpus.extract.child")
"""What Python is started with; -P, so that no file in the working directory is taken for a library."""
CLOCK_FACTOR = 10
"""Seconds of the clock for each second of the processor that a document may take."""
START_S = 600.0
"""Seconds of the clock that a process may take to start."""
NUM_TRIES = 2
"""How often a document is read before it is dropped, the last time by a new process."""
KILLED_TRIES, KILLED_WAIT_S = 5, 2.0
"""How often a document is read whose process someone else kills - the system, when memory is short - and the seconds of
the first wait, doubled each time."""
BYTES_A_CHARACTER = 12
"""Most that a character takes in JSON: a pair of surrogates, each as an escape."""
HEADER_BYTES = 1 << 20
"""Of an answer, beside the text."""
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # an arena for each thread takes address space, more of it on more cores
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "RAYON_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
}
_NO_MEMORY = ("memory allocation of", "bad_alloc", "MemoryError", "ut of memory", "annot allocate memory")
"""What libraries say on stderr before they end for want of memory."""


@dataclass(frozen=True)
class _Answer:
    found: Extracted | Refused
    strained: bool


_ANSWER = TypeAdapter(_Answer)


class DocumentReader:
    """Reads documents in a process of its own; a context, at whose end that process is gone."""

    def __init__(self, settings: Extract) -> None:
        self._settings = settings
        self._kept = Kept(settings.min_characters, settings.max_characters, settings.charset)
        self._max_answer_bytes = HEADER_BYTES + BYTES_A_CHARACTER * settings.max_characters
        self._process: _Process | None = None

    def __enter__(self) -> "DocumentReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, document: Document) -> Extracted | Refused:
        """Return the text of a document, or why there is none.

        Raises:
            LaunchError: No process can be started.
        """
        known = {name: value for name, value in asdict(document).items() if name != "payload"}
        return self._ask({"document": known}, document.payload)

    def finish(self, text: str, title: str | None, *, mime: str, extractor: str) -> Extracted | Refused:
        """Return what another program has read, made fit to keep as all texts are.

        Raises:
            LaunchError: No process can be started.
        """
        what = {"mime": mime, "extractor": extractor, "charset": None}
        return self._ask({"read": {"title": title}, "as": what}, text.encode("utf-8", "replace"))

    def _ask(self, header: dict[str, Any], payload: bytes) -> Extracted | Refused:
        header = {**header, "kept": asdict(self._kept)}
        num_tries = num_killed = 0
        while True:
            process = self._process = self._process or _Process(self._settings)
            is_new, process.is_new = process.is_new, False
            num_tries += 1
            try:
                found, strained = process.ask(header, payload, self._max_answer_bytes)
            except _Died as death:
                self._end()
                found = death.refused
                is_final = is_new and num_tries >= NUM_TRIES
                if death.by_others:
                    num_killed += 1
                    is_final = num_killed == KILLED_TRIES
                    time.sleep(0 if is_final else KILLED_WAIT_S * 2 ** (num_killed - 1))
            else:
                is_full = strained or (isinstance(found, Refused) and found.reason == "memory")
                is_final = is_new or not is_full
                if is_full:
                    self._end()
            if is_final:
                return found

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _Died(Exception):
    """The process ended instead of answering."""

    def __init__(self, refused: Refused, *, by_others: bool = False) -> None:
        super().__init__(refused.reason)
        self.refused = refused
        self.by_others = by_others


class _Process:
    """One process, until it dies or is ended."""

    def __init__(self, settings: Extract) -> None:
        self.is_new = True
        """Whether it has read nothing."""
        self._time_s = settings.time_s
        self._was_late = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, *COMMAND]
        try:
            self._process = subprocess.Popen(
                [*command, str(int(settings.memory_mib) << 20), str(settings.time_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **ENVIRONMENT},
            )
        except OSError as error:
            raise LaunchError(
                f"extract: no process can be started ({error}); fewer workers may help",
                code="launch.not_started",
                key="extract",
            ) from error
        try:
            with self._watched(START_S):
                answer = read_frame(self._stdout, max_bytes=HEADER_BYTES)
        except TornFrame:
            answer = None
        if answer is None:
            said = self._said()
            self.end()
            raise LaunchError(
                f"extract: the process that reads documents does not start: {said or 'it says nothing'}",
                code="launch.not_started",
                key="extract",
            )

    def ask(self, header: dict[str, Any], payload: bytes, max_bytes: int) -> tuple[Extracted | Refused, bool]:
        """Send a message and return the answer, and whether the process took much memory for it.

        Raises:
            _Died: There was none, or none that can be read.
        """
        try:
            with self._watched(CLOCK_FACTOR * self._time_s):
                write_frame(self._stdin, header, payload)
                answer = read_frame(self._stdout, max_bytes=max_bytes)
            return self._checked(answer)
        except BrokenPipeError:
            raise self._death() from None
        except (TornFrame, ValueError) as error:
            raise _Died(Refused("crashed", f"its answer cannot be read: {plain(error)}")) from error

    def _checked(self, answer: tuple[dict[str, Any], bytes] | None) -> tuple[Extracted | Refused, bool]:
        """Return what an answer says, if it is one: hostile documents have been where it was made."""
        if answer is None:
            raise self._death()
        said = _ANSWER.validate_python(answer[0])
        "".join(filter(None, vars(said.found).values())).encode()  # a lone surrogate cannot be kept
        return said.found, said.strained

    def end(self) -> None:
        """Kill the process, whatever it does, and leave nothing of it."""
        self._process.kill()
        self._process.wait()
        for file in (self._stdin, self._stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # of what was not sent
                file.close()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    @property
    def _stdout(self) -> Any:
        return self._process.stdout

    @contextlib.contextmanager
    def _watched(self, most_s: float) -> Iterator[None]:
        """End the process when the block takes longer than so many seconds."""
        timer = threading.Timer(most_s, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self._was_late = True
        self._process.kill()

    def _death(self) -> _Died:
        """Say of what the process died."""
        code = self._process.wait()
        said = self._said()
        if self._was_late:
            return _Died(Refused("time", f"more than {CLOCK_FACTOR * self._time_s} s of the clock"))
        if code == -signal.SIGXCPU:
            return _Died(Refused("time", f"more than {self._time_s} s of the processor"))
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        detail = ": ".join(each for each in (how, said) if each)
        if code == -signal.SIGKILL:
            return _Died(Refused("killed", detail), by_others=True)
        return _Died(Refused("memory" if any(each in said for each in _NO_MEMORY) else "crashed", detail))

    def _said(self) -> str:
        """Return the end of what it wrote to stderr, as one line."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 300))
        return " ".join(self._errors.read().decode("utf-8", "replace").split())
