"""`paratune watch`: shows the progress of running runs in a terminal."""

import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from paratune.commands.options import Json
from paratune.console import print_json
from paratune.errors import ConfigError

if TYPE_CHECKING:
    from paratune.watch.board import BoardView

DEFAULT_FOLDER = Path("runs")
INTERVAL_S = 2.0
"""Seconds between two updates."""
PAUSE_FACTOR = 4
"""The pause after an update is at least this many times its duration, which limits the load of a slow disk."""


def watch(*paths: Path, once: bool = False, json: Json = False) -> None:
    """Show the progress, loss, speed, memory and remaining time of runs and matrices.

    PATHS are runs, matrices or folders of them; default: the running ones below runs/. Only records are read.

    Args:
        once: print one view and exit; the default without a terminal
    """
    from paratune.watch.board import Board
    from paratune.watch.screen import Screen

    if not paths and not DEFAULT_FOLDER.is_dir():
        message = f"the folder {DEFAULT_FOLDER} does not exist here; name a run, a matrix or a folder of them"
        raise ConfigError(message, code="run.not_found")
    board = Board(paths or [DEFAULT_FOLDER])
    if json:
        print_json(asdict(board.look()), indent=1)
        return
    console = Console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(Screen(board.look()))
        return
    # On the alternate screen until all runs end; the last view stays in the terminal.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # restores the screen
    footer = "Ctrl-C closes this view; the runs continue"
    view: BoardView | None = None
    try:
        with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False) as live:
            while True:
                start = time.monotonic()
                view = board.look()
                duration_s = time.monotonic() - start
                live.update(Screen(view, height=live.console.height, footer=footer), refresh=True)
                if view.is_finished:
                    break
                time.sleep(max(INTERVAL_S, PAUSE_FACTOR * duration_s))
    except KeyboardInterrupt:  # ends the view; the runs continue
        pass
    if view is not None:
        console.print(Screen(view))
