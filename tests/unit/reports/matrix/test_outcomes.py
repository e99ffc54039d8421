"""Mean and spread over seeds, the choice by validation, and tables in every format; expected values are written out."""

import csv
import io
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from raised import raises_code
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.records.predictions import write_predictions
from paratune.records.sweep import Axis, CellRecord, SweepRecord, cell_run_folder, read_sweep, write_sweep
from paratune.reports.comparison import make_comparison
from paratune.reports.matrix import make_sweep, matrix_document, matrix_sections, read_joined
from paratune.reports.outcomes import SweepReport, candidates_table, chosen_table
from paratune.reports.statements import chosen_statement, matrix_statements
from paratune.reports.systems.model import GONE
from paratune.reports.tables.table import Table
from paratune.verdicts import MeasureComparison
from paratune.verdicts.estimate import Estimate

SEED = Axis("run.seed", "seed", {"seed-1": "1", "seed-2": "2", "seed-3": "3"}, is_seed=True)
RATE = Axis("train.learning_rate", "rate", {"high": "0.0001", "low": "1e-05"})
MODEL = Axis("model", "model", {"big": "big", "small": "<i>small</i>"})
TASK = Axis("task", "task", {"mrpc": "mrpc", "stsb": "stsb"}, is_column=True)
VALIDATION = {
    # accuracy of the seeds 1, 2 and 3
    "high": (0.80, 0.90, 0.85),
    "low": (0.86, 0.86, 0.86),
}


THREE = VALIDATION | {"mid": (0.7, 0.7, 0.7)}


def make(
    folder: Path,
    axes: tuple[Axis, ...] = (RATE, SEED),
    per: tuple[str, ...] = (),
    *,
    missing: dict[str, str] | None = None,
    left_out: tuple[str, ...] = (),
    test: bool = True,
    scores: dict[str, tuple[float | None, ...]] | None = None,
) -> SweepReport:
    """Write a matrix with a run in each cell; `missing` has the state of those that are not finished."""
    cells = []
    for names in itertools.product(*(axis.values for axis in axes)):
        values = {axis.label: name for axis, name in zip(axes, names, strict=True)}
        name = "_".join(names)
        if name in left_out:
            continue
        state = (missing or {}).get(name, "finished")
        is_stsb = values.get("task") == "stsb"
        cells.append(
            CellRecord(
                name=name,
                values=values,
                num_processes=1,
                task="regression" if is_stsb else "classification",
                metric="rmse" if is_stsb else "accuracy",
                metrics=("pearson", "rmse") if is_stsb else ("accuracy", "f1"),
                fingerprint=name,
                state=state,
                reason="the loss is nan" if state == "failed" else None,
            )
        )
        if state != "finished":
            continue
        value = (scores or VALIDATION)[values["rate"]][int(values["seed"][-1]) - 1]
        found = {"rmse": value, "pearson": 0.5} if is_stsb else {"accuracy": value, "f1": 0.5, "loss": 0.25}
        run = cell_run_folder(folder, name)
        run.mkdir(parents=True)
        splits = {"validation": found} | ({"test": dict.fromkeys(found, 0.75)} if test else {})
        (run / "run.json").write_text(json.dumps(WHOLE_RUN))
        (run / "summary.json").write_text(json.dumps({**WHOLE_SUMMARY, "scores": splits}))
    folder.mkdir(exist_ok=True)
    record = SweepRecord("table6", "2026-11-21", "m.yaml", ("paratune",), axes, per, tuple(cells), ("old",))
    write_sweep(folder, record)
    return read_joined([folder])


def unfinished(report: SweepReport) -> list[Table]:
    sections = (section for section in matrix_sections(report) if section.key == "unfinished")
    return [table for section in sections for table in section.tables]


def test_mean_and_sample_standard_deviation(tmp_path: Path):
    # (0.80 + 0.90 + 0.85) / 3 = 0.85; squares 0.0025 + 0.0025 + 0; / (3 - 1) = 0.0025; its root 0.05.
    # (0.80 + 0.90) / 2 = 0.85; squares 0.0025 + 0.0025; / (2 - 1) = 0.005; its root 0.0707.
    scores = {"high": (0.80, 0.90, 0.85), "low": (0.80, None, 0.90)}
    (group,) = make(tmp_path / "m", scores=scores).groups
    whole, short = (candidate.score_over_seeds("validation", "accuracy") for candidate in group.candidates)
    assert (whole.center, whole.deviation) == pytest.approx((0.85, 0.05))
    assert (short.center, short.deviation, short.num_runs) == (pytest.approx(0.85), pytest.approx(0.005**0.5), 3)
    assert [candidate.is_whole("accuracy") for candidate in group.candidates] == [True, False]
    absent = group.candidates[0].score_over_seeds("validation", "rouge")
    assert (absent.center, absent.deviation, absent.num_runs) == (None, None, 3)


def test_the_best_mean_on_validation_is_chosen_and_test_scores_are_shown(tmp_path: Path):
    report = make(tmp_path / "m")
    (group,) = report.groups
    assert group.chosen.values == {"rate": "low"}  # 0.86 against 0.85, though one seed of the other has 0.90
    # 0.06, -0.04 and 0.01 have a mean of 0.01 and a standard error of 0.029: not told apart.
    assert [candidate.values for candidate in group.tied] == [{"rate": "high"}]
    table = chosen_table(report)
    assert table.header[:2] == ("matrix", "chosen")
    assert table.rows == (("table6", "rate 1e-05 (tied with 1 other)", "0.7500 ± 0.0000", "0.7500 ± 0.0000"),)
    assert table.lines[0][1].runs == ("low_seed-1", "low_seed-2", "low_seed-3")


def test_of_an_error_the_smallest_is_chosen(tmp_path: Path):
    report = make(tmp_path / "m", (TASK, RATE, SEED), ("task",))
    assert [group.chosen.values["rate"] for group in report.groups] == ["low", "high"]


def test_a_candidate_that_lacks_a_run_is_shown_and_not_chosen(tmp_path: Path):
    report = make(tmp_path / "m", missing={"low_seed-2": "failed"})
    (group,) = report.groups
    assert group.chosen.values == {"rate": "high"}
    assert group.remarks == (
        "1 of 6 runs unfinished",
        "chosen among the 1 of 2 candidates with a score of every seed",
    )
    rows = candidates_table(report, group, 0)
    assert rows.rows[1][:5] == ("1e-05", "0.8600 ± 0.0000 (2 of 3)", "0.8600", "failed", "0.8600")
    assert [table.rows for table in unfinished(report)] == [(("low_seed-2", "failed: the loss is nan"),)]
    # Of probes no run has scores: what is counted is what came to nothing.
    assert [table.title for table in unfinished(report)] == ["Unfinished: 1 of 6 runs"]


def test_a_candidate_of_fewer_seeds_is_shown_and_not_chosen(tmp_path: Path):
    # Without its seed 1 (0.80) the mean of "high" would be (0.90 + 0.85) / 2 = 0.875, above the 0.86 of "low".
    report = make(tmp_path / "m", left_out=("high_seed-1",))
    (group,) = report.groups
    assert group.chosen.values == {"rate": "low"}
    assert group.remarks == ("chosen among the 1 of 2 candidates with a score of every seed",)
    rows = candidates_table(report, group, 0)
    assert rows.rows[0][:5] == ("0.0001", "0.8750 ± 0.0354 (2 of 3)", "", "0.9000", "0.8500")
    assert "3 seeds (1, 2, 3)" in chosen_table(report).notes[0]


def test_a_seed_that_no_candidate_has_is_not_asked_for(tmp_path: Path):
    report = make(tmp_path / "m", left_out=("high_seed-1", "low_seed-1"))
    (group,) = report.groups
    assert (group.chosen.values, group.remarks) == ({"rate": "high"}, ())


def test_no_candidate_is_chosen_if_all_lack_runs(tmp_path: Path):
    report = make(tmp_path / "m", missing={"low_seed-2": "pending", "high_seed-1": "interrupted"})
    (group,) = report.groups
    assert group.chosen is None
    assert "nothing is chosen: no candidate has a score of every seed" in group.remarks
    assert chosen_table(report).rows == (("table6", "none", "n/a", "n/a"),)


def test_a_score_that_is_not_finite_is_missing(tmp_path: Path):
    report = make(tmp_path / "m", scores={**VALIDATION, "low": (0.9, None, 0.9)})
    (group,) = report.groups
    assert group.chosen.values == {"rate": "high"}
    assert "1 finished run without a finite accuracy on validation" in group.remarks


def test_equal_candidates_have_a_remark(tmp_path: Path):
    report = make(tmp_path / "m", scores={"high": (0.5, 0.5, 0.5), "low": (0.5, 0.5, 0.5)})
    (group,) = report.groups
    assert group.chosen.values == {"rate": "high"}
    assert group.remarks[0].startswith("2 ")
    assert [candidate.values for candidate in group.tied] == [{"rate": "low"}]


def test_a_candidate_that_all_seeds_find_worse_is_no_tie(tmp_path: Path):
    report = make(tmp_path / "m", scores={"high": (0.80, 0.81, 0.82), "low": (0.90, 0.912, 0.921)})
    (group,) = report.groups
    assert group.tied == ()
    # Without predictions the interval is over seeds alone, on these rows: no claim about others.
    assert [found.scope for _, found in group.compared] == ["seeds"]
    assert group.remarks == ()


ROWS, HIGH, LOW = 400, (360, 368, 364), (320, 324, 318)
"""Rows of validation, and right ones of each seed."""


def predict(folder: Path, right: int, name: str) -> None:
    """Write predictions of which the first ones are right."""
    columns = {"label": ["b"] * ROWS, "prediction": ["b"] * right + ["a"] * (ROWS - right)}
    run = cell_run_folder(folder, name)
    write_predictions(run, "validation", rows=np.arange(ROWS), ids=None, columns=columns)
    task = {"kind": "classification", "labels": ["a", "b"]}
    (run / "run.json").write_text(json.dumps({**WHOLE_RUN, "task": task}))


@pytest.mark.parametrize(("low", "is_best"), [(LOW, True), ((361, 360, 366), None)])
def test_best_in_quality_is_the_verdict_over_seeds_and_rows(low, is_best, tmp_path: Path):
    scores = {name: tuple(count / ROWS for count in counts) for name, counts in (("high", HIGH), ("low", low))}
    make(tmp_path / "m", scores=scores)
    for name, counts in (("high", HIGH), ("low", low)):
        for seed, count in enumerate(counts, start=1):
            predict(tmp_path / "m", count, f"{name}_seed-{seed}")
    report = read_joined([tmp_path / "m"])
    (group,) = report.groups
    ((other, found),) = group.compared
    assert (other.values, found.scope, found.estimate.num_rows) == ({"rate": "low"}, "seeds and samples", ROWS)
    assert found.change == pytest.approx((sum(low) - sum(HIGH)) / 3 / ROWS)
    assert (chosen_statement(report, group).is_good, len(group.tied)) == (is_best, 0 if is_best else 1)


def test_seeds_that_differ_more_than_rows_allow_are_no_best(tmp_path: Path):
    # 12 of 20 rows against 8, in each of three seeds: without the rows' part the interval would have no width.
    right = {"high": (12, 12, 12), "low": (8, 8, 8)}
    make(tmp_path / "m", scores={name: tuple(count / 20 for count in counts) for name, counts in right.items()})
    for name, counts in right.items():
        for seed in range(3):
            run = cell_run_folder(tmp_path / "m", f"{name}_seed-{seed + 1}")
            is_right = np.roll(np.arange(20) < counts[seed], 5 * (name == "low"))
            columns = {"label": ["b"] * 20, "prediction": np.where(is_right, "b", "a").tolist()}
            write_predictions(run, "validation", rows=np.arange(20), ids=None, columns=columns)
            task = {"kind": "classification", "labels": ["a", "b"]}
            (run / "run.json").write_text(json.dumps({**WHOLE_RUN, "task": task}))
    report = read_joined([tmp_path / "m"])
    (group,) = report.groups
    ((_, found),) = group.compared
    assert (found.outcome, found.scope) == ("cannot tell", "seeds and samples")
    assert chosen_statement(report, group).is_good is None
    assert found.low < 0 < found.high


@pytest.mark.parametrize(("outcome", "scope", "is_best"), [
    ("different", "seeds and samples", True), ("different", "seeds", None),
    ("cannot tell", "seeds and samples", None), ("equal", "seeds and samples", None), ("n/a", None, None),
])  # fmt: skip
def test_best_needs_every_other_candidate(outcome, scope, is_best, tmp_path: Path):
    report = make(tmp_path / "m", (replace(RATE, values={**RATE.values, "mid": "5e-05"}), SEED), scores=THREE)
    (group,) = report.groups
    estimate = Estimate(-0.1, (), 0.0, 9, "seeds and samples")
    known = MeasureComparison("accuracy", False, 0.9, 0.8, (3, 3), -0.1, outcome="different", estimate=estimate)
    found = (known, replace(known, outcome=outcome, estimate=replace(estimate, scope=scope)))
    others = [candidate for candidate in group.candidates if candidate is not group.chosen]
    compared = tuple(zip(others, found, strict=True))
    assert chosen_statement(report, replace(group, compared=compared)).is_good is is_best
    assert chosen_statement(report, replace(group, compared=compared[:1])).is_good is None


STRATEGY = Axis("strategy", "strategy", {"ddp": "ddp", "zero3": "zero3"}, keys=("strategy.kind",))
WORKERS = Axis("data.num_workers", "num_workers", {"w0": "0", "w2": "2"}, keys=("data.num_workers",))
NPROC = Axis("nproc", "nproc", {"n1": "1", "n2": "2"}, keys=("nproc",))
BATCH = Axis("batch.global", "global", {"b8": "8", "b16": "16"}, keys=("batch.global",))


@pytest.mark.parametrize(
    ("axis", "sizes", "is_chosen_among"),
    [
        (STRATEGY, (32, 32), False),
        (WORKERS, (32, 32), False),
        (NPROC, (32, 32), False),
        (NPROC, (32, 64), True),
        (NPROC, (32, None), True),
        (BATCH, (8, 16), True),
    ],
)
def test_axes_that_do_not_change_training_are_not_chosen_among(axis, sizes, is_chosen_among, tmp_path: Path):
    make(tmp_path / "m", (axis, RATE, SEED))
    of_value = dict(zip(axis.values, sizes, strict=True))
    for cell in read_sweep(tmp_path / "m").cells:
        run = {**WHOLE_RUN, "batch": {"global_batch_size": of_value[cell.values[axis.label]]}}
        (cell_run_folder(tmp_path / "m", cell.name) / "run.json").write_text(json.dumps(run))
    (group,) = read_joined([tmp_path / "m"]).groups
    assert (axis.label in group.chosen.values) == is_chosen_among
    assert group.not_chosen_among == (() if is_chosen_among else (axis.label,))
    assert len(group.candidates) == (4 if is_chosen_among else 2)
    # Runs of a seed that train the same are one value, not two seeds.
    assert [*group.chosen.score_over_seeds("validation", "accuracy").values.values()] == [0.86, 0.86, 0.86]


def test_a_seed_without_some_of_its_runs_is_told_with_their_number(tmp_path: Path):
    three = replace(STRATEGY, values={name: name for name in ("ddp", "fsdp2", "zero3")})
    scores = {"high": (0.80, 0.80, 0.80), "low": (0.70, 0.70, 0.70)}
    report = make(tmp_path / "m", (three, RATE, SEED), scores=scores, missing={"fsdp2_high_seed-2": "failed"})
    (group,) = report.groups
    found = group.chosen.score_over_seeds("validation", "accuracy")
    # 3 + 2 + 3 runs: the seed is there, and its mean is over two of its three runs.
    assert (group.chosen.values, len(found.values), found.num_runs) == ({"rate": "high"}, 3, 3)
    assert "over 3 seeds (8 of 9 runs)" in chosen_statement(report, group).text
    assert chosen_table(report).rows[0][2] == "0.7500 ± 0.0000 (8 of 9 runs)"
    high, low = candidates_table(report, group, 0).lines
    assert [cell.text for cell in high[1:5]] == ["0.8000 ± 0.0000 (8 of 9 runs)", "0.8000", "0.8000 (2 of 3)", "0.8000"]
    assert high[3].runs == ("ddp_high_seed-2", "zero3_high_seed-2")
    assert low[1].text == "0.7000 ± 0.0000"


@pytest.mark.parametrize(
    ("lost", "chosen"),
    [
        (("fsdp2_high_seed-2",), "high"),
        (("fsdp2_high_seed-2", "ddp_high_seed-2"), "high"),
        (("fsdp2_high_seed-2", "ddp_high_seed-2", "zero3_high_seed-2"), "low"),
        (tuple(f"{kind}_{rate}_seed-2" for kind in ("ddp", "fsdp2", "zero3") for rate in RATE.values), None),
        (tuple(f"{kind}_{rate}_seed-{at}" for kind in ("ddp", "fsdp2", "zero3") for rate, at in
               (("high", 1), ("low", 2))), None),
    ],
)  # fmt: skip
def test_a_candidate_needs_one_score_of_every_seed(lost: tuple[str, ...], chosen: str | None, tmp_path: Path):
    three = replace(STRATEGY, values={name: name for name in ("ddp", "fsdp2", "zero3")})
    scores = {"high": (0.80, 0.80, 0.80), "low": (0.70, 0.70, 0.70)}
    report = make(tmp_path / "m", (three, RATE, SEED), scores=scores, missing=dict.fromkeys(lost, "failed"))
    (group,) = report.groups
    assert (group.chosen and group.chosen.values["rate"]) == chosen
    told = "\n".join([*group.remarks, *(found.text for found in matrix_statements(report))])
    assert "of its runs" not in told  # a missing run alone is no reason
    assert ("score of every seed" in told) is (chosen != "high")


@pytest.mark.parametrize("states", [{}, {"high_seed-2": "failed", "low_seed-1": "pending"}])
def test_a_matrix_whose_runs_are_gone_is_an_error_that_names_each_reason_once(states: dict[str, str], tmp_path: Path):
    make(tmp_path / "m", missing=states)
    shutil.rmtree(tmp_path / "m" / "runs" / "low_seed-3")
    some = make_sweep(tmp_path / "m", None)
    assert {item.reason for item in some.cell_runs if item.cell.name == "low_seed-3"} == {GONE}
    shutil.rmtree(tmp_path / "m" / "runs")
    with raises_code("run.not_found", "6 runs", "paratune sweep", folder=tmp_path / "m") as caught:
        make_sweep(tmp_path / "m", tmp_path / "out")
    assert str(caught.value).count("is gone") == 1
    assert len(str(caught.value).splitlines()) == 2 + len(states)
    assert not (tmp_path / "out").exists()
    make(tmp_path / "failed", missing={f"{rate}_seed-{at}": "failed" for rate in RATE.values for at in (1, 2, 3)})
    assert make_sweep(tmp_path / "failed", None).runs == []  # as at the end of a sweep
    with raises_code("report.nothing_to_compare") as caught:
        make_comparison([str(tmp_path / "m")])
    assert str(caught.value).count("is gone") == 1


def test_a_choice_that_is_no_better_than_the_majority_class_is_named(tmp_path: Path):
    folder = tmp_path / "m"
    make(folder)
    for constant, is_below in ((0.85, False), (0.86, True), (0.9, True)):
        for cell in read_sweep(folder).cells:
            path = cell_run_folder(folder, cell.name) / "summary.json"
            summary = json.loads(path.read_text())
            baseline = {"predicts": "majority class", "value": "a", "scores": {"validation": {"accuracy": constant}}}
            path.write_text(json.dumps(summary | {"baseline": baseline}))
        report = read_joined([folder])
        (group,) = report.groups
        assert (group.constant, group.predicts, group.is_below_constant) == (constant, "majority class", is_below)
        assert any(f"{constant:.4f}" in note for note in chosen_table(report).notes)


def test_runs_that_were_not_needed_leave_a_candidate_whole(tmp_path: Path):
    make(tmp_path / "m", missing={"low_seed-3": "skipped"})
    record = read_sweep(tmp_path / "m")
    assert read_joined([tmp_path / "m"]).groups[0].chosen.values == {"rate": "high"}
    cells = tuple(replace(cell, is_needed=cell.state != "skipped") for cell in record.cells)
    write_sweep(tmp_path / "m", replace(record, cells=cells))
    report = read_joined([tmp_path / "m"])
    assert report.groups[0].chosen.values == {"rate": "low"}
    assert [candidate.num_left_out for candidate in report.groups[0].candidates] == [0, 0]
    assert "cannot run here" not in matrix_document(report).lead[0]


def test_a_row_for_each_model_and_a_column_for_each_metric_of_each_task(tmp_path: Path):
    table = chosen_table(make(tmp_path / "m", (MODEL, TASK, RATE, SEED), ("model", "task"), test=False))
    assert table.header == (
        "model",
        "mrpc chosen",
        "stsb chosen",
        *(
            "mrpc validation Accuracy ↑",
            "mrpc validation F1 ↑",
            "stsb validation Pearson r ↑",
            "stsb validation RMSE ↓",
        ),
    )
    assert [row[0] for row in table.rows] == ["big", "<i>small</i>"]
    assert table.rows[0][1:] == (
        "rate 1e-05 (tied with 1 other)",
        "rate 0.0001 (tied with 1 other)",
        "0.8600 ± 0.0000",
        "0.5000 ± 0.0000",
        "0.5000 ± 0.0000",
        "0.8500 ± 0.0500",
    )
    assert any("optimistic" in note for note in table.notes)


def _with_cells(folder: Path, **changes: dict[str, object]) -> SweepReport:
    """Read a matrix again after its cells of these names were changed."""
    record = read_sweep(folder)
    for cell in record.cells:
        record = record.with_cell(replace(cell, **changes.get(cell.name.replace("-", "_"), {})))
    write_sweep(folder, record)
    return read_joined([folder])


def test_repeats_probes_and_skipped_runs_are_not_chosen_among(tmp_path: Path):
    # Without its seed 1 the mean of "high" would be 0.875, above the 0.86 of "low".
    make(tmp_path / "m")
    for change in ({"kind": "probe"}, {"repeat": 2}, {"state": "skipped", "reason": "no GPU here"}):
        report = _with_cells(tmp_path / "m", high_seed_1=change)
        (group,) = report.groups
        assert group.chosen.values == {"rate": "low"}
        assert len(report.cell_runs) == 6
        _with_cells(tmp_path / "m", high_seed_1={"kind": "full", "repeat": 1, "state": "finished", "reason": None})


def test_skipped_runs_are_shown_with_their_reason(tmp_path: Path):
    make(tmp_path / "m")
    report = _with_cells(tmp_path / "m", high_seed_1={"state": "skipped", "reason": "nproc: 8, and 2 GPUs"})
    assert [table.rows for table in unfinished(report)] == [(("high_seed-1", "skipped: nproc: 8, and 2 GPUs"),)]
    assert "5 of 6 runs finished, 1 cannot run here." in matrix_document(report).lead[0]


def test_probes_have_no_scores_in_any_format(tmp_path: Path):
    make(tmp_path / "m")
    record = read_sweep(tmp_path / "m")
    write_sweep(tmp_path / "m", replace(record, cells=tuple(replace(cell, kind="probe") for cell in record.cells)))
    report = make_sweep(tmp_path / "m", tmp_path / "out")
    assert (report.groups, len(report.runs)) == ((), 6)
    assert all(cell_run.scores == {} for cell_run in report.cell_runs)
    for path in report.files:
        assert path.suffix == ".pdf" or "0.85" not in path.read_text(), path
    assert "chosen" not in [section.key for section in matrix_sections(report)]
    assert " All runs are probes: " in matrix_document(report).lead[0]


@pytest.mark.parametrize("change", [{"kind": "probe"}, {"state": "skipped", "reason": "no GPU here"}])
def test_runs_that_have_no_scores_leave_no_empty_table(change: dict[str, str], tmp_path: Path):
    make(tmp_path / "m")
    changes = {"state": "pending", **change}
    record = read_sweep(tmp_path / "m")
    report = _with_cells(tmp_path / "m", **{cell.name.replace("-", "_"): changes for cell in record.cells})
    assert (report.groups, len(report.runs)) == ((), 0)
    assert [section.key for section in matrix_sections(report)] == ["unfinished", "reproduce"]
    assert [len(table.rows) for section in matrix_sections(report) for table in section.tables][:2] == [6, 3]
    make_sweep(tmp_path / "m", tmp_path / "out")
    assert "Results" not in (tmp_path / "out" / "index.html").read_text()


def test_a_score_of_another_schema_version_is_no_score(tmp_path: Path):
    make(tmp_path / "m")
    summary = cell_run_folder(tmp_path / "m", "low_seed-1") / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "schema_version": 99}))
    report = read_joined([tmp_path / "m"])
    (lost,) = (cell_run for cell_run in report.cell_runs if cell_run.record is None)
    assert lost.scores == {}
    assert "has schema_version 99, this paratune reads 1" in lost.reason
    assert report.groups[0].chosen.values == {"rate": "high"}


def test_a_damaged_run_is_named_and_left_out(tmp_path: Path):
    make(tmp_path / "m")
    (cell_run_folder(tmp_path / "m", "low_seed-1") / "summary.json").write_text("{")
    report = read_joined([tmp_path / "m"])
    assert len(report.runs) == 5
    assert "summary.json is damaged" in next(each.reason for each in report.cell_runs if each.reason)


def test_all_formats_are_written(tmp_path: Path):
    make(tmp_path / "m", (MODEL, TASK, RATE, SEED), ("model", "task"), missing={"big_mrpc_low_seed-2": "failed"})

    report = make_sweep(tmp_path / "m", tmp_path / "out")

    names = ("index.html", "table.csv", "report.json")
    assert {tmp_path / "out" / name for name in names} < set(report.files)
    assert all(path.is_file() for path in report.files)
    html, text, found = ((tmp_path / "out" / name).read_text() for name in names)
    assert "<i>small</i>" not in html
    assert "&lt;i&gt;small&lt;/i&gt;" in html
    assert html.count("<script") == 1  # the page's own
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 24
    low = json.loads(found)["groups"][0]["candidates"][1]["scores"]["validation"]["accuracy"]
    assert low["values"] == [0.86, None, 0.86]
    failed = next(line for line in lines if line["run"] == "big_mrpc_low_seed-2")
    assert (failed["state"], failed["validation_accuracy"], failed["chosen"]) == ("failed", "", "0")
    assert [line["validation_accuracy"] for line in lines[:3]] == ["0.8", "0.9", "0.85"]
    assert [line["chosen"] for line in lines[:6]] == ["1", "1", "1", "0", "0", "0"]
    values = json.loads(found)
    assert values["num_finished"] == 23
    first = values["groups"][0]["candidates"][0]["scores"]["validation"]["accuracy"]
    assert first["mean"] == pytest.approx(0.85)
    assert first["standard_deviation"] == pytest.approx(0.05)
    assert (first["num_runs"], first["values"]) == (3, [0.80, 0.90, 0.85])
    assert values["past"] == ["old"]
    make_sweep(tmp_path / "m", tmp_path / "out")  # an earlier report is replaced


def test_a_folder_without_a_matrix(tmp_path: Path):
    with raises_code("run.damaged"):
        make_sweep(tmp_path, None)


@pytest.mark.parametrize("damage", ["select_per", "cells", "baseline"])
def test_a_matrix_whose_parts_do_not_fit_is_damaged(damage: str, tmp_path: Path):
    make(tmp_path / "m", (RATE, SEED), ())
    record = json.loads((tmp_path / "m" / "sweep.json").read_text())
    values = {"select_per": ["nope"], "cells": record["cells"] + record["cells"][:1], "baseline": {"nope": "x"}}
    (tmp_path / "m" / "sweep.json").write_text(json.dumps(record | {damage: values[damage]}))
    with raises_code("run.damaged"):
        make_sweep(tmp_path / "m", None)


def test_a_matrix_without_runs_is_reported(tmp_path: Path):
    folder = tmp_path / "m"
    make(folder, (RATE, SEED), ())
    write_sweep(folder, replace(read_sweep(folder), cells=()))
    assert make_sweep(folder, tmp_path / "out").runs == []
    assert (tmp_path / "out" / "table.csv").read_text() == ""


def test_lines_of_chosen_runs_are_grouped_by_headings(tmp_path: Path):
    folder = tmp_path / "m"
    made = make(folder, (MODEL, TASK, RATE, SEED), ("model", "task"))
    # The second value of the axis is listed first; what no heading lists comes last.
    for groups, order, headings in (
        ({"A": ("small",), "B": ("big",)}, ["<i>small</i>", "big"], ((0, "A"), (1, "B"))),
        ({"A": ("small",)}, ["<i>small</i>", "big"], ((0, "A"), (1, "Others"))),
        ({"A": ("big", "small")}, ["big", "<i>small</i>"], ((0, "A"),)),
    ):
        write_sweep(folder, replace(made.record, groups={"model": groups}))
        report = make_sweep(folder, None)
        table = chosen_table(report)
        assert [line[0].text for line in table.lines] == order
        assert table.groups == headings
