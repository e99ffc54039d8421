"""One part in a separate process: it imports its modules, waits for its turn, then runs one check after the other."""

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
    """The result of a check."""

    name: str
    table: str
    status: str
    """One of `STATUSES`."""
    seconds: float
    figures: dict[str, Any]
    reason: str | None = None
    """Reason if the status is not ok."""


def checks_of(name: str, setting: Setting) -> Iterator[Check]:
    """Return the checks of a part by the name of its module."""
    checks: Iterator[Check] = importlib.import_module(f"{__package__}.{name}").checks(setting)
    return checks


def try_check(check: Check) -> Row:
    """Run a check; an exception is recorded in the row."""
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


def run(name: str, device: str, tiny: bool, *, folder: Path, tokenizer: Path, packed_encoders: Path | None) -> None:
    """Import a part, wait for its limit in seconds on standard input, and write each row when its check ends.

    Rows are in `folder/rows.json`, which is replaced after each check; `is_done` is true after the last check.
    """
    importlib.import_module(f"{__package__}.{name}")
    words = sys.stdin.readline().split()
    if not words:  # the command has exited
        return
    folder.mkdir(parents=True, exist_ok=True)
    where = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(where)
    setting = Setting(where, tiny, folder, tokenizer, time.time() + float(words[0]), packed_encoders)
    rows: list[dict[str, Any]] = []
    write_json(folder / "rows.json", {"is_done": False, "rows": rows})
    for check in checks_of(name, setting):
        print(f"{name}: {check.name}", flush=True)
        rows.append(asdict(try_check(check)))
        write_json(folder / "rows.json", {"is_done": False, "rows": rows})
    write_json(folder / "rows.json", {"is_done": True, "rows": rows})
    print(f"{name}: done", flush=True)
