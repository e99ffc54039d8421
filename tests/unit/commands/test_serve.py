"""What `paratune serve` shows of a model on its page."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.api import split_rows
from paratune.commands.serve import _about
from paratune.config.sections import Columns
from paratune.records import RUN_FILE, SUMMARY_FILE


def test_a_run_has_its_score_and_a_row_of_small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(split_rows, "split_table", lambda run, split: ("v.csv", pa.table({"words": ["good", "bad"]})))
    summary = {**WHOLE_SUMMARY, "scores": {"validation": {"f1": 0.75, "loss": 0.5}}, "best": {"metric": "f1"}}
    (tmp_path / SUMMARY_FILE).write_text(json.dumps(summary))

    def about(num_rows: int | None, column: str = "words", source: str = "demo:sentences") -> dict[str, object]:
        data = {**WHOLE_RUN["data"], "train": {**WHOLE_RUN["data"]["train"], "num_rows": num_rows}}
        config = {**WHOLE_RUN["config"], "data": {"train": source, "validation": None}}
        (tmp_path / RUN_FILE).write_text(json.dumps({**WHOLE_RUN, "data": data, "config": config}))
        return _about("path", SimpleNamespace(run=tmp_path, columns=Columns(text=column)))

    score = {"metric": "validation f1", "value": 0.75}
    assert about(100) == {"model": tmp_path.name, "score": score, "example": {"words": "good"}}
    assert about(1_000_000)["example"] is None
    assert about(None)["example"] is None
    hidden = tmp_path / "v.csv"  # below a folder that only its owner opens
    hidden.write_text("words")
    assert about(100, source=str(hidden))["example"] is None
    assert about(100, source="*.csv")["example"] is None
    assert about(100, "moved") == {"model": tmp_path.name, "score": score, "example": None}
    (tmp_path / SUMMARY_FILE).unlink()
    assert about(100) == {"model": tmp_path.name, "score": None, "example": None}
