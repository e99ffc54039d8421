"""The compression ladder of a matrix: comparisons, agreement of explanations, advice; measurements are written here."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from make_matrix import SEED, Made, make_matrix
from matplotlib.figure import Figure
from pyarrow import parquet

from paratune.records import write_json
from paratune.records.compressed import measured_folder
from paratune.records.sweep import Axis, cell_run_folder
from paratune.reports.figures.canvas import Drawing, Hovers
from paratune.reports.matrix import make_sweep

SIZE = Axis("size", "size", {"large": "large", "small": "small"}, keys=("model.keep_layers", "distil.teacher.size"))
NAMES = np.asarray(["no", "yes"])
NUM_ROWS = 400
LARGE, SMALL = [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]
"""Effects of three words; Spearman's correlation is 1 - 6 * 2 / (3 * 8) = 0.5."""


def measured(form: str, p50_ms: float, accuracy: float, effects: list[float]) -> dict[str, Any]:
    return {
        "schema_version": 1, "form": form, "split": "test", "source": "test", "num_rows": NUM_ROWS, "num_timed": 10,
        "settings": {}, "weights_bytes": int(p50_ms * 2**20), "loaded_bytes": 2**20, "peak_bytes": 2**21,
        "p50_ms": p50_ms, "p95_ms": 2 * p50_ms, "cpu_share": 1.0, "texts_per_s": {"1": 100.0, "8": 300.0, "32": 200.0},
        "machine": {"cpu": "C", "num_threads": 1}, "scores": {"accuracy": accuracy}, "intervals": {}, "slices": {},
        "effects": [{"row": row, "words_sha256": "ab", "values": effects} for row in (3, 5)],
    }  # fmt: skip


def write_form(run: Path, form: str, p50_ms: float, num_wrong: int, effects: list[float]) -> None:
    """Write a form whose first `num_wrong` predictions are wrong."""
    folder = measured_folder(run, form)
    folder.mkdir(parents=True)
    labels = np.arange(NUM_ROWS) % 2
    predictions = np.where(np.arange(NUM_ROWS) < num_wrong, 1 - labels, labels)
    columns = {"index": np.arange(NUM_ROWS), "label": NAMES[labels], "prediction": NAMES[predictions]}
    parquet.write_table(pa.table(columns), folder / "predictions.test.parquet")
    write_json(folder / "measured.json", measured(form, p50_ms, 1 - num_wrong / NUM_ROWS, effects))


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    run = {"task.kind": "classification", "task.labels": NAMES.tolist(), "task.metrics": ["accuracy"]}
    return make_matrix(tmp_path / "m", (SIZE, SEED), lambda values: Made(run=run), compress=("int8",))


def test_a_smaller_form_that_is_as_good_is_advised(matrix: Path):
    for seed in (1, 2):
        large, small = (cell_run_folder(matrix, f"{size}_seed-{seed}") for size in ("large", "small"))
        write_form(large, "fp32", 20.0, 40 + seed, LARGE)
        write_form(large, "int8", 8.0, 40 + seed, LARGE)
        write_form(small, "fp32", 9.0, 120 + seed, SMALL)
        write_form(small, "int8", 4.0, 120 + 9 * seed, SMALL)
    report = make_sweep(matrix, None)
    (ladder,) = report.ladders
    found = {entry.label: entry for entry in ladder.entries}
    assert list(found) == ["large, fp32", "large, int8", "small, fp32", "small, int8"]
    # The same answers in both seeds: no change. The small one has 80 of 400 rows less in each seed.
    assert found["large, int8"].comparison.outcome == "equal"
    assert found["small, fp32"].comparison.outcome == "different"
    assert found["small, fp32"].comparison.change == pytest.approx(-80 / 400)
    assert (found["large, int8"].same_decisions, found["small, fp32"].same_decisions) == (1.0, 0.8)
    assert found["large, int8"].explanations == (1.0, None, 2)
    assert found["small, int8"].explanations[0] == pytest.approx(0.5)
    section = next(section for section in report.sections if section.key == "ladder")
    table, comparisons = section.tables
    assert [line[0].text for line in comparisons.lines] == ["large, int8", "small, fp32", "small, int8"]
    columns = [column.name for column in table.columns]
    line = dict(zip(columns, table.lines[1], strict=True))
    assert (line["weights_mib"].value, line["best_batch"].text, line["best_texts_per_s"].value) == (8.0, "8", 300.0)
    assert line["peak_mib"].value == 2.0
    assert [dict(zip(columns, row, strict=True))["quality"].text for row in table.lines[:3]] == [
        "baseline",
        "equal",
        "worse",
    ]
    (statement,) = (entry for box in report.sections[0].boxes for entry in box.statements if entry.evidence == "ladder")
    assert statement.is_good
    assert all(part in statement.text for part in ("large, int8", "40.0%", "8 ms", "20 ms"))
    (drawing,) = (part for part in section.parts if isinstance(part, Drawing))
    figure, hovers = Figure(), Hovers()
    drawing.draw(figure, hovers)
    points = [[line for line in axes.lines if len(line.get_xdata()) == 1] for axes in figure.axes]
    panels = [[(line.get_xdata()[0], line.get_ydata()[0]) for line in lines] for lines in points]
    # Sizes and latencies are equal here; mean accuracy of seeds 1 and 2: 1 - 41.5 / 400.
    assert panels[0] == panels[1]
    assert panels[0][0] == (20.0, pytest.approx(1 - 41.5 / 400))
    assert len(hovers) == 8


def test_without_an_equal_form_the_full_model_is_kept(matrix: Path):
    for seed in (1, 2):
        run = cell_run_folder(matrix, f"large_seed-{seed}")
        write_form(run, "fp32", 20.0, 40 + seed, LARGE)
        write_form(run, "int8", 8.0, 140 + seed, LARGE)
    report = make_sweep(matrix, None)
    (statement,) = (entry for box in report.sections[0].boxes for entry in box.statements if entry.evidence == "ladder")
    assert statement.is_good is False
    assert "large, fp32" in statement.text


def test_damaged_measurements_and_a_busy_machine_are_notes(matrix: Path):
    for seed in (1, 2):
        run = cell_run_folder(matrix, f"large_seed-{seed}")
        write_form(run, "fp32", 20.0, 40, LARGE)
        write_form(run, "int8", 8.0, 40, LARGE)
    path = measured_folder(run, "int8") / "measured.json"
    write_json(path, measured("int8", 8.0, 0.9, LARGE) | {"p50_ms": None})
    write_json(measured_folder(run, "fp32") / "measured.json", measured("fp32", 20.0, 0.9, LARGE) | {"cpu_share": 0.5})
    (ladder,) = make_sweep(matrix, None).ladders
    assert [len(entry.members) for entry in ladder.entries] == [2, 1]
    assert any(str(path) in note for note in ladder.notes)
    assert any(note.endswith("large, fp32.") for note in ladder.notes)
    assert [entry.waited for entry in ladder.entries] == [True, False]
