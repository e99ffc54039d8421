"""Changes against a baseline run: the arithmetic, the side that is better, and where they are shown."""

import csv
import io

import pytest
from make_run import make_run
from raised import raises_code
from rich.console import Console

from paratune.reports.page.document import document_html
from paratune.reports.run.document import run_document
from paratune.reports.run.make import make, runs_csv
from paratune.reports.run.terminal import terminal_table


@pytest.fixture
def runs(tmp_path):
    base = make_run(
        tmp_path / "base",
        task="regression",
        summary_changes={"scores.test": {"rmse": 1.0, "r2": -0.5, "pearson": 0.5}, "time.train_s": 100.0},
    )
    tuned = make_run(
        tmp_path / "tuned",
        task="regression",
        summary_changes={"scores.test": {"rmse": 0.75, "r2": 0.3, "pearson": 0.4}, "time.train_s": 150.0},
    )
    return base, tuned


def change(report, key):
    row = next(row for row in report.against.rows if row.key == key)
    return row.changes[0]


def test_changes_are_in_per_cent_of_the_baseline_with_the_better_side(runs):
    base, tuned = runs
    report = make([tuned], None, base)
    assert [run.name for run in report.runs] == ["base", "tuned"]
    # 0.75 of 1.0; 150 s of 100 s; 0.4 of 0.5; from -0.5 there is no per cent, but up is better.
    assert change(report, "test_rmse").text == "−25.0% ↓ better"
    assert change(report, "train_s").text == "+50.0% ↑ worse"
    assert change(report, "test_pearson").text == "−20.0% ↓ worse"
    assert change(report, "test_r2").text == "n/a ↑ better"
    assert change(report, "peak_memory_largest_bytes").text == "0.0% the same"
    assert not {"seed", "num_steps", "world_size"} & {row.key for row in report.against.rows}


def test_changes_that_round_to_zero_are_neither_better_nor_worse(tmp_path):
    # From 0.8 to 0.7997 is -0.0375%, and to 0.7995 -0.0625%.
    for name, matthews, accuracy, macro in (("base", 0.0, 0.8, 0.8), ("tuned", 0.0, 0.7997, 0.7995)):
        scores = {"accuracy": accuracy, "f1_macro": macro, "matthews": matthews}
        make_run(tmp_path / name, summary_changes={"scores.test": scores})
    report = make([tmp_path / "tuned"], None, tmp_path / "base")
    assert change(report, "test_accuracy").text == "0.0% the same"
    assert change(report, "test_accuracy").better is None
    assert change(report, "test_f1_macro").text == "−0.1% ↓ worse"
    assert change(report, "test_matthews").text == "the same"


def test_sets_of_any_name_are_compared(tmp_path):
    for name, value in (("base", 0.5), ("tuned", 0.6)):
        scores = {"validation": {"f1_macro": value}, "validation_mismatched": {"f1_macro": value}}
        make_run(tmp_path / name, summary_changes={"scores": scores})
    report = make([tmp_path / "tuned"], None, tmp_path / "base")
    assert change(report, "validation_f1_macro").text == "+20.0% ↑ better"
    assert change(report, "validation_mismatched_f1_macro").text == "+20.0% ↑ better"


def test_a_baseline_among_the_runs_keeps_its_place(runs):
    base, tuned = runs
    report = make([tuned, base], None, base / ".." / "base")
    assert [run.name for run in report.runs] == ["tuned", "base"]
    assert [one.run for one in report.against.rows[0].changes] == ["tuned"]


def test_every_format_has_the_changes(runs):
    base, tuned = runs
    report = make([tuned], None, base)
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(terminal_table(report))
    document = run_document(report)
    for text in (console.export_text(), document_html(document)):
        assert "−25.0% ↓ better" in text
    assert 'class="better"' in document_html(document)
    lines = list(csv.DictReader(io.StringIO(runs_csv(report))))
    assert [line["test_rmse_change_percent"] for line in lines] == ["", "-25.0"]
    changes = report.as_dict()["baseline"]
    assert changes["run"] == "base"
    assert changes["changes"]["test_r2"]["tuned"] == {"percent": None, "better": True}
    assert make([tuned], None).as_dict()["baseline"] is None


def test_an_unfinished_baseline_is_refused(runs, tmp_path):
    unfinished = make_run(tmp_path / "half", finished=False)
    with raises_code("report.no_baseline", "--baseline"):
        make([runs[1]], None, unfinished)


def test_a_baseline_without_other_runs_raises_an_error(runs, tmp_path):
    base, _ = runs
    half = make_run(tmp_path / "half", finished=False)
    for named in ([base], [base, half]):
        with raises_code("report.no_baseline", "--baseline"):
            make(named, None, base)


def test_scores_of_a_constant_answer_are_rows(tmp_path):
    scores = {"rmse": 1.25, "mae": 1.0, "pearson": None}
    run = make_run(
        tmp_path / "run",
        task="regression",
        summary_changes={
            "scores.test": {"rmse": 1.0, "mae": 0.8},
            "baseline": {"predicts": "training mean", "value": 6.5, "scores": {"test": scores}},
        },
    )
    row = next(row for row in make([run], None).rows if row.key == "test_constant_rmse")
    # 1.0 is 20% below 1.25.
    assert row.cells[0].text == "1.2500 (run −20.0%, better)"
    assert row.cells[0].source == "summary.baseline.scores.test.rmse"


def test_scores_of_no_answers_are_rows(tmp_path):
    run = make_run(
        tmp_path / "run",
        task="qa",
        summary_changes={
            "scores.test": {"exact": 60.0, "f1": 70.0},
            "baseline": {"predicts": "no answer", "value": "", "scores": {"test": {"exact": 50.0, "f1": 50.0}}},
        },
    )
    found = {row.key: row.cells[0].text for row in make([run], None).rows if "_constant_" in row.key}
    assert found == {"test_constant_exact": "50.0000 (run +20.0%, better)"}


@pytest.mark.parametrize(
    ("metric", "value", "is_noted"),
    [("accuracy", 0.5, True), ("accuracy", 0.6, False), ("rmse", 0.4, False), ("rmse", 0.6, True)],
)
def test_a_model_that_is_not_better_than_the_constant_answer_has_a_note(
    metric: str, value: float, is_noted: bool, tmp_path
):
    run = make_run(
        tmp_path / "run",
        run_changes={"task.metrics": [metric]},
        summary_changes={
            "scores": {"validation": {metric: value}},
            "baseline": {"predicts": "majority class", "value": "a", "scores": {"validation": {metric: 0.5}}},
        },
    )
    report = make([run], None)
    assert any("majority class" in note and f"{value:.4f}" in note for note in report.notes) == is_noted
    (row,) = (row for row in report.rows if row.key == f"validation_constant_{metric}")
    assert row.group == "Majority class"
