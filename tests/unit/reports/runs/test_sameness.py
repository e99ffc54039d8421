"""Whether runs trained the same thing, and which settings differ."""

from pathlib import Path
from typing import Any

import pytest
from make_run import make_run

from paratune.reports import Report, make
from paratune.reports.comparison import make_comparison
from paratune.reports.run import run_document
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import all_differences, compare, configuration_key, differing_settings
from paratune.reports.systems.tables import main_table


def _runs(*folders):
    return read_runs(folders).runs


def test_runs_that_differ_in_strategy_alone_are_the_same_experiment(tmp_path):
    runs = _runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", kind="ddp", world_size=2))
    assert compare(runs).verdict == "same"
    assert [one.key for one in all_differences(runs)] == ["strategy.kind"]


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("batch.global_batch_size", 16, "global_batch_size"),
        ("data.train.fingerprint", "cd" * 32, "train_data"),
        ("data.validation", None, "validation_data"),
        ("data.test.fingerprint", "cd" * 32, "test_data"),
        ("model.init_fingerprint", "cd" * 32, "initial_weights"),
        ("plan.num_steps", 100, "plan"),
        ("own_code", {"task.loss": {"kind": "m:f", "options": {}, "sha256": "ab"}}, "own_code"),
        ("config.distil", {"teacher": "runs/t", "weight": 0.5}, "distillation"),
        *(("config.distil", 5, "distillation"), ("config.model.adapter", 5, "adapter")),
        ("config.train.schedule", "cosine", "train_settings"),
        ("config.data.max_length", 64, "tokens"),
        ("data.train.num_tokens", 71_999, "tokens"),
        ("config.model.overrides", {"hidden_dropout_prob": 0.0}, "model_overrides"),
        ("config.model.adapter", {"kind": "lora", "rank": 8, "save": "merged"}, "adapter"),
        ("config.model.quantize_base", "nf4", "quantized"),
        ("config.evaluate.best", "f1", "kept_model"),
        ("task.labels", ["positive", "negative"], "task"),
        ("config.strategy.param_dtype", "bf16", "weights"),
    ],
)
def test_runs_that_trained_different_things_are_marked(tmp_path, path, value, key):
    runs = _runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes={path: value}))
    sameness = compare(runs)
    assert sameness.verdict == "different"
    assert [one.key for one in sameness.differ] == [key]
    assert "Not all of these runs are the same experiment" in sameness.sentence


@pytest.mark.parametrize(("key", "off", "on"), [("class_weights", None, "balanced"), ("focal_gamma", None, 2.0)])
def test_options_of_the_loss_are_part_of_the_experiment(tmp_path, key, off, on):
    task = {"kind": "classification", "labels": ["a", "b"]}
    old, same, other = (
        make_run(tmp_path / name, run_changes={"config.task": {**task, **option}})
        for name, option in {"old": {}, "same": {key: off, "label_smoothing": 0.0}, "other": {key: on}}.items()
    )
    assert compare(_runs(old, same)).verdict == "same"
    assert [difference.key for difference in compare(_runs(old, other)).differ] == ["task_options"]


@pytest.mark.parametrize(
    ("best", "verdict"),
    [("accuracy", "same"), ("own_gap_error", "different"), ("own_gap", "same"), ("gap_error", "same")],
)
def test_own_code_that_changes_no_weights_changes_no_experiment(tmp_path, best, verdict):
    code = {key: {"sha256": "ab"} for key in ("evaluate.metrics.gap_error", "run.callbacks[0]", "data.train: a:b")}
    changes = {"config.evaluate.best": best}
    with_code, without = (
        make_run(tmp_path / name, run_changes={**changes, "own_code": own}) for name, own in (("a", code), ("b", {}))
    )
    assert compare(_runs(with_code, without)).verdict == verdict


def test_how_an_adapter_is_saved_changes_no_experiment(tmp_path):
    forms = ({"kind": "lora", "rank": 8, "save": save} for save in ("merged", "adapter"))
    runs = [make_run(tmp_path / form["save"], run_changes={"config.model.adapter": form}) for form in forms]
    assert compare(_runs(*runs)).verdict == "same"


def test_a_fitted_baseline_is_one_difference(tmp_path):
    fitted = {"config.baseline": {"kind": "tfidf"}, "model.init_fingerprint": None, "batch.global_batch_size": None}
    fitted |= {"plan": {}}
    model, baseline = make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=fitted)
    sameness = compare(_runs(model, baseline))
    assert sameness.verdict == "different"
    assert [one.key for one in sameness.differ] == ["initial_weights"]
    # Models beside it are compared as without it.
    other = make_run(tmp_path / "c", run_changes={"config.train.schedule": "cosine"})
    three = compare(_runs(model, baseline, other))
    assert [one.key for one in three.differ] == ["initial_weights", "train_settings"]
    # Two of them with the same options are the same experiment.
    assert compare(_runs(baseline, make_run(tmp_path / "d", run_changes=fitted))).verdict == "same"


def test_weights_in_fp32_need_not_be_named(tmp_path):
    change = {"config.strategy.param_dtype": "fp32"}
    assert compare(_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=change))).verdict == "same"


def test_settings_that_only_save_memory_do_not_change_the_experiment(tmp_path):
    change = {"config.train.activation_checkpointing": 2}
    assert compare(_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=change))).verdict == "same"


@pytest.mark.parametrize(
    "change", [{"every": "steps", "steps": 20}, {"steps": 20}, {"patience": 3}, {"min_delta": 0.01}, {"best": None}]
)
def test_settings_that_decide_the_kept_model_are_compared(tmp_path, change):
    settings = {"every": "epoch", "steps": None, "best": "accuracy", "patience": None, "min_delta": 0.0}
    runs = _runs(
        make_run(tmp_path / "a", run_changes={"config.evaluate": settings}),
        make_run(tmp_path / "b", run_changes={"config.evaluate": settings | change}),
    )
    sameness = compare(runs)
    assert (sameness.verdict, [one.key for one in sameness.differ]) == ("different", ["kept_model"])


def test_evaluation_interval_is_not_compared_without_a_choice_by_it(tmp_path):
    settings = {"every": "epoch", "steps": None, "best": None, "patience": None, "min_delta": 0.0}
    runs = _runs(
        make_run(tmp_path / "a", run_changes={"config.evaluate": settings}),
        make_run(tmp_path / "b", run_changes={"config.evaluate": settings | {"every": "steps", "steps": 20}}),
    )
    assert compare(runs).verdict == "same"


@pytest.mark.parametrize(
    "changes",
    [
        {"config.train.epochs": None, "config.train.max_steps": 225},
        {"config.data.columns": {"text": "sentence", "label": "label"}, "config.data.train": "elsewhere.csv"},
        {"config.precision": "bf16", "batch.micro_batch_size": 8, "batch.grad_accum_steps": 4},
        {"plan.batches_per_epoch": 300, "plan.num_batches": 900},  # 75 and 225 steps, in 4 micro-batches each
    ],
)
def test_execution_settings_do_not_change_the_experiment(tmp_path, changes):
    assert compare(_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=changes))).verdict == "same"


def test_a_difference_names_only_the_settings_that_differ(tmp_path):
    runs = _runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes={"config.train.learning_rate": 1e-4}))
    assert compare(runs).differ[0].values == {"a": {"learning_rate": 5e-5}, "b": {"learning_rate": 1e-4}}


@pytest.mark.parametrize(
    "changes",
    [
        {"config.train.learning_rate": 1e-4, "config.train.schedule": "cosine"},
        {"config.batch.global": 64, "batch.global_batch_size": 64, "plan.num_steps": 100, "plan.num_epochs": None},
        {"config.model.name": "bert", "model.init_fingerprint": "x", "seed": 43},
        {"config.train.learning_rate": 1e-4, "model.init_fingerprint": "x", "seed": 43, "config.run.seed": 43},
        {"config.data.max_length": 64, "data.train.fingerprint": "x"},
    ],
)
def test_a_report_and_a_comparison_name_the_same_differences(tmp_path, changes):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=changes)]
    comparison, report = make_comparison([*map(str, runs)]), make(runs, None)
    (verdict,) = comparison.systems.verdicts
    for text in ("; ".join(verdict.differs.refused), verdict.sentence.partition("differ in ")[2]):
        assert report.sameness.sentence.partition("differ in ")[2].rstrip(".") == text.rstrip(".")
    table = main_table(report.systems, differing_settings(report.runs))
    rows = [f"{key} (a {a}; b {b})" for key, a, b in (row[:3] for row in table.rows) if "." in key]
    said = [note for note in comparison.notes if note.startswith("Settings that differ")]
    assert said == ([f"Settings that differ: {', '.join(rows)}."] if rows else [])


def test_a_difference_is_in_words_with_its_settings_or_numbers(tmp_path):
    changes = {"config.train.learning_rate": 1e-4, "batch.global_batch_size": 64, "config.data.max_length": 64}
    runs = _runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=changes))
    assert [one.words for one in compare(runs).differ] == [
        "the tokenization (max_length)", "the global batch size (32 → 64)",
        "the optimization (section train: learning_rate)",
    ]  # fmt: skip


@pytest.mark.parametrize(("fingerprint", "verdict"), [("y", "different"), (None, "unknown"), ("x", "other_seeds")])
def test_weights_of_runs_of_one_seed_are_compared_beside_other_seeds(tmp_path, fingerprint, verdict):
    weights = {"a": (1, "x"), "b": (1, fingerprint), "c": (2, "z")}
    runs = [
        make_run(tmp_path / name, seed=seed, run_changes={"model.init_fingerprint": text})
        for name, (seed, text) in weights.items()
    ]
    assert compare(_runs(*runs)).verdict == verdict


def test_runs_that_differ_in_seed_alone_are_seeds_of_one_experiment(tmp_path):
    runs = _runs(*(make_run(tmp_path / f"s{seed}", seed=seed) for seed in (1, 2, 3)))
    assert compare(runs).verdict == "other_seeds"
    assert len(set(map(configuration_key, runs))) == 1


def test_students_of_teachers_of_their_own_seeds_are_one_configuration(tmp_path):
    def student(name: str, seed: int, teacher: str) -> Path:
        distil = {"config.distil": {"teacher": [teacher], "weight": 0.5}}
        return make_run(tmp_path / name, seed=seed, run_changes=distil)

    runs = [student(f"s{seed}", seed, f"runs/layers12_seed-{seed}") for seed in (1, 2)]
    one, two, other = map(configuration_key, _runs(*runs, student("other", 1, "runs/layers6_seed-1")))
    assert one == two != other


def test_second_trainings_of_models_of_their_own_seeds_are_one_configuration(tmp_path):
    def second(name: str, seed: int, model: str) -> Path:
        changes = {"config.model.name": model, "config.run.folder": "runs/m/runs"}
        return make_run(tmp_path / name, seed=seed, run_changes=changes)

    runs = [second(f"s{seed}", seed, f"runs/m/runs/rte_seed-{seed}_low") for seed in (1, 2)]
    others = [second("task", 1, "runs/m/runs/mrpc_seed-1_low")]
    others += [second(f"hub{seed}", seed, f"google/multiberts-seed_{seed}") for seed in (1, 2)]
    one, two, *apart = map(configuration_key, _runs(*runs, *others))
    assert one == two
    assert len({one, *apart}) == 4


def test_runs_of_other_world_size_are_no_seed_group(tmp_path):
    runs = _runs(
        make_run(tmp_path / "a", kind="ddp", seed=1), make_run(tmp_path / "b", kind="ddp", seed=2, world_size=2)
    )
    assert len(set(map(configuration_key, runs))) == 2


def test_unrecorded_fields_do_not_count_as_equal(tmp_path):
    changes = {"model.init_fingerprint": None}
    sameness = compare(_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=changes)))
    assert sameness.verdict == "unknown"
    assert "init_fingerprint" in sameness.sentence


def test_differences_have_the_values_of_each_run(tmp_path):
    one, *_ = all_differences(_runs(make_run(tmp_path / "a"), make_run(tmp_path / "b", kind="ddp", world_size=2)))
    assert one.values == {"a": "single", "b": "ddp"}


def test_teachers_are_compared_by_weights_and_not_by_folder(tmp_path):
    runs = [
        make_run(
            tmp_path / name,
            run_changes={
                "config.distil": {"teacher": name, "weight": 0.5},
                "teachers": [{"name": name, "inputs_sha256": sha}],
            },
        )
        for name, sha in {"a": "1", "b": "1", "c": "2"}.items()
    ]
    assert compare(_runs(*runs[:2])).verdict == "same"
    assert [difference.key for difference in compare(_runs(runs[0], runs[2])).differ] == ["distillation"]


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
    texts = {row.measure.key: [cell.text for cell in row.cells] for row in found.rows if row.shown}
    assert texts["num_threads"] == ["2", "1"]
    assert texts["num_usable_cores"] == ["2.00", "1.50"]
    assert texts["other_load"] == ["0.0", "25.0"]  # 75% busy, of which 50% by the run itself
    differing = {entry.key: dict(entry.values) for entry in found.differences}
    assert differing == {
        "machine.num_threads": {"run0": "2", "run1": "1"},
        "machine.num_usable_cores": {"run0": "2", "run1": "1.5"},
        "machine.other_load": {"run0": "0.0%", "run1": "25.0%"},
    }
    assert found.sameness.verdict == "same"
    (notice,) = run_document(found).notices
    assert "Load by other programs" in notice.text


def test_equal_and_unknown_values_do_not_differ(tmp_path: Path) -> None:
    assert report_of(tmp_path, (2, 2.0, 0.5), (2, 2.0, 0.54)).differences == ()  # 4 points, less than 5
    unknown = report_of(tmp_path / "other", (2, 2.0, 0.5), (None, 2.0, 0.5))
    assert unknown.differences == ()
    assert [cell.text for row in unknown.rows if row.measure.key == "num_threads" for cell in row.cells] == ["2", "n/a"]
