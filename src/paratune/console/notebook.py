"""Progress in a notebook: one line that is updated."""

import sys
import time
from typing import Any

from paratune.base.text import plain

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
