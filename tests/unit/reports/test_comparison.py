"""`paratune compare`: which runs are grouped, what is compared with which baseline, and what is refused."""

import io
from pathlib import Path

import pytest
from make_matrix import SEED, STRATEGY, Made
from make_matrix import make_matrix as make_of
from make_run import make_certificate, make_run
from raised import raises_code
from rich.console import Console

from paratune.records.sweep import Axis, CellRecord, SweepRecord, write_sweep
from paratune.reports.comparison import make_comparison
from paratune.reports.systems.building import findings
from paratune.reports.terminal import terminal_comparison
from paratune.verdicts import Margin

PRECISION = Axis("precision", "precision", {"fp32": "fp32", "bf16": "bf16"}, keys=("precision",))


def make_runs(folder, kinds=("single", "ddp"), seeds=(1, 2, 3)):
    return [str(make_run(folder / f"{kind}_seed{seed}", kind=kind, seed=seed)) for kind in kinds for seed in seeds]


def groups_of(words, baseline=None):
    systems = make_comparison(words, baseline=baseline).systems
    return {member.label: [run.name for run in member.runs] for member in systems.measured}, systems.baseline.label


def test_runs_are_grouped_by_configuration(tmp_path):
    groups, baseline = groups_of(make_runs(tmp_path))
    assert groups == {
        "single": ["single_seed1", "single_seed2", "single_seed3"],
        "ddp": ["ddp_seed1", "ddp_seed2", "ddp_seed3"],
    }
    assert baseline == "single"


def test_names_with_a_common_prefix_get_the_differing_part(tmp_path):
    one = [str(make_run(tmp_path / f"run-{seed}", seed=seed)) for seed in (1, 2)]
    two = [str(make_run(tmp_path / f"run-{seed}", seed=seed, kind="ddp")) for seed in (3, 4)]
    assert [*groups_of(one + two)[0]] == ["run-1", "run-3"]


def test_only_the_seed_leaves_a_name(tmp_path):
    words = [str(make_run(tmp_path / f"bert-s-seed{seed}", seed=seed)) for seed in (1, 2)]
    words.append(str(make_run(tmp_path / "other", kind="ddp")))
    assert [*groups_of(words)[0]] == ["bert-s", "other"]


def test_no_group_is_lost_if_its_label_is_the_name_of_a_run(tmp_path):
    kinds = {"x_seed1": "single", "x_seed2": "single", "x_seed3": "ddp", "x_seed4": "ddp"}
    words = [str(make_run(tmp_path / name, kind=kind, seed=int(name[-1]))) for name, kind in kinds.items()]
    for seed in (1, 2):
        changes = {"config.precision": "bf16"}
        words.append(str(make_run(tmp_path / f"x_seed1-{seed}", seed=seed, run_changes=changes)))
    assert [len(runs) for runs in groups_of(words)[0].values()] == [2, 2, 2]


def test_patterns_name_runs(tmp_path):
    make_runs(tmp_path)
    groups, baseline = groups_of([f"{tmp_path}/single*", f"{tmp_path}/ddp_seed[13]"])
    assert {label: len(runs) for label, runs in groups.items()} == {"single": 3, "ddp": 2}
    assert baseline == "single"
    # A run that is named twice counts once.
    assert groups_of([f"{tmp_path}/*", f"{tmp_path}/single_seed1"])[0].keys() == {"single", "ddp"}


def test_a_baseline_is_a_group_a_run_or_its_folder(tmp_path):
    words = make_runs(tmp_path)
    for name in ("ddp", "ddp_seed2", f"{tmp_path}/ddp_seed2"):
        assert groups_of(words, name)[1] == "ddp"
    with raises_code("run.not_found", "--baseline", "dpp"):
        make_comparison(words, baseline="dpp")


def test_other_machines_are_other_configurations(tmp_path):
    node = {"hostname": "x", "cpu_model": "Another", "gpus": []}
    words = make_runs(tmp_path, kinds=("single",), seeds=(1, 2))
    words += [str(make_run(tmp_path / f"there_{seed}", seed=seed, run_changes={"hardware": [node]})) for seed in (1, 2)]
    assert [*groups_of(words)[0]] == ["single", "there"]


def test_hosts_and_devices_do_not_separate_configurations(tmp_path):
    def changes(seed):
        # The kernel's own share of the memory is not the same at each start; a queue gives what GPU is free.
        node = {"hostname": f"node{seed}", "cpu_model": "A", "ram_bytes": 64 * 2**30 - 4096 * seed, "gpus": []}
        variables = {"CUDA_VISIBLE_DEVICES": str(seed), "NCCL_NTHREADS": "4"}
        return {"hardware": [node], "environment": variables}

    words = [str(make_run(tmp_path / f"run{seed}", seed=seed, run_changes=changes(seed))) for seed in (1, 2)]
    other = changes(3) | {"environment": {"NCCL_NTHREADS": "8"}}
    words.append(str(make_run(tmp_path / "run3", seed=3, run_changes=other)))
    assert [len(runs) for runs in groups_of(words)[0].values()] == [2, 1]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ([], ("cli.required",)),
        (["{0}/nothing*"], ("run.not_found",)),
    ],
)
def test_words_that_name_no_runs_are_refused(tmp_path, words, refused):
    make_runs(tmp_path)
    with raises_code(*refused):
        make_comparison([word.format(tmp_path) for word in words])


def test_one_configuration_has_nothing_to_compare_with(tmp_path):
    with raises_code("report.nothing_to_compare", "3"):
        make_comparison(make_runs(tmp_path, kinds=("single",)))


def test_error_names_unfinished_runs_if_nothing_can_be_compared(tmp_path):
    words = [str(make_run(tmp_path / "a")), str(make_run(tmp_path / "cut", kind="ddp", num_steps=100, finished=False))]
    with raises_code("report.nothing_to_compare", "step 50", "100"):
        make_comparison(words)


def test_error_names_a_folder_that_is_not_a_run(tmp_path):
    words = make_runs(tmp_path)
    with raises_code("run.not_found", "nowhere"):
        make_comparison([*words, str(tmp_path / "nowhere")])


def test_unfinished_runs_and_certificates_are_set_aside(tmp_path):
    words = make_runs(tmp_path)
    make_run(tmp_path / "ddp_seed4", kind="ddp", seed=4, finished=False)
    make_certificate(tmp_path / "c.certificate", tmp_path / "single_seed1")
    found = make_comparison([*words, str(tmp_path / "ddp_seed4"), str(tmp_path / "c.certificate")])
    assert [run.name for run in found.unfinished] == ["ddp_seed4"]
    assert len(found.certificates) == 1


def cell(name, **values):
    return CellRecord(name, values, 1, "classification", "accuracy", ("accuracy",), "0" * 64, "finished")


def make_matrix(folder, *, states=None, **changes):
    """Write a matrix of two strategies, two batches and two seeds, with its runs."""
    folder.mkdir()
    axes = (
        Axis("strategy.kind", "strategy", {"single": "single", "ddp": "DDP"}, keys=("strategy.kind",)),
        Axis("batch.global", "batch", {"32": "32", "64": "64"}, keys=("batch.global",)),
        Axis("run.seed", "seed", {"1": "1", "2": "2"}, is_seed=True, keys=("run.seed",)),
    )
    cells = []
    for kind in ("single", "ddp"):
        for batch in ("32", "64"):
            for seed in ("1", "2"):
                name = f"{kind}-{batch}-{seed}"
                cells.append(cell(name, strategy=kind, batch=batch, seed=seed))
                changed = {"batch.global_batch_size": int(batch), "config.batch.global": int(batch)}
                make_run(folder / "runs" / name, kind=kind, seed=int(seed), run_changes=changed)
    write_sweep(folder, SweepRecord("m", "2026", "m.yaml", (), axes, (), tuple(cells), **changes))
    return folder


def baselines_of(*words, **options):
    found = make_comparison([str(word) for word in words], **options)
    return {verdict.label: verdict.baseline for verdict in found.systems.verdicts}, found


def test_axes_of_a_matrix_are_compared_within_the_others(tmp_path):
    baselines, _ = baselines_of(make_matrix(tmp_path / "m"), by=["strategy"])
    assert baselines == {f"DDP, batch {batch}": f"single, batch {batch}" for batch in (32, 64)}
    baselines, found = baselines_of(tmp_path / "m", by=["batch"], baseline="64")
    assert baselines == {f"{kind}, batch 32": f"{kind}, batch 64" for kind in ("single", "DDP")}
    assert not any(verdict.differs.refused for verdict in found.systems.verdicts)
    # The keys of axes, and the values with the axis, as reports show them.
    assert baselines_of(tmp_path / "m", by=["batch.global"], baseline="batch 64")[0] == baselines


def test_a_matrix_by_itself_compares_all_that_it_chooses_among(tmp_path):
    baselines, _ = baselines_of(make_matrix(tmp_path / "m", baseline={"strategy": "ddp", "batch": "32"}))
    others = ("single, batch 32", "single, batch 64", "DDP, batch 64")
    assert baselines == dict.fromkeys(others, "DDP, batch 32")
    named, _ = baselines_of(tmp_path / "m", baseline="single, batch 64")
    assert {*named.values()} == {"single, batch 64"}
    # Printed labels also name the values of axes that are not compared.
    named, _ = baselines_of(tmp_path / "m", by=["strategy"], baseline="DDP, batch 64")
    assert named == {f"single, batch {batch}": f"DDP, batch {batch}" for batch in (32, 64)}


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"by": ["stratgy"]}, ("cli.invalid_value", "--by", "stratgy")),
        ({"by": [""]}, ("cli.invalid_value", "--by", "''", "strategy, batch")),
        ({"by": ["strategy,"]}, ("cli.invalid_value", "--by", "''")),
        ({"baseline": ""}, ("run.not_found", "--baseline", "'single', 'DDP'")),
        (
            {"by": ["strategy"], "baseline": "zero1"},
            ("run.not_found", "--baseline", "zero1", "'single', 'DDP', 'single, b"),
        ),
    ],
)
def test_axes_and_values_that_are_not_there_are_named(tmp_path, options, refused):
    with raises_code(*refused):
        baselines_of(make_matrix(tmp_path / "m"), **options)


def test_a_margin_of_a_score_that_no_run_has_is_refused_with_the_scores(tmp_path):
    with raises_code("cli.invalid_value", "speed, accuracy, ", option="--margin", value="qwk"):
        make_comparison(make_runs(tmp_path), margins={"qwk": Margin(0.01)})


def test_a_matrix_is_compared_by_itself(tmp_path):
    words = make_runs(tmp_path)
    with raises_code("cli.conflict"):
        baselines_of(make_matrix(tmp_path / "m"), words[0])
    with raises_code("cli.no_effect", "--by"):
        baselines_of(*words, by=["strategy"])


def test_a_run_that_died_before_its_record_is_left_out(tmp_path):
    folder = make_matrix(tmp_path / "m")
    (folder / "runs" / "ddp-64-2" / "run.json").unlink()
    baselines, found = baselines_of(folder, by=["strategy"])
    assert len(found.systems.runs) == 7
    assert len(baselines) == 2


def test_a_matrix_without_started_runs_raises_an_error(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    axes = (Axis("strategy.kind", "strategy", {"single": "single"}),)
    write_sweep(folder, SweepRecord("m", "2026", "m.yaml", (), axes, (), (cell("a", strategy="single"),)))
    with raises_code("report.nothing_to_compare"):
        baselines_of(folder)


def test_a_matrix_of_damaged_records_has_their_reasons(tmp_path):
    folder = make_matrix(tmp_path / "m")
    for summary in folder.glob("runs/*/summary.json"):
        summary.write_text("{")
    with raises_code("report.nothing_to_compare", "summary.json is damaged"):
        baselines_of(folder)


def test_certificates_beside_the_runs_of_a_matrix_are_found(tmp_path):
    folder = make_matrix(tmp_path / "m")
    make_certificate(folder / "runs" / "ddp-32-1.certificate", folder / "runs" / "ddp-32-1")
    _, found = baselines_of(folder)
    assert [certificate.verdict for certificate in found.certificates] == ["holds"]


def make_run_of(values) -> Made:
    # ZeRO-3 needs twice the time and bf16 four fifths; the seeds differ by up to 1%.
    factors = {"zero3": 2.0, "bf16": 0.8, "seed-2": 1.01, "seed-3": 0.99}
    step_ms = 80.0
    for value in values.values():
        step_ms *= factors.get(value, 1.0)
    run = {"config.precision": values.get("precision", "fp32")}
    return Made(kind=values["strategy"], step_ms=step_ms, run=run)


def test_a_matrix_with_two_axes_has_the_main_effect_of_each(tmp_path: Path):
    make_of(tmp_path, (STRATEGY, PRECISION, SEED), make_run_of)
    comparison = make_comparison([str(tmp_path)])
    (family,) = comparison.effects
    speeds = {effect.level: effect for effect in family.effects if effect.comparison.measure == "speed"}
    changes = {level: effect.comparison.change for level, effect in speeds.items()}
    assert changes == {"zero3": pytest.approx(1 / 2 - 1), "bf16": pytest.approx(1 / 0.8 - 1)}
    assert [effect.num_combinations for effect in speeds.values()] == [2, 2]
    assert [effect["level"] for effect in comparison.as_dict()["effects"]] == [
        effect.level for effect in family.effects
    ]
    output = io.StringIO()
    Console(file=output, width=120).print(terminal_comparison(comparison))
    lines = [line.strip() for line in output.getvalue().splitlines()]
    assert any(line.startswith("precision bf16 ") and "fp32" in line and "25.0%" in line for line in lines)


@pytest.mark.parametrize("options", [{}, {"by": ["strategy"]}])
def test_one_compared_axis_has_no_main_effects(options, tmp_path: Path):
    axes = (STRATEGY, PRECISION, SEED) if options else (STRATEGY, SEED)
    make_of(tmp_path, axes, make_run_of)
    assert make_comparison([str(tmp_path)], **options).effects == ()


def test_different_kinds_of_memory_are_not_compared(tmp_path: Path):
    kinds = {"ddp": "rss", "zero3": "cuda_allocated"}

    def made(values) -> Made:
        return Made(kind=values["strategy"], summary={"memory.kind": kinds[values["strategy"]]})

    make_of(tmp_path, (STRATEGY, SEED), made)
    comparison = make_comparison([str(tmp_path)])
    (finding,) = findings(comparison.systems)["peak_memory_largest_bytes"].values()
    assert (finding.change, finding.code) == (None, "different_memory_kind")
    assert finding.baseline is not None


def test_different_threads_are_a_note(tmp_path: Path):
    make_of(
        tmp_path,
        (STRATEGY, SEED),
        lambda values: Made(run={"num_threads": 2 if values["strategy"] == "ddp" else 1}),
    )
    comparison = make_comparison([str(tmp_path)])
    assert any("ddp 2; zero3 1" in note for note in comparison.notes)


def test_a_failed_baseline_is_not_replaced_by_one_of_another_model(tmp_path: Path):
    models = Axis("model.name", "model", {"small": "small", "large": "large"}, keys=("model.name",))
    kinds = Axis("strategy", "strategy", {kind: kind for kind in ("ddp", "zero2", "zero3")}, keys=("strategy.kind",))
    failed = {f"large_ddp_{seed}": ("failed", "out of memory") for seed in SEED.values}

    def made(values) -> Made:
        return Made(kind=values["strategy"], run={"config.model.name": values["model"]})

    make_of(tmp_path, (models, kinds, SEED), made, states=failed, select_per=("model",))
    baselines, _ = baselines_of(tmp_path)
    assert baselines == {
        "small, zero2": "small, ddp",
        "small, zero3": "small, ddp",
        "large, zero3": "large, zero2",
    }
