"""One part, in a process of its own: imports first, then waits for its time, then tries one check after the other."""

import importlib
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paratune.records import write_json

from .setting import Check, Setting, Skipped, Wrong

STATUSES = ("ok", "wrong", "error", "skipped")


@dataclass(frozen=True)
class Row:
    """What came of a check."""

    name: str
    table: str
    status: str
    """One of `STATUSES`."""
    seconds: float
    figures: dict[str, Any]
    reason: str | None = None
    """Why it is not ok."""


def checks_of(name: str, setting: Setting) -> Iterator[Check]:
    """Return the checks of a part by the name of its module."""
    found: Iterator[Check] = importlib.import_module(f"{__package__}.{name}").checks(setting)
    return found


def try_check(check: Check) -> Row:
    """Run a check; whatever it raises is in the row."""
    begin = time.monotonic()

    def row(status: str, figures: Any, reason: str | None = None) -> Row:
        return Row(check.name, check.table, status, time.monotonic() - begin, dict(figures), reason)

    try:
        return row("ok", check.run())
    except Skipped as skipped:
        return row("skipped", {}, str(skipped))
    except Wrong as wrong:
        return row("wrong", wrong.figures, str(wrong))
    except Exception as error:
        traceback.print_exc()
        return row("error", {}, f"{type(error).__name__}: {error}"[:1000])


def run(name: str, *, device: str, tiny: bool, folder: Path, tokenizer: Path) -> None:
    """Import a part, wait for a line with its limit in seconds on standard input, and write rows as they come.

    Rows are in `folder/rows.json`, which is replaced after each check; `is_done` there is true behind the last one.
    """
    importlib.import_module(f"{__package__}.{name}")
    words = sys.stdin.readline().split()
    if not words:  # the command has ended
        return
    folder.mkdir(parents=True, exist_ok=True)
    where = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(where)
    setting = Setting(where, tiny, folder, tokenizer, time.time() + float(words[0]))
    rows: list[dict[str, Any]] = []
    write_json(folder / "rows.json", {"is_done": False, "rows": rows})
    for check in checks_of(name, setting):
        print(f"{name}: {check.name}", flush=True)
        rows.append(asdict(try_check(check)))
        write_json(folder / "rows.json", {"is_done": False, "rows": rows})
    write_json(folder / "rows.json", {"is_done": True, "rows": rows})
    print(f"{name}: done", flush=True)
