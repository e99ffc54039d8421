"""Time to quality from events written out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from make_run import make_run
from raised import raises_code

from paratune.config.metric_names import ScoreTarget, parse_target
from paratune.errors import ConfigError
from paratune.records.finished import read_record
from paratune.reports import make
from paratune.reports.rows import row_of, target_measures
from paratune.reports.runs.read import read_runs


def write(folder: Path, *ranks: list[dict[str, Any]]) -> None:
    for rank, events in enumerate(ranks):
        lines = "".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events)
        (folder / f"events.rank{rank:04d}.jsonl").write_text(lines, encoding="utf-8")


def step(number: int, wall_ms: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "wall_ms": wall_ms, "loss": 1.0}


def evaluation(number: int, split: str = "validation", time_s: float = 0.5, **scores: float) -> dict[str, Any]:
    return {"event": "evaluation", "step": number, "split": split, "scores": scores, "time_s": time_s}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks: 2.5 s of start-up and 0.4 s of tokenization by the summary."""
    folder = make_run(tmp_path / "a", world_size=2, num_steps=5)
    write(
        folder,
        [
            step(1, 1000), step(2, 2000), evaluation(2, f1=0.7, loss=0.5),
            {"event": "checkpoint", "step": 2, "time_s": 0.25},
            step(3, 1000), evaluation(3, "test", f1=0.99), step(4, 1000), evaluation(4, f1=0.8, loss=0.3),
            step(5, 1000), evaluation(5, f1=0.75, loss=0.4),
        ],
        [step(1, 1500), step(2, 1000), step(3, 1000), step(4, 3000), step(5, 1000)],
    )  # fmt: skip
    return folder


def cells(folder: Path, *targets: str) -> dict[str, Any]:
    runs = read_runs([folder]).runs
    found = target_measures(runs, [parse_target(target) for target in targets])
    rows = [row_of(measure, runs) for measures in found for measure in measures[:2]]
    return {row.measure.key: (row.cells[0].value, row.cells[0].text) for row in rows}


def test_the_first_evaluation_that_meets_the_target_counts(run: Path):
    found = cells(run, "f1>=0.8")
    # The second rank takes longest, 1.5 + 1 + 1 + 3 s (the first 5). Evaluations of 0.5 s at 2, 3 (another split) and
    # 4, a checkpoint of 0.25 s.
    assert found["train_until_f1_0.8_s"] == (pytest.approx(6.5), "6.50")
    assert found["total_until_f1_0.8_s"] == (pytest.approx(6.5 + 2.5 + 0.4 + 1.5 + 0.25), "11.2")


def test_the_start_of_a_later_session_is_not_counted_to_a_target_before_it(run: Path):
    with (run / "events.rank0000.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"time": 0.0, "event": "resume", "step": 5, "world_size": 2}) + "\n")
    found = cells(run, "f1>=0.8")
    assert found["train_until_f1_0.8_s"][0] == pytest.approx(6.5)
    assert found["total_until_f1_0.8_s"][0] is None
    assert found["total_until_f1_0.8_s"][1].startswith("n/a: resumed later")


def test_metrics_that_fall_are_reached_from_above(run: Path):
    found = cells(run, "loss<=0.5", "loss <= 0.4")
    assert found["train_until_loss_0.5_s"][0] == pytest.approx(3.0), "1 + 2 s of the first rank; the second took 2.5"
    assert found["train_until_loss_0.4_s"][0] == pytest.approx(6.5), "0.3 at step 4 is below 0.4"


def test_a_target_that_was_not_reached_has_the_best_score(run: Path):
    assert cells(run, "f1>=0.9")["train_until_f1_0.9_s"] == (None, "not reached (best 0.8)")
    assert cells(run, "loss<=0.1")["total_until_loss_0.1_s"] == (None, "not reached (best 0.3)")


def test_a_target_that_nobody_reached_is_shown_all_the_same(run: Path):
    report = make([run], None, targets=[ScoreTarget("f1", 0.95)])
    assert [row.label for row in report.rows if row.shown and row.measure.group == "Time to quality"] == [
        "Training until f1 ≥ 0.95 (s)",
        "Whole run until f1 ≥ 0.95 (s)",
    ]


def test_a_run_without_the_metric_has_a_note(tmp_path: Path, run: Path):
    other = make_run(tmp_path / "b", num_steps=1)
    write(other, [step(1, 1000), evaluation(1, accuracy=0.9)])
    runs = read_runs([run, other]).runs
    ((train, *_),) = target_measures(runs, [ScoreTarget("f1", 0.8)])
    assert [cell.text for cell in row_of(train, runs).cells] == ["6.50", "n/a: not evaluated by it"]


def test_a_log_that_lost_steps_may_have_lost_the_evaluation(tmp_path: Path):
    log = make_run(tmp_path / "lost", num_steps=2)
    write(log, [step(1, 1000), evaluation(1, f1=0.7)])
    lost = "n/a: its event log lacks steps"
    assert cells(log, "f1>=0.8")["train_until_f1_0.8_s"] == (None, lost)
    assert cells(log, "f1>=0.7")["train_until_f1_0.7_s"] == (pytest.approx(1.0), "1.00")


def test_a_damaged_time_makes_it_unknown(run: Path):
    write(run, [{**step(1, 1000), "wall_ms": "long"}, evaluation(1, f1=0.9)])
    assert cells(run, "f1>=0.8")["train_until_f1_0.8_s"] == (None, "n/a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f2>=0.8", "f2 is not a metric; allowed: accuracy, adjacent_agreement"),
        ("f1", "'f1' is not a target; write METRIC>=VALUE"),
        ("f1>=", "is not a target"),
        ("f1>=high", "is not a target"),
        ("f1>0.8", "is not a target"),
        (">=0.8", "is not a target"),
        ("f1<=0.8", "f1 is better when it is larger; write f1>=0.8"),
        ("rmse>=0.5", "rmse is better when it is smaller; write rmse<=0.5"),
        ("\x1b[31mf1>=0.8", "is not a metric"),
    ],
)
def test_invalid_targets_raise_an_error(text: str, said: str):
    with pytest.raises(ConfigError) as error:
        parse_target(text)
    assert said in str(error.value)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("text", ["f1>=.88", "f1>=8.8e-1", " f1 >= 0.88 ", "F1>=0.88"])
def test_numbers_may_be_written_as_one_likes(text: str):
    assert parse_target(text) == ScoreTarget("f1", 0.88)
    assert parse_target(text.replace("f1", "F1, macro").replace("F1>", "f1_MACRO>")) == ScoreTarget("f1_macro", 0.88)


def test_error_for_an_unknown_metric_lists_the_evaluated_ones(run: Path):
    with raises_code("metric.unknown", "f1"):
        cells(run, "rmse<=1")


def test_error_names_events_that_cannot_be_read(run: Path):
    with (run / "events.rank0001.jsonl").open("a", encoding="utf-8") as file:
        file.write("[]\n" + json.dumps(step(6, 1000)) + "\n")
    records_of = (read_record(run, "a"),)
    with raises_code("metric.unknown", "events.rank0001.jsonl"):
        list(target_measures(records_of, [ScoreTarget("f1", 0.8)]))
