"""Tables of a matrix, chosen by what its axes are of; expected values are written out."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import NPROC, SEED, STRATEGY, Made, make_matrix
from make_run import GIB

from paratune.records.sweep import Axis, CellRecord, read_sweep
from paratune.reports.matrix import make_sweep, matrix_sections
from paratune.reports.systems.judging import judged
from paratune.reports.systems.model import Systems, noise_amount, read_cell_runs
from paratune.reports.systems.tables import configurations_table, machine_tables, resources_table, scaling_tables
from paratune.reports.tables.table import Table, TableCell

PRECISION = Axis("precision", "precision", {"fp32": "fp32", "bf16": "bf16"}, keys=("precision",))
WORKERS = Axis("data.workers", "workers", {"workers-0": "0", "workers-2": "2"}, keys=("data.workers",))
SOCKETS = Axis("env.NCCL_SOCKET_NTHREADS", "NCCL_SOCKET_NTHREADS", {"one": "1", "four": "4"},
               keys=("env.NCCL_SOCKET_NTHREADS",))  # fmt: skip


def systems_of(folder: Path) -> Systems:
    return Systems(read_sweep(folder), read_cell_runs(folder, read_sweep(folder)))


def column(table: Table, name: str) -> list[TableCell]:
    """Return the cells of a column by its key."""
    at = [each.name for each in table.columns].index(name)
    return [line[at] for line in table.lines]


def texts(table: Table, name: str) -> list[str]:
    return [entry.text for entry in column(table, name)]


def size_of(values: Mapping[str, str]) -> int:
    return int(values["nproc"].removeprefix("nproc-"))


def test_figures_over_runs_are_means_and_rates_are_totals_over_totals(tmp_path: Path):
    # Two seeds, 220 measured steps of 32 samples each: at 80 and at 120 ms a step 400 and 266.67 samples/s; together
    # 2 x 220 x 32 samples in 220 x 0.2 s: 320 samples/s, not the mean of 333.33. Times 18 and 27 s: 22.5 +- 6.364.
    steps = {"seed-1": 80.0, "seed-2": 120.0}
    make_matrix(tmp_path / "m", (SEED,), lambda values: Made(step_ms=steps[values["seed"]]))
    table = configurations_table(systems_of(tmp_path / "m"))
    (rate,), (time,) = column(table, "samples_per_s"), column(table, "train_s")
    assert rate.value == pytest.approx(320.0)
    assert (time.value, time.deviation) == (pytest.approx(22.5), pytest.approx(40.5**0.5))
    assert time.text == "22.5 ± 6.4"
    # Three epochs: 6 and 9 s each.
    assert texts(table, "epoch_s") == ["7.50 ± 2.12"]
    assert time.runs == ("seed-1", "seed-2")
    assert texts(table, "num_runs") == ["2"]


def test_constant_total_batch(tmp_path: Path):
    # 64 samples a step in 160, 100 and 80 ms: speed-up 1, 1.6, 2; efficiency 100, 80 and 50%.
    step_ms = {1: 160.0, 2: 100.0, 4: 80.0}

    def tell(values: Mapping[str, str]) -> Made:
        size = size_of(values)
        memory = {"memory.largest_bytes": 4 * GIB // size, "memory.sum_bytes": 4 * GIB}
        return Made(step_ms=step_ms[size], world_size=size, batch=64, summary=memory)

    make_matrix(tmp_path / "m", (NPROC,), tell)
    (table,) = scaling_tables(systems_of(tmp_path / "m"))
    assert table.title == "Constant total batch"
    assert texts(table, "num_devices") == ["1", "2", "4"]
    assert texts(table, "speed_up") == ["1.00", "1.60", "2.00"]
    assert texts(table, "scaling_efficiency") == ["100.0", "80.0", "50.0"]
    assert texts(table, "peak_memory_largest_bytes") == ["4.00", "2.00", "1.00"]
    assert texts(table, "peak_memory_sum_bytes") == ["4.00", "4.00", "4.00"]
    assert column(table, "speed_up")[1].runs == ("nproc-2", "nproc-1")
    assert not any(entry.marks for line in table.lines for entry in line)


def test_constant_batch_per_device_marks_that_other_things_were_trained(tmp_path: Path):
    # 16 a device: 16, 32 and 64 samples a step in 100 ms: speed-up 1, 2, 4 at an efficiency of 100%.
    def tell(values: Mapping[str, str]) -> Made:
        size = size_of(values)
        batch = {"config.batch": {"per_device": 16}, "plan.num_steps": 225 // size}
        return Made(step_ms=100.0, world_size=size, batch=16 * size, run=batch)

    make_matrix(tmp_path / "m", (NPROC,), tell)
    (table,) = scaling_tables(systems_of(tmp_path / "m"))
    assert table.title == "Constant batch per device"
    assert texts(table, "speed_up") == ["1.00", "2.00", "4.00"]
    assert texts(table, "scaling_efficiency") == ["100.0"] * 3
    assert [line[0].marks for line in table.lines] == [(), ("a",), ("b",)]
    assert any("different global batch size (16 → 32)" in note for note in table.notes)
    assert "validation_accuracy" not in {each.name for each in table.columns}  # on test, where there are test scores
    assert texts(table, "test_accuracy") == ["0.9233"] * 3


def test_the_strategy_single_is_the_one_device_of_data_parallel(tmp_path: Path):
    # Four ways on one axis, 16 samples a device: one GPU 100 ms a step (160 samples/s), DDP
    # on 2 and 4 GPUs 125 and 160 ms (256 and 400 samples/s: 1.6 and 2.5 times; 80% and 62.5%), fp16 on one GPU 50 ms.
    made = {
        "one": Made(step_ms=100.0, batch=16),
        "ddp2": Made(step_ms=125.0, world_size=2, batch=32, kind="ddp"),
        "ddp4": Made(step_ms=160.0, world_size=4, batch=64, kind="ddp"),
        "fp16": Made(step_ms=50.0, batch=16, run={"config.precision": "fp16"}),
    }
    way = Axis("way", "way", {name: name for name in made}, keys=("strategy.kind", "nproc", "precision"))
    folder = make_matrix(tmp_path / "m", (way,), lambda values: made[values["way"]])
    (scaling,) = scaling_tables(systems_of(folder))
    assert (texts(scaling, "num_devices"), texts(scaling, "speed_up"), texts(scaling, "scaling_efficiency")) == (
        ["1", "2", "4"], ["1.00", "1.60", "2.50"], ["100.0", "80.0", "62.5"]
    )  # fmt: skip


def test_a_data_parallel_run_on_one_device_is_preferred_to_single(tmp_path: Path):
    made = {
        "single": Made(step_ms=50.0, batch=64),
        "ddp1": Made(step_ms=100.0, batch=64, kind="ddp"),
        "ddp2": Made(step_ms=50.0, world_size=2, batch=64, kind="ddp"),
    }
    way = Axis("way", "way", {name: name for name in made}, keys=("strategy.kind", "nproc"))
    folder = make_matrix(tmp_path / "m", (way,), lambda values: made[values["way"]])
    (scaling,) = scaling_tables(systems_of(folder))
    assert texts(scaling, "speed_up") == ["1.00", "2.00"]


def test_nodes_make_lines_of_their_own(tmp_path: Path):
    # One node with 2 and 4 devices, two nodes with 2 and 4: speed-up 1 and 1.6 on one, 1 and 1.25 on two.
    nodes = Axis("nodes", "nodes", {"nodes-1": "1", "nodes-2": "2"}, keys=("nodes",))
    sizes = Axis("nproc", "nproc", {"nproc-2": "2", "nproc-4": "4"}, keys=("nproc",))
    step_ms = {(1, 2): 160.0, (1, 4): 100.0, (2, 2): 250.0, (2, 4): 200.0}

    def number(values: Mapping[str, str]) -> int:
        return int(values["nodes"].removeprefix("nodes-"))

    folder = make_matrix(
        tmp_path / "m",
        (nodes, sizes),
        lambda values: Made(step_ms=step_ms[number(values), size_of(values)], world_size=size_of(values), batch=64),
        changes=lambda cell: replace(cell, num_nodes=number(cell.values)),
    )
    (table,) = scaling_tables(systems_of(folder))
    assert texts(table, "of") == ["nodes 1", "nodes 1", "nodes 2", "nodes 2"]
    assert texts(table, "num_devices") == ["2", "4", "2", "4"]
    assert texts(table, "speed_up") == ["1.00", "1.60", "1.00", "1.25"]


def test_both_rules_at_once_do_not_mix(tmp_path: Path):
    rule = Axis("batch", "batch", {"total": "total", "each": "each"}, keys=("batch.global", "batch.per_device"))

    def tell(values: Mapping[str, str]) -> Made:
        size, is_total = size_of(values), values["batch"] == "total"
        batch = {"global": 64} if is_total else {"per_device": 16}
        return Made(world_size=size, batch=64 if is_total else 16 * size, run={"config.batch": batch})

    make_matrix(tmp_path / "m", (NPROC, rule), tell)
    strong, weak = scaling_tables(systems_of(tmp_path / "m"))
    assert [texts(table, "global_batch_size") for table in (strong, weak)] == [["64"] * 3, ["16", "32", "64"]]


def test_chasing_efficiency_against_the_baseline(tmp_path: Path):
    # Baseline ddp: 32 samples in 80 ms: 400/s. zero3: 64 in 100 ms: 640/s, +60%. Noise scale 96:
    # (96 + 32) / (96 + 64) = 0.8; goodput 640 x 0.8 = 512, +28% against 400 x 1. Time 18 and 22.5 s: +25%, worse.
    def tell(values: Mapping[str, str]) -> Made:
        noise = {"noise_scale": {"value": 96.0, "trace": 192.0, "squared_norm": 2.0, "num_steps": 10}}
        use = {"utilisation": {"kind": "nvml", "mean": 0.5 if values["strategy"] == "ddp" else 0.4}}
        if values["strategy"] == "ddp":
            return Made(kind="ddp", summary={**noise, **use})
        return Made(kind="zero3", step_ms=100.0, batch=64, summary={**noise, **use})

    axis = replace(STRATEGY, keys=("strategy.kind", "batch.global"))
    make_matrix(tmp_path / "m", (axis,), tell)
    table = configurations_table(systems_of(tmp_path / "m"))
    assert texts(table, "train_s") == ["18.0", "22.5 (+25.0% ↑)"]
    assert texts(table, "samples_per_s") == ["400", "640 (+60.0% ↑)"]
    assert texts(table, "utilisation") == ["50.0", "40.0 (−20.0% ↓)"]
    assert texts(table, "statistical_efficiency") == ["100.0", "80.0 (−20.0% ↓)"]
    assert texts(table, "goodput_samples_per_s") == ["400", "512 (+28.0% ↑)"]
    keys = ("train_s", "samples_per_s", "validation_loss", "utilisation", "goodput_samples_per_s")
    # One run each: no change is shown.
    assert [(column(table, key)[1].better, column(table, key)[1].colour) for key in keys] == [(None, "na")] * 5
    assert column(table, "goodput_samples_per_s")[1].change_percent == pytest.approx(28.0)
    assert table.marked == (0,)


def test_a_change_is_coloured_if_it_is_shown_and_is_that_of_the_verdict(tmp_path: Path):
    # ddp: 80 and 80.8 ms; zero3: 100 and 101 ms, 20% fewer samples/s. Utilisation 0.5 and 0.3 against 0.41 and 0.42.
    use = {"ddp": (0.5, 0.3), "zero3": (0.41, 0.42)}

    def tell(values: Mapping[str, str]) -> Made:
        at = values["seed"] == "seed-2"
        step = (80.0 if values["strategy"] == "ddp" else 100.0) * (1.01 if at else 1.0)
        kind = values["strategy"]
        return Made(kind=kind, step_ms=step, summary={"utilisation": {"kind": "nvml", "mean": use[kind][at]}})

    make_matrix(tmp_path / "m", (STRATEGY, SEED), tell)
    systems = systems_of(tmp_path / "m")
    (verdict,), _ = judged(systems)
    table = configurations_table(replace(systems, verdicts=(verdict,)))
    rate = column(table, "samples_per_s")[1]
    assert rate.change_percent == pytest.approx(-20.0)
    assert rate.better is False
    adjusted = replace(verdict, speed=replace(verdict.speed, change=-0.19, outcome="cannot tell"))
    rate = column(configurations_table(replace(systems, verdicts=(adjusted,))), "samples_per_s")[1]
    assert (rate.change_percent, rate.colour) == (pytest.approx(-19.0), "na")
    assert column(table, "utilisation")[1].colour == "na"
    assert column(table, "train_s")[1].better is False


def test_efficiency_against_a_reference_batch_of_the_users_own(tmp_path: Path):
    # m0 = 16, noise scale 96: (96 + 16) / (96 + 32) = 87.5% of the baseline's samples; zero3 at the same batch with a
    # noise scale of 32 has (32 + 16) / (32 + 32) = 75%. Both make 400 samples/s.
    def tell(values: Mapping[str, str]) -> Made:
        value = 96.0 if values["strategy"] == "ddp" else 32.0
        noise = {"noise_scale": {"value": value, "trace": 2 * value, "squared_norm": 2.0, "num_steps": 10}}
        run = {"config.measure.reference_batch": 16}
        return Made(kind=values["strategy"], batch=32, summary=noise, run=run)

    make_matrix(tmp_path / "m", (STRATEGY,), tell)
    table = configurations_table(systems_of(tmp_path / "m"))
    assert [cell.value for cell in column(table, "statistical_efficiency")] == pytest.approx([0.875, 0.75])
    assert [cell.value for cell in column(table, "goodput_samples_per_s")] == pytest.approx([350.0, 300.0])
    assert any("measure.reference_batch of the baseline" in note for note in table.notes)


def test_a_configuration_without_a_noise_scale_has_no_efficiency(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        noise = {"noise_scale": {"value": 96.0, "trace": None, "squared_norm": None, "num_steps": None}}
        unknown = {"noise_scale": {"value": None, "reason": "zero3 shards gradients"}}
        size = size_of(values)
        return Made(kind=values["strategy"], world_size=size, batch=32 * size,
                    summary=noise if values["strategy"] == "ddp" else unknown)  # fmt: skip

    make_matrix(tmp_path / "m", (STRATEGY, NPROC), tell, baseline={"strategy": "ddp", "nproc": "nproc-1"})
    table = configurations_table(systems_of(tmp_path / "m"))
    shares = column(table, "statistical_efficiency")
    # (96 + 32) / (96 + 64) and (96 + 32) / (96 + 128); zero3 trained the same and has none of its own.
    assert [entry.value for entry in shares[1:3]] == pytest.approx([0.8, 128 / 224])
    assert [entry.value for entry in shares[4:]] == [None, None]
    assert any("zero3 shards gradients" in note for note in table.notes)


def test_the_noise_scale_of_a_configuration_is_that_of_all_its_runs(tmp_path: Path):
    sums = {"1": (300.0, 3.0), "2": (500.0, -1.0)}

    def tell(values: Mapping[str, str]) -> Made:
        trace, norm = sums[values["seed"]]
        noise = {"value": trace / norm if norm > 0 else None, "trace": trace, "squared_norm": norm, "num_steps": 10}
        return Made(summary={"noise_scale": noise})

    make_matrix(tmp_path / "m", (Axis("run.seed", "seed", {"1": "1", "2": "2"}, is_seed=True),), tell)
    systems = systems_of(tmp_path / "m")
    noise = noise_amount("plain", systems.measured[0])
    # (300 + 500) / (3 - 1); of the first run alone it would be 100.
    assert noise.center == pytest.approx(400.0)
    assert len(noise.values) == 2


def test_goodput_is_that_of_each_run_by_its_own_noise_scale(tmp_path: Path):
    # 64 samples in 100 and in 200 ms against 32 in 80: 640 and 320 samples/s, noise scales 96 and 32:
    # (96 + 32) / (96 + 64) = 0.8 and (32 + 32) / (32 + 64) = 2/3. Useful samples/s: 512 and 213.3.
    # Together, with as many measured steps each: 2 x 64 samples in 300 ms, worth 0.8 and 2/3.
    def tell(values: Mapping[str, str]) -> Made:
        phi = 96.0 if values["seed"] == "seed-1" else 32.0
        noise = {"noise_scale": {"value": phi, "trace": 2 * phi, "squared_norm": 2.0, "num_steps": 10}}
        if values["batch"] == "batch-32":
            return Made(summary=noise)
        return Made(step_ms=100.0 if values["seed"] == "seed-1" else 200.0, batch=64, summary=noise)

    batch = Axis("batch.global", "batch", {"batch-32": "32", "batch-64": "64"}, keys=("batch.global",))
    make_matrix(tmp_path / "m", (batch, SEED), tell)
    systems = systems_of(tmp_path / "m")
    table = configurations_table(systems)
    share, good = column(table, "statistical_efficiency")[1], column(table, "goodput_samples_per_s")[1]
    assert share.value == pytest.approx((0.8 + 2 / 3) / 2)
    assert good.value == pytest.approx((0.8 + 2 / 3) * 64 / 0.3)
    assert good.deviation == pytest.approx((512 - 640 / 3) / 2**0.5)
    # The verdict has the same goodput of each run, and their geometric mean.
    (verdict,) = judged(systems)[0]
    assert verdict.speed.measure == "goodput"
    assert verdict.speed.value == pytest.approx((512 * 640 / 3) ** 0.5)


def test_differences_that_are_not_on_an_axis_prevent_a_comparison(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(run={"data.train.fingerprint": "ab" * 32 if values["strategy"] == "ddp" else "cd" * 32})

    make_matrix(tmp_path / "m", (STRATEGY,), tell)
    table = configurations_table(systems_of(tmp_path / "m"))
    assert texts(table, "train_s") == ["18.0", "18.0 (no comparison)"]
    assert column(table, "train_s")[1].better is None
    assert any("not comparable with the baseline: different training data" in note for note in table.notes)


def test_loader_workers_are_no_reason_for_other_data(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(run={"data.train.fingerprint": ("ab" if values["num_workers"] == "0" else "cd") * 32})

    axis = Axis("data.num_workers", "num_workers", {"0": "0", "2": "2"}, keys=("data.num_workers",))
    make_matrix(tmp_path / "m", (axis,), tell)
    assert texts(configurations_table(systems_of(tmp_path / "m")), "train_s")[1].endswith("(no comparison)")


def test_another_machine_is_marked(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        node = {
            "hostname": values["strategy"],
            "cpu_model": f"CPU of {values['strategy']}",
            "ram_bytes": GIB,
            "gpus": [],
        }
        return Made(run={"hardware": [node]})

    make_matrix(tmp_path / "m", (STRATEGY,), tell)
    systems = systems_of(tmp_path / "m")
    assert len(systems.machines) == 2
    table = configurations_table(systems)
    assert [line[0].marks for line in table.lines] == [(), ("a",)]
    assert any("ran on a different machine" in note for note in table.notes)


def test_runs_that_a_queue_gave_other_numbers_of_gpus_ran_on_the_same_machine(tmp_path: Path):
    # A run with one GPU cannot see how it is linked with others.
    def tell(values: Mapping[str, str]) -> Made:
        size = size_of(values)
        gpus = [{"name": "A100", "memory_bytes": 40 * GIB, "link": "NV12" if size > 1 else None}] * size
        node = {"cpu_model": "EPYC", "ram_bytes": GIB, "gpus": gpus}
        nodes = [{**node, "hostname": f"node{size}{number}"} for number in range(2 if size == 4 else 1)]
        return Made(world_size=size, batch=64, run={"hardware": nodes})

    systems = systems_of(make_matrix(tmp_path / "m", (NPROC,), tell))
    assert len(systems.machines) == 1
    assert not any(systems.differs(member).elsewhere for member in systems.measured)
    assert all("machine" not in note for table in scaling_tables(systems) for note in table.notes)
    facts = dict(next(iter(machine_tables(systems))).rows)
    assert (facts["GPUs per node"], facts["Nodes"], facts["Link of GPUs"]) == ("1, 2, 4", "1, 2", "NV12")


def test_machines_with_different_links_are_different(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        gpus = [{"name": "V100", "memory_bytes": 16 * GIB, "link": {"ddp": "NV2", "zero3": "PHB"}[values["strategy"]]}]
        return Made(run={"hardware": [{"cpu_model": "Xeon", "ram_bytes": GIB, "gpus": gpus * 2}]})

    assert len(systems_of(make_matrix(tmp_path / "m", (STRATEGY,), tell)).machines) == 2


def test_probes_have_neither_quality_nor_the_time_of_a_run(tmp_path: Path):
    probe = Axis("kind", "kind", {"whole": "whole", "probe": "probe"}, keys=("probe",))

    def as_probe(cell: CellRecord) -> CellRecord:
        return replace(cell, kind="probe" if cell.values["kind"] == "probe" else "full")

    def made(values: Mapping[str, str]) -> Made:
        is_probe = values["kind"] == "probe"
        return Made(40.0 if is_probe else 80.0, run={"config.measure.probe": is_probe})

    make_matrix(tmp_path / "m", (probe,), made, changes=as_probe)
    table = configurations_table(systems_of(tmp_path / "m"))
    assert texts(table, "train_s") == ["18.0", "n/a"]
    assert texts(table, "validation_loss") == ["0.2104", "n/a"]
    assert texts(table, "samples_per_s") == ["400", "800"]  # a few steps are not compared with a whole run
    assert any("a probe: a few timed steps" in note for note in table.notes)


def test_repeats_count_for_time_and_once_for_quality(tmp_path: Path):
    again = Axis("again", "seed", {"seed-1": "1", "seed-2": "2"}, is_seed=True)
    make_matrix(
        tmp_path / "m",
        (again,),
        lambda values: Made(summary={"scores.test.accuracy": 0.9 if values["seed"] == "seed-1" else 0.8}),
        changes=lambda cell: replace(cell, repeat=int(cell.values["seed"][-1])),
    )
    table = configurations_table(systems_of(tmp_path / "m"))
    assert texts(table, "test_accuracy") == ["0.9000"]
    assert column(table, "train_s")[0].runs == ("seed-1", "seed-2")


def test_device_hours_and_their_price(tmp_path: Path):
    # 18 + 5.2 s on two devices: 46.4 s = 0.012889 h; at 100 an hour 1.2889.
    unknown = {"flops": {"mfu": None, "reason": "no peak of it is known"}}
    make_matrix(tmp_path / "m", (STRATEGY,), lambda _: Made(kind="ddp", world_size=2, summary=unknown),
                price_per_device_hour=100.0)  # fmt: skip
    table = resources_table(systems_of(tmp_path / "m"))
    assert column(table, "device_hours")[0].value == pytest.approx(46.4 / 3600)
    assert column(table, "cost")[0].value == pytest.approx(4640 / 3600)
    assert any(note.startswith("Not recorded by these runs: Utilisation") for note in table.notes)
    assert any("MFU (no peak of it is known)" in note for note in table.notes)


def test_reasons_for_unknown_figures_of_runs_with_several_ranks_come_first(tmp_path: Path):
    def made(values: Mapping[str, str]) -> Made:
        size = size_of(values)
        why = "a single process does not communicate" if size == 1 else "no step was profiled"
        summary = {
            "communication": {"share": None, "exposed_share": None, "reason": why},
            "noise_scale": {"value": None, "reason": f"{size} is too few"},
        }
        return Made(world_size=size, kind="single" if size == 1 else "ddp", summary=summary)

    make_matrix(tmp_path / "m", (NPROC,), made)
    systems = systems_of(tmp_path / "m")
    assert "(no step was profiled; or a single process does not communicate)" in " ".join(
        resources_table(systems).notes
    )
    # Of three reasons two are said.
    notes = " ".join(configurations_table(systems).notes)
    assert "Noise scale (samples) (2 is too few; or 4 is too few; and 1 other reason)" in notes


def test_unreadable_records_are_listed_and_left_out(tmp_path: Path):
    make_matrix(tmp_path / "m", (NPROC, SEED), lambda values: Made(world_size=size_of(values)),
                states={"nproc-4_seed-1": ("skipped", "4 processes need 4 GPUs")})  # fmt: skip
    runs = tmp_path / "m" / "runs"
    (runs / "nproc-1_seed-1" / "summary.json").unlink()
    (runs / "nproc-1_seed-2" / "run.json").write_text('{"schema_version": 7}')
    broken = json.loads((runs / "nproc-2_seed-1" / "summary.json").read_text())
    broken["time"]["train_s"] = "long"
    (runs / "nproc-2_seed-1" / "summary.json").write_text(json.dumps(broken))
    report = make_sweep(tmp_path / "m", tmp_path / "out")
    assert [one.label for one in report.measured] == ["nproc 2", "nproc 4"]
    (section,) = (each for each in matrix_sections(report) if each.key == "unfinished")
    text = "\n".join(" ".join(row) for table in section.tables for row in table.rows)
    for said in ("summary.json", "schema_version 7", "time.train_s is 'long'", "4 processes need 4 GPUs"):
        assert said in text
    assert "4 processes need 4 GPUs" in (tmp_path / "out" / "index.html").read_text()


def test_a_matrix_without_any_run(tmp_path: Path):
    states = {f"nproc-{size}": ("pending", None) for size in (1, 2, 4)}
    make_matrix(tmp_path / "m", (NPROC,), lambda values: Made(world_size=size_of(values)), states=states)
    report = make_sweep(tmp_path / "m", tmp_path / "out")
    assert [section.key for section in matrix_sections(report)] == [
        "chosen",
        "unfinished",
        "candidates",
        "reproduce",
    ]


def test_candidates_open_on_request_below_the_chosen_ones(tmp_path: Path):
    make_matrix(tmp_path / "m", (NPROC,), lambda values: Made(world_size=size_of(values)))
    shown = {section.key: section.is_short for section in matrix_sections(make_sweep(tmp_path / "m", None))}
    assert (shown["chosen"], shown["candidates"]) == (True, False)


def test_each_cell_of_report_json_names_its_runs(tmp_path: Path):
    make_matrix(tmp_path / "m", (NPROC,), lambda values: Made(world_size=size_of(values)))
    make_sweep(tmp_path / "m", tmp_path / "out")
    tables = {table["key"]: table for table in json.loads((tmp_path / "out" / "report.json").read_text())["tables"]}
    cell = tables["configurations"]["rows"][1]["train_s"]
    assert (cell["value"], cell["runs"], cell["source"]) == (18.0, ["nproc-2"], "summary.time.train_s")
    assert "nproc-2: summary.time.train_s" in (tmp_path / "out" / "index.html").read_text()
    mean = tables["candidates-0"]["rows"][0]["validation Accuracy ↑"]
    # Numbers of processes with one global batch train the same: their runs of a seed are one value.
    assert (mean["value"], mean["runs"]) == (pytest.approx(0.9233), ["nproc-1", "nproc-2", "nproc-4"])
