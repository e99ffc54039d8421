"""Threads, usable cores and load by other programs in reports of runs."""

from pathlib import Path
from typing import Any

from make_run import make_run

from paratune.reports import Report, make
from paratune.reports.run.make import run_document


def report_of(folder: Path, *runs: tuple[int | None, float, float]) -> Report:
    """Return the report of runs with these threads, usable cores and share of busy cores; half of them is their own."""
    folders = []
    for number, (threads, cores, busy) in enumerate(runs):
        node: dict[str, Any] = {"hostname": "a", "num_usable_cores": cores}
        utilisation = {"kind": "cpu", "mean": 0.5, "machine_mean": busy}
        folders.append(
            make_run(
                folder / f"run{number}",
                run_changes={"num_threads": threads, "hardware": [node]},
                summary_changes={"utilisation": utilisation},
            )
        )
    return make(folders, None)


def test_threads_cores_and_load_are_rows_and_settings(tmp_path: Path) -> None:
    found = report_of(tmp_path, (2, 2.0, 0.5), (1, 1.5, 0.75))
    texts = {row.key: [cell.text for cell in row.cells] for row in found.shown_rows}
    assert texts["num_threads"] == ["2", "1"]
    assert texts["num_usable_cores"] == ["2.00", "1.50"]
    assert texts["other_load"] == ["0.0", "25.0"]  # 75% busy, of which 50% by the run itself
    differing = {entry.key: dict(entry.values) for entry in found.differences}
    assert differing == {
        "machine.num_threads": {"run0": "2", "run1": "1"},
        "machine.num_usable_cores": {"run0": "2.00", "run1": "1.50"},
        "machine.other_load": {"run0": "0.0", "run1": "25.0"},
    }
    assert found.sameness.verdict == "same"
    (notice,) = run_document(found).notices
    assert "Load by other programs (%)" in notice.text


def test_equal_and_unknown_values_do_not_differ(tmp_path: Path) -> None:
    assert report_of(tmp_path, (2, 2.0, 0.5), (2, 2.0, 0.54)).differences == ()  # 4 points, less than 5
    unknown = report_of(tmp_path / "other", (2, 2.0, 0.5), (None, 2.0, 0.5))
    assert unknown.differences == ()
    assert [cell.text for row in unknown.rows if row.key == "num_threads" for cell in row.cells] == ["2", "n/a"]
