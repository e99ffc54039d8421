"""What a person sees while a run goes on: progress bars on a terminal, plain lines elsewhere. Rank 0 speaks.

Floor 1: no torch.
"""

import errno
import functools
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from paratune.base.text import plain, plain_lines
from paratune.errors import CheckpointError, Fault, ParatuneError, Stopped, coded, os_error_as
from paratune.records import finite

Heard = Callable[[str, int, int], None]
QUIET_S = 15.0
"""Seconds between two progress lines where there is no terminal."""


class _LastingStream:
    """A text stream that swallows what can no longer be written: the reader of a pipe or the terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None
        """Why something was lost that somebody may still want to read, such as a full disk."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Send to nowhere what comes from now on, and what the stream still holds."""
        if error.errno not in (errno.EPIPE, errno.EIO):
            self.error = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let the command go on when nobody reads its output any more: `| tee` was ended, or the connection is lost.

    For commands that do work which must be saved; those that only print end there, as `| head` expects.
    """
    if not isinstance(sys.stdout, _LastingStream):
        sys.stdout, sys.stderr = _LastingStream(sys.stdout), _LastingStream(sys.stderr)


class Bar:
    """One piece of work with a known number of parts."""

    def __init__(self, label: str, total: int, progress: Progress | None, heard: Heard | None = None) -> None:
        self._label, self._total, self._note, self._heard = label, total, "", heard
        self._progress = progress
        self._task = progress.add_task(escape(label), total=total, note="") if progress else None
        self._spoke = time.monotonic()

    def update(self, done: int, note: str | None = None, *, total: int | None = None) -> None:
        """Show that `done` parts are done; `note` replaces the short note, `total` corrects the number of parts."""
        self._total = self._total if total is None else total
        self._note = self._note if note is None else note
        if self._heard is not None:
            self._heard(self._label, done, self._total)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=self._total, note=escape(self._note))
        elif time.monotonic() - self._spoke > QUIET_S:
            self._spoke = time.monotonic()
            logging.getLogger("paratune").info("%s %d/%d %s", self._label, done, self._total, self._note)

    def remove(self) -> None:
        """Take the bar off the screen."""
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)


class Display:
    """Bars and lines on stderr; stdout stays free for results."""

    def __init__(self, *, speaks: bool, heard: Heard | None = None) -> None:
        """Open nothing yet.

        Args:
            speaks: Whether this process shows anything.
            heard: Told of every update of a bar, shown or not: its label, the parts that are done, and all parts.
        """
        self._heard = heard
        console = _stderr()
        self._progress = _progress(console) if speaks and console.is_terminal else None
        self._num_open = 0

    def hear(self, label: str, done: int, total: int) -> None:
        """Tell who listens, without showing anything."""
        if self._heard is not None:
            self._heard(label, done, total)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        """Show a bar while the block runs, below those that are open; rare log lines where stderr is no terminal."""
        if self._progress is None:
            yield Bar(label, total, None, self._heard)
            return
        if self._num_open == 0:
            self._progress.start()
        self._num_open += 1
        bar = Bar(label, total, self._progress, self._heard)
        try:
            yield bar
        finally:
            bar.remove()
            self._num_open -= 1
            if self._num_open == 0:
                self._progress.stop()


@functools.cache
def _stderr() -> Console:
    """Return the one console that bars and log share, so that a log line does not tear a bar."""
    return Console(stderr=True)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=24)),
        BarColumn(bar_width=24 if console.width >= 110 else 8),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        # What does not fit is left out from its end.
        TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        console=console,
        expand=True,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class PlainFormatter(logging.Formatter):
    """Adds the code of a warning, and spells out control characters: a message may hold a column name or a label that
    would act in a terminal.

    A formatter, because it sees the whole text, tracebacks included, and leaves the record to other handlers.
    """

    def format(self, record: logging.LogRecord) -> str:
        text, code = super().format(record), getattr(record, "code", None)
        return plain_lines(text if code is None else Fault(code, text).text())


class _Warnings(logging.Handler):
    """Keeps the warnings with a code, for `print_json`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[Fault] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (code := getattr(record, "code", None)) is not None:
            self.faults.append(Fault(code, record.getMessage(), getattr(record, "facts", {})))


def set_up_logging(*, speaks: bool, rank: int = 0) -> None:
    """Send the project's log to stderr on the rank that speaks; others only warn, with their rank."""
    logger = logging.getLogger("paratune")
    logger.handlers.clear()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(
            console=_stderr(), show_path=False, markup=False, highlighter=None, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(PlainFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PlainFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if not speaks:
        handler.setFormatter(PlainFormatter(f"rank {rank}: %(message)s"))
    handler.setLevel(logging.INFO if speaks else logging.ERROR)
    logger.addHandler(handler)
    logger.addHandler(_Warnings())
    # transformers imports DeepSpeed where it is installed, which then warns of a machine without a GPU in every run.
    logging.getLogger("DeepSpeed").addFilter(_is_not_about_the_accelerator)
    # What is said before the run folder is made goes into its file as well.
    logger.addHandler(logging.handlers.MemoryHandler(capacity=1000, flushLevel=logging.CRITICAL + 1))


def _is_not_about_the_accelerator(record: logging.LogRecord) -> bool:
    return record.module != "real_accelerator"


class _LogFile(logging.FileHandler):
    """A log file without which the run can do: when it cannot be written (a full disk), that is said once."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        logger = logging.getLogger("paratune")
        logger.removeHandler(self)
        extra = coded("run.log_lost", path=self.baseFilename)
        logger.warning("%s cannot be written: %s", self.baseFilename, sys.exc_info()[1], extra=extra)


def log_to_file(folder: Path, rank: int) -> None:
    """Keep the log of this rank in the run folder as well.

    Raises:
        CheckpointError: The file cannot be made.
    """
    path = folder / f"log.rank{rank:04d}.txt"
    with os_error_as(
        CheckpointError, f"{path} cannot be written", "choose another run.folder", code="run.not_writable", path=path
    ):
        handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("paratune")
    logger.addHandler(handler)
    for early in [each for each in logger.handlers if isinstance(each, logging.handlers.MemoryHandler)]:
        logger.removeHandler(early)
        early.setTarget(handler)
        early.close()


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Send to stderr what is printed in the block: some libraries speak on stdout when they are imported.

    DeepSpeed, where it is installed, does so in every process that loads a model with transformers.
    """
    with redirect_stdout(sys.stderr):
        yield


def print_warning(message: str, code: str) -> None:
    """Print a warning on stderr, of a command that has no log."""
    print(plain(f"warning: {Fault(code, message).text()}"), file=sys.stderr)  # noqa: T201


def print_error(error: ParatuneError, *, as_json: bool) -> None:
    """Print an error on stderr with the code of each fault, and as one JSON document on stdout if asked."""
    # A header or a label of a file may be part of the message, and must not act in the terminal.
    text = str(error) if isinstance(error, Stopped) else f"error: {error.text()}"
    print(plain_lines(text), file=sys.stderr)  # noqa: T201
    if as_json:
        print_json({"errors": [fault.as_dict() for fault in error.faults]})


def print_result(renderable: Any, *, is_prose: bool = False) -> None:
    """Print a rich renderable on stdout.

    Args:
        renderable: What is printed.
        is_prose: Texts, which where stdout is no terminal keep their lines, for programs that read them.
    """
    console = Console()
    console.print(renderable, soft_wrap=is_prose and not console.is_terminal)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document on stdout: what is neither a number nor text that JSON can say is null or text.

    A mapping gets the warnings that were logged, if any, as `warnings`, unless it has that key itself.
    ASCII only: neither the encoding of stdout nor a control character in a label can spoil it.
    """
    handlers = [handler for handler in logging.getLogger("paratune").handlers if isinstance(handler, _Warnings)]
    warnings = [fault.as_dict() for handler in handlers for fault in handler.faults]
    if isinstance(value, dict) and warnings:
        value = {"warnings": warnings, **value}
    print(json.dumps(finite(value), indent=indent, allow_nan=False, default=str))  # noqa: T201
