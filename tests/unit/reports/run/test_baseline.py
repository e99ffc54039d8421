"""Changes against a baseline run, and the scores of a constant answer."""

import pytest
from make_run import make_run
from raised import raises_code

from paratune.reports.page.document import document_html
from paratune.reports.run import make, run_document
from paratune.reports.systems.tables import configurations_table


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
        kind="ddp",
        summary_changes={"scores.test": {"rmse": 0.75, "r2": 0.3, "pearson": 0.4}, "time.train_s": 150.0},
    )
    return base, tuned


def changes(report):
    """Return the cells of the second run by key."""
    table = configurations_table(report.systems)
    return {column.key: cell for column, cell in zip(table.columns, table.lines[1], strict=True)}


def test_changes_are_per_cent_of_the_baseline(runs):
    base, tuned = runs
    report = make([tuned], None, base)
    assert [run.name for run in report.runs] == ["base", "tuned"]
    found = changes(report)
    # 150 s of 100 s; 0.75 of 1.0.
    assert found["train_s"].text == "150 (+50.0% ↑)"
    assert found["test_rmse"].text == "0.7500 (−25.0% ↓)"


def test_different_experiments_have_no_change(runs, tmp_path):
    other = make_run(
        tmp_path / "other",
        task="regression",
        run_changes={"data.train.fingerprint": "other"},
        summary_changes={"scores.test": {"rmse": 0.5, "r2": 0.3, "pearson": 0.4}, "time.train_s": 150.0},
    )
    report = make([other], None, runs[0])
    assert report.verdicts[0].differs.refused
    assert changes(report)["train_s"].text == "150 (no comparison)"
    assert changes(report)["test_rmse"].text == "0.5000 (no comparison)"


def test_a_baseline_among_the_runs_keeps_its_place(runs):
    base, tuned = runs
    report = make([tuned, base], None, base / ".." / "base")
    assert [run.name for run in report.runs] == ["tuned", "base"]
    assert (report.baseline, [verdict.label for verdict in report.verdicts]) == ("base", ["tuned"])


def test_a_baseline_of_the_only_configuration_has_a_note(runs, tmp_path):
    again = make_run(tmp_path / "again", task="regression", seed=7)
    report = make([again], None, runs[0])
    assert (report.verdicts, len(report.verdict_notes)) == ((), 1)
    assert make([runs[0], again], None).verdict_notes == ()


def test_the_page_has_the_changes(runs):
    base, tuned = runs
    report = make([tuned], None, base)
    assert "(−25.0% ↓)" in document_html(run_document(report))
    assert report.as_dict()["baseline"] == "base"
    assert make([tuned], None).as_dict()["baseline"] is None


def test_an_unfinished_baseline_is_refused(runs, tmp_path):
    unfinished = make_run(tmp_path / "half", finished=False)
    with raises_code("report.nothing_to_compare", "--baseline"):
        make([runs[1]], None, unfinished)


def test_a_baseline_that_is_no_run_is_refused_with_the_runs(runs, tmp_path):
    with raises_code("run.not_found", *runs, option="--baseline", value=str(tmp_path / "zzz")):
        make(runs, None, tmp_path / "zzz")


def test_a_baseline_without_other_runs_raises_an_error(runs, tmp_path):
    base, _ = runs
    half = make_run(tmp_path / "half", finished=False)
    for named in ([base], [base, half]):
        with raises_code("report.nothing_to_compare", "--baseline"):
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
    row = next(row for row in make([run], None).rows if row.measure.key == "test_constant_rmse")
    assert row.cells[0].text == "1.2500"
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
    found = {row.measure.key: row.cells[0].text for row in make([run], None).rows if "_constant_" in row.measure.key}
    assert found == {"test_constant_exact": "50.0000"}


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
    (row,) = (row for row in report.rows if row.measure.key == f"validation_constant_{metric}")
    assert row.measure.group == "Majority class"
