"""Folders of Hugging Face's Trainer as runs of reports and comparisons; the layout is that of transformers 5.23."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from make_run import make_run
from raised import raises_code

from paratune.records.trainer_folder import read_trainer_folder, split_scores, state_file
from paratune.reports import make
from paratune.reports.comparison import make_comparison
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import compare
from paratune.reports.systems.tables import configurations_table


def trainer_folder(folder: Path, rate: float = 1e-3, *, results: bool = True, ended: bool = True, at: str = "") -> Path:
    """Write what a Trainer leaves after 4 steps, or only its checkpoint `at`."""
    log: list[dict[str, Any]] = [
        {"epoch": 0.5, "grad_norm": 0.4, "learning_rate": rate / 2, "loss": 0.69, "step": 2},
        {"epoch": 0.5, "eval_accuracy": 0.25, "eval_loss": 0.7, "eval_runtime": 0.02, "step": 2},
    ]
    if ended:
        log.append(
            {"epoch": 1.0, "step": 4, "train_loss": 0.69, "train_runtime": 0.5, "train_samples_per_second": 32.0}
        )
    state = {"global_step": 4 if ended else 2, "max_steps": 4, "train_batch_size": 4, "log_history": log}
    place = folder / at
    place.mkdir(parents=True)
    (place / "trainer_state.json").write_text(json.dumps(state))
    if results:
        scores = {"eval_accuracy": 0.75, "eval_loss": 0.6, "eval_runtime": 0.01, "eval_samples": 8, "train_samples": 16}
        scores |= {"predict_accuracy": 0.5, "predict_loss": 0.8, "predict_runtime": 0.02, "predict_samples": 10}
        (folder / "all_results.json").write_text(json.dumps(scores))
        (folder / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"]}))
    return folder


def test_a_folder_of_a_trainer_shows_what_its_files_have(tmp_path: Path):
    folder = trainer_folder(tmp_path / "out")
    record, facts, why = read_trainer_folder(folder)

    # The results are of the kept model, and replace the evaluation of the log.
    assert record.summary.scores == {
        "validation": {"accuracy": 0.75, "loss": 0.6},
        "test": {"accuracy": 0.5, "loss": 0.8},
    }
    assert {split: data.num_rows for split, data in record.run.data.items() if data} == {
        "train": 16,
        "validation": 8,
        "test": 10,
    }
    assert (record.summary.num_steps, record.run.model.architecture) == (4, "BertForSequenceClassification")
    assert (record.summary.time.train_s, record.run.seed, record.run.batch.global_batch_size) == (None, None, None)
    assert ("0.5 s" in facts, "32 samples/s" in facts, why) == (True, True, None)


@pytest.mark.parametrize(
    ("layout", "scores", "is_finished"),
    [
        ({"results": False}, {"validation": {"accuracy": 0.25, "loss": 0.7}}, True),
        (
            {"results": False, "ended": False, "at": "checkpoint-2"},
            {"validation": {"accuracy": 0.25, "loss": 0.7}},
            False,
        ),
        ({"results": False, "at": "checkpoint-4"}, {"validation": {"accuracy": 0.25, "loss": 0.7}}, True),
    ],
)
def test_without_results_the_log_has_the_scores(layout: Any, scores: Any, is_finished: bool, tmp_path: Path):
    record, _, why = read_trainer_folder(trainer_folder(tmp_path / "out", **layout))
    assert (record.summary.scores, why is None) == (scores, is_finished)


def test_the_last_checkpoint_is_read_and_a_run_is_no_folder_of_a_trainer(tmp_path: Path):
    for step in ("4", "10", "9", "x"):
        trainer_folder(tmp_path / "out", results=False, at=f"checkpoint-{step}")
    assert state_file(tmp_path / "out") == tmp_path / "out/checkpoint-10/trainer_state.json"
    assert state_file(tmp_path) is None
    (tmp_path / "out/run.json").write_text("{}")
    assert state_file(tmp_path / "out") is None


def test_whether_it_is_the_same_experiment_cannot_be_told(tmp_path: Path):
    first, second = trainer_folder(tmp_path / "a"), trainer_folder(tmp_path / "b")
    ours = make_run(tmp_path / "ours", run_changes={"config.distil": {"teacher": "large"}})
    for pair in ((first, second), (first, ours)):
        found = read_runs(pair)
        sameness = compare(found.runs)
        assert (sameness.verdict, sameness.differ) == ("unknown", ())
        assert "a (4 steps" in found.warnings[0]
        comparison = make_comparison([str(folder) for folder in pair])
        (verdict,) = comparison.systems.verdicts
        assert (verdict.differs.refused, verdict.differs.elsewhere, len(verdict.differs.unknown)) == ((), False, 1)
        assert [score.measure for score in verdict.quality] == ["accuracy"]
        assert verdict.speed.change is None


def test_another_learning_rate_is_a_difference_that_can_be_allowed(tmp_path: Path):
    folders = [str(trainer_folder(tmp_path / "a")), str(trainer_folder(tmp_path / "b", 2e-3))]
    refused = make_comparison(folders)
    assert refused.is_refused
    assert any("--allow train" in note for note in refused.notes)
    assert not make_comparison(folders, allowed=frozenset({"train"})).is_refused


@pytest.mark.parametrize(
    ("changes", "allow"),
    [
        ({"config.train.learning_rate": 1e-4}, ("train",)),
        ({"batch.global_batch_size": 64, "config.batch.global": 64}, ("batch",)),
        ({"config.data.max_length": 7}, ("tokens",)),
        ({"config.train.learning_rate": 1e-4, "config.evaluate.best": "f1"}, ("train", "kept")),
        ({"config.train.learning_rate": 1e-4, "config.task.label_smoothing": 0.1}, ()),  # no word allows the second
    ],
)
def test_a_refusal_has_the_words_that_allow_it(changes: dict[str, Any], allow: tuple[str, ...], tmp_path: Path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", run_changes=changes)
    (verdict,) = make_comparison([str(tmp_path / "a"), str(tmp_path / "b")]).systems.verdicts
    assert verdict.differs.refused
    assert {*verdict.differs.allow} == {*allow}


def test_a_report_of_both_kinds_is_written(tmp_path: Path):
    folders = [make_run(tmp_path / "ours"), trainer_folder(tmp_path / "out")]
    report = make(folders, tmp_path / "report", baseline=trainer_folder(tmp_path / "base"))
    assert [run.name for run in report.runs] == ["base", "ours", "out"]
    assert (tmp_path / "report" / "index.html").is_file()
    assert len(report.warnings) == 1
    with raises_code("run.not_found", "step 2 of 4"):
        read_runs([trainer_folder(tmp_path / "cut", results=False, ended=False)])


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"global_step": "x"}', '{"log_history": [{"eval_runtime": "x"}]}', '{"log_history": 5}',
     '{"log_history": [{"eval_loss": 1, "eval_runtime": 1%s}]}' % ("0" * 400)],
)  # fmt: skip
def test_damaged_files_are_named(content: str, tmp_path: Path):
    (tmp_path / "trainer_state.json").write_text(content)
    with raises_code("run.damaged", "trainer_state.json"):
        read_trainer_folder(tmp_path)


@pytest.mark.parametrize("config", ['{"architectures": 5}', '{"architectures": {"a": 1}}', '{"architectures": []}'])
def test_a_model_of_unknown_class_and_size_has_none(config: str, tmp_path: Path):
    folder = trainer_folder(tmp_path / "out")
    (folder / "config.json").write_text(config)
    (folder / "model-2.safetensors").write_text("weights")
    (folder / "model-1.safetensors").symlink_to(tmp_path / "deleted")
    record, *_ = read_trainer_folder(folder)
    assert (record.run.model.architecture, record.run.model.size_bytes) == (None, None)


def test_folders_of_one_name_have_the_names_of_the_report(tmp_path: Path):
    found = read_runs([trainer_folder(tmp_path / name / "out") for name in ("a", "b")])
    assert all(f"{run.name} (4 steps" in found.warnings[0] for run in found.runs)
    assert {run.name for run in found.runs} == {"a/out", "b/out"}


def test_a_loss_that_is_not_a_number_is_unknown(tmp_path: Path):
    folder = trainer_folder(tmp_path / "out", results=False)
    results = {"eval_loss": math.nan, "eval_accuracy": 0.5, "eval_runtime": 1.0}
    (folder / "eval_results.json").write_text(json.dumps(results))
    assert read_trainer_folder(folder)[0].summary.scores == {"validation": {"accuracy": 0.5, "loss": None}}


def test_scores_of_answers_are_per_cent(tmp_path: Path):
    folder = trainer_folder(tmp_path / "out", results=False)
    (folder / "eval_results.json").write_text('{"eval_exact_match": 80.0, "eval_f1": 85.0, "eval_runtime": 1.0}')
    ours = make_run(tmp_path / "ours", task="qa", summary_changes={"scores": {"validation": {"f1": 85.25}}})
    for pair in ((folder, ours), (ours, folder)):
        (verdict,) = make_comparison([str(path) for path in pair]).systems.verdicts
        assert verdict.task == "qa"
        assert "0.25 points" in verdict.sentence


def test_other_runs_of_a_comparison_are_compared_as_without_the_folder(tmp_path: Path):
    folder, other = trainer_folder(tmp_path / "out"), trainer_folder(tmp_path / "other", 2e-3)
    ours = make_run(tmp_path / "ours")
    changes: list[dict[str, Any]] = [
        {"seed": 43, "model.init_fingerprint": "other"},
        {"config.train.learning_rate": 1.0},
        {"batch.global_batch_size": 64},
    ]
    for number, change in enumerate(changes):
        second = make_run(tmp_path / f"second-{number}", run_changes=change)
        alone = compare(read_runs([ours, second]).runs)
        found = compare(read_runs([folder, ours, second]).runs)
        assert found.differ == alone.differ
        assert found.verdict == ("different" if alone.verdict == "different" else "unknown")
    found = compare(read_runs([folder, other, ours]).runs)
    assert [difference.key for difference in found.differ] == ["train_settings"]
    assert configurations_table(make([ours, folder], None).systems).lines[1][1].text == "n/a"


def test_splits_have_the_names_of_records():
    metrics = {
        "eval_loss": 1,
        "eval_runtime": 2.0,
        "eval_mnli-mm_loss": 3,
        "eval_mnli-mm_runtime": 4,
        "test_runtime": 5,
    }
    found = {split: (scores, seconds) for split, scores, seconds in split_scores(metrics)}
    assert found["mnli-mm"] == ({"loss": 3.0}, 4.0)
    assert (found["validation"], found["test"]) == (({"loss": 1.0}, 2.0), ({}, 5.0))
