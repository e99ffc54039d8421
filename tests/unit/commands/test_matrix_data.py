"""Figures of the data in the report of a matrix."""

from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix
from raised import raises_code

from paratune.commands.matrix_data import check_matrices, data_section
from paratune.records.sweep import CONFIGS_FOLDER, read_sweep
from paratune.reports.matrix import make_sweep

pytest.importorskip("matplotlib")
CONFIG = """
task: {{kind: {kind}}}
data:
  train: {folder}/train.csv
  columns: {{text: text, label: band}}
  figures: {{by: type, word_clouds: [text]}}
  cache_dir: {folder}/cache
model: {{name: demo:minilm}}
train: {{epochs: 1}}
batch: {{global: 8}}
"""


def matrix(folder: Path, kind: str = "regression", **second: str) -> Path:
    """Return a matrix of two runs; `second` changes run.json of the second one by dotted path."""
    made = make_matrix(folder / "m", (STRATEGY,), lambda values: Made(
        kind=values["strategy"], run=second if values["strategy"] == "zero3" else {}))  # fmt: skip
    rows = [f"word{number} essay,{number % 5},{number % 2}\n" for number in range(20)]
    (folder / "train.csv").write_text("text,band,type\n" + "".join(rows))
    (made / CONFIGS_FOLDER).mkdir()
    for cell in read_sweep(made).cells:
        text = CONFIG.format(kind=kind, folder=folder)
        (made / CONFIGS_FOLDER / f"{cell.name}.yaml").write_text(text)
    return made


def test_the_page_contains_the_figures_of_the_data(tmp_path: Path):
    folder = matrix(tmp_path)
    check_matrices([folder])
    report = make_sweep(folder, tmp_path / "out", more=data_section)
    section = report.sections[-1]
    assert (section.key, section.heading) == ("data", "The data")
    keys = [drawing.key for drawing in section.drawings]
    names = ("score_distribution", "lengths", "length_by_score", "correlations", "scores_by_type", "words_text")
    assert keys == [f"data-{name}" for name in names]
    assert "20 rows; mean 2" in section.drawings[0].caption
    page = (tmp_path / "out" / "index.html").read_text()
    assert 'id="data"' in page
    assert section.drawings[-1].note in page  # of too few texts for a word cloud


def test_the_heading_names_the_run_if_runs_differ_in_data(tmp_path: Path):
    folder = matrix(tmp_path, **{"data.train.fingerprint": "cd" * 32})
    assert make_sweep(folder, None, more=data_section).sections[-1].heading == "The data of ddp"


def test_matrices_without_such_figures_are_refused(tmp_path: Path):
    with raises_code("cli.no_effect", num_matrices=0):
        check_matrices([])
    folder = matrix(tmp_path)
    with raises_code("cli.no_effect", num_matrices=2):
        check_matrices([folder, folder])
    for cell in read_sweep(folder).cells:
        path = folder / CONFIGS_FOLDER / f"{cell.name}.yaml"
        path.write_text(path.read_text().replace("kind: regression", "kind: mlm").replace(", label: band", ""))
    with raises_code("task.unsupported", "mlm"):
        check_matrices([folder])


def test_a_matrix_without_a_finished_run_has_no_figures(tmp_path: Path):
    states = dict.fromkeys(("ddp", "zero3"), ("pending", None))
    make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(), states=states)
    with raises_code("report.no_run"):
        make_sweep(tmp_path / "m", None, more=data_section)
