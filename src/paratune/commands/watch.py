"""`paratune watch`: what runs are at, in a terminal, while they go on."""

import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from paratune.console import print_json
from paratune.errors import EXIT_OK, ConfigError
from paratune.watch.board import Board, BoardView
from paratune.watch.screen import Screen

DEFAULT_FOLDER = Path("runs")
MIN_INTERVAL_S = 0.1
RESPITE = 4
"""After a look, at least so many times as long as it took passes before the next: a slow disk is left alone."""


def watch_command(paths: Sequence[Path], *, once: bool, interval: float, as_json: bool) -> int:
    """Show what runs, matrices and folders of them are at, until what was named has ended, or Ctrl-C.

    Raises:
        CheckpointError: A path is not there.
        ConfigError: The interval is none.
    """
    if not (math.isfinite(interval) and interval >= MIN_INTERVAL_S):
        raise ConfigError(
            f"--interval {interval:g}: allowed are seconds from {MIN_INTERVAL_S:g} on",
            code="cli.out_of_range",
            option="--interval",
            value=interval,
        )
    board = Board(_watched(paths))
    if as_json:
        print_json(board.look().as_dict(), indent=1)
        return EXIT_OK
    console = Console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(Screen(board.look()))
        return EXIT_OK
    _live(board, console, interval)
    return EXIT_OK


def _watched(paths: Sequence[Path]) -> Sequence[Path]:
    if paths:
        return paths
    if not DEFAULT_FOLDER.is_dir():
        raise ConfigError(
            f"the folder {DEFAULT_FOLDER} does not exist here; name a run, a matrix or a folder of them",
            code="run.nothing_to_watch",
        )
    return [DEFAULT_FOLDER]


def _live(board: Board, console: Console, interval: float) -> None:
    """Show the board again and again on a screen of its own; the last view stays on the terminal."""
    # A resized terminal is drawn anew at once, and one that is ended gets its screen back.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    signal.signal(signal.SIGTERM, _end)
    view: BoardView | None = None
    try:
        with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False) as live:
            while True:
                began = time.monotonic()
                view = board.look()
                took = time.monotonic() - began
                _show(live, view)
                if view.is_at_rest:
                    break
                _wait(live, view, max(interval, RESPITE * took))
    except KeyboardInterrupt:  # how one stops looking; what is watched goes on
        pass
    if view is not None:
        console.print(Screen(view))


def _wait(live: Live, view: BoardView, seconds: float) -> None:
    """Wait, and draw the same view again when the size of the terminal changes."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if signal.sigtimedwait({signal.SIGWINCH}, left) is not None:
            _show(live, view)


def _show(live: Live, view: BoardView) -> None:
    footer = "Ctrl-C closes this view; the runs continue"
    live.update(Screen(view, height=live.console.height, footer=footer), refresh=True)


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)
