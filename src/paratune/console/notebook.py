"""Output in a notebook: results as HTML, with escaped text, and progress in one line that is updated."""

import sys
import time
from collections.abc import Iterable
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console

from paratune.base.text import plain
from paratune.base.units import format_number

UPDATE_S = 0.2
"""Least time between two updates of the line: each is a message to the browser."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookLine:
    """A line of text in the output of a cell, which later texts replace."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown_at = -UPDATE_S

    def show(self, text: str, *, is_last: bool) -> None:
        """Replace the line; within `UPDATE_S` of an update only with the last text of a bar."""
        now = time.monotonic()
        if not is_last and now - self._shown_at < UPDATE_S:
            return
        self._shown_at = now
        content = {"text/plain": plain(text)}
        if self._handle is None:
            display = sys.modules["IPython"].display.display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def html_table(heading: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values below a heading."""
    cells = ""
    for name, value in rows:
        text = format_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        cells += f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(text)}</td></tr>'
    return f"<table><caption>{escape(heading)}</caption><tbody>{cells}</tbody></table>"


def html_of(renderable: Any, width: int = 110) -> str:
    """Return the output of the command line, as HTML in fixed width."""
    console = Console(file=StringIO(), record=True, width=width, force_jupyter=False)
    console.print(renderable)
    return f"<pre>{escape(console.export_text())}</pre>"
