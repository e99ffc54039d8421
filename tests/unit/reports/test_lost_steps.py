"""A finished run whose event log lacks steps: every output of its reports names the file, each once."""

import io
import json
from pathlib import Path

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix
from make_run import make_run
from page_text import page_text
from rich.console import Console

from paratune.records.sweep import cell_run_folder
from paratune.reports import make
from paratune.reports.comparison import make_comparison
from paratune.reports.matrix import make_sweep
from paratune.reports.terminal import terminal_comparison, terminal_runs, terminal_sweep

LOG = "events.rank0000.jsonl"


def printed(renderable) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(renderable)
    return console.file.getvalue()


def damage(log: Path, how: str) -> str:
    """Damage a log of 225 steps; return what outputs show of it."""
    if how == "absent":
        log.unlink()
        return f"{log} has 0 of 225 steps"
    content = log.read_bytes().splitlines(keepends=True)
    if how == "torn":
        log.write_bytes(b"".join(content[:9]) + content[9][:20])
        return f"{log} has 9 of 225 steps"
    log.write_bytes(b"".join(content[:4]) + b"\0\0" + b"".join(content[4:]))
    return f"{log}, line 5"


def outputs(folder: Path) -> list[str]:
    """Return the page and the JSON of a report."""
    values = json.loads((folder / "report.json").read_text())
    parts = values.get("notes", []) + [each["text"] for box in values.get("summary", []) for each in box["statements"]]
    return [page_text((folder / "index.html").read_text()), "\n".join(parts)]


@pytest.mark.parametrize("how", ["absent", "torn"])
def test_of_a_run(how: str, tmp_path: Path):
    runs = [make_run(tmp_path / kind, kind=kind) for kind in ("single", "ddp")]
    shown = damage(runs[0] / LOG, how)
    texts = [printed(terminal_runs(make(runs[:1], None))), printed(terminal_runs(make(runs, tmp_path / "out")))]
    texts += [*outputs(tmp_path / "out"), printed(terminal_comparison(make_comparison([*map(str, runs)])))]
    assert [text.count(shown) for text in texts] == [1] * 5


@pytest.mark.parametrize("how", ["absent", "torn", "a damaged line"])
def test_of_a_matrix(how: str, tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY, SEED), lambda values: Made(kind=values["strategy"]))
    shown = damage(cell_run_folder(folder, "zero3_seed-2") / LOG, how)
    texts = [printed(terminal_sweep(make_sweep(folder, tmp_path / "out"))), *outputs(tmp_path / "out")]
    texts += [printed(terminal_comparison(make_comparison([str(folder)])))]
    assert [text.count(shown) for text in texts] == [1] * 4
