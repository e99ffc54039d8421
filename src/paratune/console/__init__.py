"""Output of a command: progress bars on a terminal, plain lines elsewhere, logs, errors and results."""

import errno
import functools
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment, SegmentLines
from rich.table import Column, Table
from rich.text import Text

from paratune.base.text import plain, plain_lines
from paratune.console.notebook import NotebookLine, in_notebook
from paratune.errors import CheckpointError, Fault, ParatuneError, Stopped, coded, os_error_as
from paratune.records import finite

BarListener = Callable[[str, int, int], None]
MAX_LINES = 40
"""Of a result without `--all`."""
QUIET_S = 15.0
"""Seconds between two progress lines where there is no terminal."""
SPEED_S = 300.0
"""Last seconds from which the remaining time is estimated; two steps must be in them."""


class _LastingStream:
    """A text stream that drops text after the reader of a pipe or the terminal has closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None
        """Reason for lost text that a reader may still want, such as a full disk."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._redirect(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._redirect(error)

    def _redirect(self, error: OSError) -> None:
        """Redirect the stream, and the text in its buffer, to the null device."""
        if error.errno not in (errno.EPIPE, errno.EIO):
            self.error = error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let the command continue when the reader of its output has ended: `| tee` ended, or the connection is lost.

    For commands with work to save; commands that only print end then, as `| head` expects.
    """
    if not isinstance(sys.stdout, _LastingStream):
        sys.stdout, sys.stderr = _LastingStream(sys.stdout), _LastingStream(sys.stderr)


class Bar:
    """Progress of a task with a known number of parts."""

    def __init__(
        self,
        label: str,
        total: int,
        progress: Progress | None,
        listener: BarListener | None = None,
        line: NotebookLine | None = None,
    ) -> None:
        self._label, self._total, self._note, self._listener = label, total, "", listener
        self._progress = progress
        self._line = line
        self._task = progress.add_task(escape(label), total=total, note="") if progress else None
        self._logged_at = time.monotonic()

    def update(self, done: int, note: str | None = None, *, total: int | None = None) -> None:
        """Show that `done` parts are done; `note` replaces the note, `total` the number of parts."""
        self._total = self._total if total is None else total
        self._note = self._note if note is None else note
        if self._listener is not None:
            self._listener(self._label, done, self._total)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=self._total, note=self._note)
        elif self._line is not None:
            self._line.show(f"{self._label} {done}/{self._total}  {self._note}", is_last=done == self._total)
        elif time.monotonic() - self._logged_at > QUIET_S:
            self._logged_at = time.monotonic()
            logging.getLogger("paratune").info("%s %d/%d %s", self._label, done, self._total, self._note)

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` parts are done."""
        self.update(done, total=total)


class Display:
    """Progress bars and lines on stderr; stdout is for results."""

    def __init__(self, *, speaks: bool, listener: BarListener | None = None) -> None:
        """Create a display without bars.

        Args:
            speaks: Whether this process shows anything.
            listener: Called with each update of a bar, shown or not: label, parts that are done, and all parts.
        """
        self._listener = listener
        console = _stderr()
        self._line = NotebookLine() if speaks and in_notebook() else None
        self._progress = _progress(console) if speaks and console.is_terminal and not in_notebook() else None
        self._num_open = 0

    def notify(self, label: str, done: int, total: int) -> None:
        """Call the listener without showing anything."""
        if self._listener is not None:
            self._listener(label, done, total)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        """Show a bar below the open ones while the block runs; log few lines where stderr is not a terminal."""
        if self._progress is None:
            yield Bar(label, total, None, self._listener, self._line)
            return
        if self._num_open == 0:
            self._progress.start()
        self._num_open += 1
        try:
            yield Bar(label, total, self._progress, self._listener)
        finally:
            self._progress.remove_task(self._progress.task_ids[-1])
            self._num_open -= 1
            if self._num_open == 0:
                self._progress.stop()


@functools.cache
def _stderr() -> Console:
    """Return the console of bars and log, which share it so that a log line does not break a bar."""
    return Console(stderr=True)


def _progress(console: Console) -> Progress:
    is_wide = console.width >= 110
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=24 if is_wide else 19)),
        BarColumn(bar_width=24 if is_wide else 6),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        console=console,
        speed_estimate_period=SPEED_S,
        expand=True,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class PlainFormatter(logging.Formatter):
    """Adds the code of a warning, and escapes control characters: a message may contain a column name or a label.

    It is a formatter because a formatter gets the whole text with tracebacks, and does not change the record for other
    handlers.
    """

    def format(self, record: logging.LogRecord) -> str:
        text, code = super().format(record), getattr(record, "code", None)
        return plain_lines(text if code is None else Fault(code, text).text())


class _Warnings(logging.Handler):
    """Stores the warnings with a code, for `print_json`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[Fault] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (code := getattr(record, "code", None)) is not None:
            self.faults.append(Fault(code, record.getMessage(), getattr(record, "facts", {})))


def set_up_logging(*, speaks: bool, rank: int = 0) -> None:
    """Log to stderr; ranks without `speaks` log only errors, with their rank."""
    logger = logging.getLogger("paratune")
    for old in logger.handlers:
        if isinstance(old, _LogFile):  # of an earlier run in this process
            old.close()
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
    # transformers imports an installed DeepSpeed, which warns about a missing GPU in every run.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.module != "real_accelerator")
    # Messages from before the run folder exists are written to its log file later.
    logger.addHandler(logging.handlers.MemoryHandler(capacity=1000, flushLevel=logging.CRITICAL + 1))


def log_each_message_once() -> None:
    """Drop messages that this process has logged since `set_up_logging`, for a command that reads files twice."""

    def is_first(record: logging.LogRecord, seen: dict[str, logging.LogRecord]) -> bool:
        return seen.setdefault(record.getMessage(), record) is record

    for handler in logging.getLogger("paratune").handlers:
        handler.addFilter(partial(is_first, seen={}))


@contextmanager
def log_as_before() -> Iterator[None]:
    """Let the block set up the log, and restore handlers, levels and filters after it; close the handlers it added."""
    logger, deepspeed = logging.getLogger("paratune"), logging.getLogger("DeepSpeed")
    handlers, level, propagates, filters = logger.handlers[:], logger.level, logger.propagate, deepspeed.filters[:]
    of_deepspeed = deepspeed.handlers[:]
    try:
        yield
    finally:
        for handler in [handler for handler in logger.handlers if handler not in handlers]:
            handler.close()
        logger.handlers[:], deepspeed.filters[:], deepspeed.handlers[:] = handlers, filters, of_deepspeed
        logger.setLevel(level)
        logger.propagate = propagates


class _LogFile(logging.FileHandler):
    """A log file; when it cannot be written (a full disk), it is closed with one warning and the run continues."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        logger = logging.getLogger("paratune")
        logger.removeHandler(self)
        extra = coded("run.log_lost", path=self.baseFilename)
        logger.warning("%s cannot be written: %s", self.baseFilename, sys.exc_info()[1], extra=extra)


def log_to_file(folder: Path, rank: int) -> None:
    """Log this rank also to a file in the run folder.

    Raises:
        CheckpointError: The file cannot be created.
    """
    path = folder / f"log.rank{rank:04d}.txt"
    with os_error_as(
        CheckpointError, f"{path} cannot be written", "choose another run.folder", code="output.not_writable", path=path
    ):
        handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("paratune")
    logger.addHandler(handler)
    for early in [handler for handler in logger.handlers if isinstance(handler, logging.handlers.MemoryHandler)]:
        logger.removeHandler(early)
        early.setTarget(handler)
        early.close()


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Redirect stdout to stderr in the block: some libraries print on stdout when they are imported.

    DeepSpeed, where it is installed, does so in every process that loads a model with transformers.
    """
    with redirect_stdout(sys.stderr):
        yield


def print_warning(message: str, code: str) -> None:
    """Print a warning on stderr, for a command without a log."""
    print(plain(f"warning: {Fault(code, message).text()}"), file=sys.stderr)  # noqa: T201


def print_error(error: ParatuneError, *, as_json: bool) -> None:
    """Print an error on stderr with the code of each fault, and with `as_json` as one JSON document on stdout."""
    # The message may contain a column or a label of a file, which must not act in the terminal.
    text = str(error) if isinstance(error, Stopped) else f"error: {error.text()}"
    print(plain_lines(text), file=sys.stderr)  # noqa: T201
    if as_json:
        print_json({"errors": [fault.as_dict() for fault in error.faults]})


def print_result(renderable: Any, *, is_prose: bool = False) -> None:
    """Print a rich renderable, or a line of text, on stdout.

    Args:
        renderable: Any renderable of rich; of a text control characters are escaped, and brackets are no markup.
        is_prose: Whether it is text; its lines are not wrapped where stdout is not a terminal, for other programs.
    """
    console, shown = Console(), Text(plain(renderable)) if isinstance(renderable, str) else renderable
    console.print(shown, soft_wrap=is_prose and not console.is_terminal)


def print_screen(*parts: Any, all_: bool) -> None:
    """Print renderables of rich and lines of text: without `all_` at most `MAX_LINES` lines.

    Lines of text are not wrapped where stdout is not a terminal, for other programs.
    """
    console, lines = Console(), list[list[Segment]]()
    for part in parts:
        if isinstance(part, str) and not console.is_terminal:
            lines.append([Segment(plain(part))])
        else:
            lines += console.render_lines(Text(plain(part)) if isinstance(part, str) else part, pad=False)
    shown = lines if all_ or len(lines) <= MAX_LINES else lines[: MAX_LINES - 1]
    console.print(SegmentLines(shown, new_lines=True), end="", crop=False)
    if len(shown) < len(lines):
        console.print(Text(f"... and {len(lines) - len(shown)} more lines: --all", style="dim"))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], **layout: Any) -> None:
    """Print a table; the arguments are those of `text_table`."""
    print_result(text_table(headings, rows, **layout))


def text_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Collection[str | int] = (), gap: int = 2
) -> Table:
    """Return a table for a terminal; its cells are texts, not markup of rich, and long ones are wrapped.

    Args:
        headings: Of the columns; without a header where all are empty.
        right: Headings, or numbers from 0, of the right-aligned columns, such as those of numbers.
        gap: Characters between two columns.
    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim", show_header=any(headings))
    for number, heading in enumerate(headings):
        is_right = heading in right or number in right
        table.add_column(Text(plain(heading)), justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document on stdout: NaN and infinities become null, other types become text.

    Logged warnings are added to a mapping as `warnings`, unless it has this key. The text is ASCII only, so that the
    encoding of stdout and control characters in labels do not matter.
    """
    handlers = [handler for handler in logging.getLogger("paratune").handlers if isinstance(handler, _Warnings)]
    warnings = [fault.as_dict() for handler in handlers for fault in handler.faults]
    if isinstance(value, dict) and warnings:
        value = {"warnings": warnings, **value}
    print(json.dumps(finite(value), indent=indent, allow_nan=False, default=str))  # noqa: T201
