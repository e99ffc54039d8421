"""`paratune explain`: rows, options and errors of the command."""

import json
from pathlib import Path
from typing import Any

import pytest
from explained import TEXT, save_tiny
from raised import raises_code

from paratune.commands import explain as command


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "set_up_process", lambda: None)
    for name, value in (("NUM_STEPS", 4), ("MAX_STEPS", 4), ("MAX_EVALS", 20)):
        monkeypatch.setattr(f"paratune.explain.explain.{name}", value)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    rows = [{"text": "good film", "label": "1"}, {"text": None, "label": "2"}, {"text": TEXT, "label": "3"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(model: Path, data: str, **options: Any) -> None:
    command.explain(str(model), input=data, device="cpu", **options)


def test_json_has_the_rows_in_the_order_of_the_option(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]):
    model = save_tiny(tmp_path / "m", "regression").folder
    capsys.readouterr()  # DeepSpeed prints when the test makes a model
    run(model, data=data, rows="2,0", json=True)
    found = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in found["rows"]] == [2, 0]


def test_the_page_has_what_the_terminal_shows(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]):
    model, out = save_tiny(tmp_path / "m", "regression").folder, tmp_path / "out"
    run(model, data, rows="0", out=out, method=("occlusion",))
    shown = capsys.readouterr().out
    assert str(out / "index.html") in shown
    written = json.loads((out / "report.json").read_text())
    assert list(written["rows"][0]["methods"]) == ["occlusion"]
    assert f"p = {written['rows'][0]['methods']['occlusion']['p_value']:.3f}" in shown


def test_many_rows_are_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, data = save_tiny(tmp_path / "m", "regression").folder, tmp_path / "many.jsonl"
    data.write_text('{"text": "good film"}\n' * 12)
    capsys.readouterr()
    run(model, str(data), rows="0-11", method=("occlusion",))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 40
    assert lines[-1] == "... and 9 more lines: --all"  # 12 rows of four lines are 48
    run(model, str(data), rows="0-11", method=("occlusion",), all_=True)
    assert len(capsys.readouterr().out.splitlines()) == 48


def test_bad_options_are_refused_before_anything_is_written(tmp_path: Path, data: str):
    model = save_tiny(tmp_path / "m", "regression").folder
    for rows in ("", "a", "3-1", "1,", "-1", "0-99999999"):
        with raises_code("explain.rows", "--rows"):
            run(model, data=data, rows=rows)
    with raises_code("explain.rows", row=1):
        run(model, data=data, rows="0-2")
    with raises_code("explain.rows", row=7):
        run(model, data=data, rows="7")
    (tmp_path / "file").write_text("")
    with raises_code("output.foreign"):
        run(model, data=data, rows="0", out=tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("mine")
    with raises_code("output.foreign"):
        run(model, data=data, rows="0", out=tmp_path / "other")
    assert (tmp_path / "other" / "index.html").read_text() == "mine"


def test_rows_and_ranges():
    assert command.parse_rows("4,0-2,1") == [4, 0, 1, 2]
