"""A finished run whose event log lacks steps, or with a damaged prediction file: every output names the file once."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix
from make_run import make_run
from page_text import page_text
from pyarrow import parquet
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


def texts_of_runs(runs: Sequence[Path], out: Path) -> list[str]:
    texts = [printed(terminal_runs(make(runs[:1], None))), printed(terminal_runs(make(runs, out)))]
    return [*texts, *outputs(out), printed(terminal_comparison(make_comparison([*map(str, runs)])))]


def texts_of_matrix(folder: Path, out: Path) -> list[str]:
    texts = [printed(terminal_sweep(make_sweep(folder, out))), *outputs(out)]
    return [*texts, printed(terminal_comparison(make_comparison([str(folder)])))]


@pytest.mark.parametrize("how", ["absent", "torn"])
def test_of_a_run(how: str, tmp_path: Path):
    runs = [make_run(tmp_path / kind, kind=kind) for kind in ("single", "ddp")]
    shown = damage(runs[0] / LOG, how)
    assert [text.count(shown) for text in texts_of_runs(runs, tmp_path / "out")] == [1] * 5


@pytest.mark.parametrize("how", ["absent", "torn", "a damaged line"])
def test_of_a_matrix(how: str, tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY, SEED), lambda values: Made(kind=values["strategy"]))
    shown = damage(cell_run_folder(folder, "zero3_seed-2") / LOG, how)
    assert [text.count(shown) for text in texts_of_matrix(folder, tmp_path / "out")] == [1] * 4


TABLE = pa.table({"index": [0, 1], "label": [0.5, 1.0], "prediction": [0.4, 1.1]})


def break_predictions(file: Path, how: str) -> str:
    """Write a damaged file of predictions; return what outputs show of it: the whole reason and the remedy."""
    parquet.write_table(TABLE if how == "cut" else TABLE.slice(0, 0), file)
    content = file.read_bytes()
    broken = {"empty": b"", "text": b"index,label\n0,1\n", "cut": content[: len(content) // 2], "no rows": content}
    file.write_bytes(broken[how])
    reason = {
        "empty": "Parquet file size is 0 bytes",
        "no rows": f"{file.name} of {file.parent.name} has no rows",
    }.get(how, "Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file")
    return f"{file}: {reason}. Scores"


@pytest.mark.parametrize("how", ["empty", "text", "cut", "no rows"])
@pytest.mark.parametrize("num_damaged", [1, 2])
def test_damaged_predictions_of_runs(how: str, num_damaged: int, tmp_path: Path):
    runs = [make_run(tmp_path / kind, kind=kind, task="regression") for kind in ("single", "ddp")]
    shown = [break_predictions(run / "predictions.test.parquet", how) for run in runs[:num_damaged]]
    texts = texts_of_runs(runs, tmp_path / "out")
    assert [text.count(shown[0]) for text in texts] == [1] * 5
    first = f"2 prediction files cannot be read: the first one is {shown[0]}"
    assert [first in text for text in texts[1:]] == [num_damaged == 2] * 4
    assert ["train the runs again with --overwrite" in text for text in texts] == [True] * 5


def test_damaged_predictions_of_a_matrix(tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY, SEED), lambda values: Made(kind=values["strategy"]))
    shown = break_predictions(cell_run_folder(folder, "zero3_seed-2") / "predictions.validation.parquet", "text")
    assert [text.count(shown) for text in texts_of_matrix(folder, tmp_path / "out")] == [1] * 4
