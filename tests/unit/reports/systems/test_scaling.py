"""Lines of configurations over the number of devices."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import Made, make_matrix

from paratune.records.sweep import Axis, CellRecord, read_sweep
from paratune.reports.systems.building import Scaling, scalings
from paratune.reports.systems.model import Configuration, Systems, read_cell_runs, speed_up

SIZES = Axis("nproc", "nproc", {f"nproc-{size}": str(size) for size in (1, 2, 4)}, keys=("nproc",))
NODES = Axis("nodes", "nodes", {"nodes-1": "1", "nodes-2": "2"}, keys=("nodes",))
ACCUM = Axis("batch.grad_accum_steps", "accum", {"a-1": "1", "a-2": "2"}, keys=("batch.grad_accum_steps",))
THREADS = Axis("env.T", "T", {"t-1": "1", "t-4": "4"}, keys=("env.T",))
SEED = Axis("run.seed", "seed", {f"seed-{seed}": str(seed) for seed in (1, 2, 3)}, is_seed=True, keys=("run.seed",))
WORKERS = Axis("data.num_workers", "workers", {"w-0": "0", "w-2": "2"}, keys=("data.num_workers",))


def number(values: Mapping[str, str], label: str) -> int:
    return int(values.get(label, "x-1").rpartition("-")[2])


def made(values: Mapping[str, str]) -> Made:
    run = {"config.batch.grad_accum_steps": number(values, "accum"), "config.data.num_workers": values.get("workers")}
    size = number(values, "nproc")
    return Made(
        world_size=size, batch=64, kind="ddp", run={**run, "environment": {"T": str(number(values, "T"))}},
    )  # fmt: skip


def members_of(folder: Path, *axes: Axis) -> tuple[Configuration, ...]:
    def with_nodes(cell: CellRecord) -> CellRecord:
        return replace(cell, num_nodes=number(cell.values, "nodes"))

    make_matrix(folder, axes, made, changes=with_nodes)
    return Systems(read_sweep(folder), read_cell_runs(folder, read_sweep(folder))).measured


def sizes_of(line: Scaling) -> list[int]:
    return [member.world_size for member in line.members]


def test_settings_of_the_batch_make_lines_of_their_own(tmp_path: Path):
    found = scalings(members_of(tmp_path / "m", SIZES, ACCUM))
    strong = [(line.batch, line.where, sizes_of(line)) for line in found if line.rule == "strong"]
    assert strong == [(64, f"grad accum steps {steps}", [1, 2, 4]) for steps in (1, 2)]


def test_one_device_on_one_node_is_that_of_two_nodes(tmp_path: Path):
    members = members_of(tmp_path / "m", NODES, SIZES)
    # Two nodes cannot share one device.
    members = tuple(member for member in members if member.values != {"nodes": "nodes-2", "nproc": "nproc-1"})
    lines = {line.where: line for line in scalings(members)}
    assert [member.values["nodes"] for member in lines["nodes 2"].members] == ["nodes-1", "nodes-2", "nodes-2"]
    assert sizes_of(lines["nodes 2"]) == sizes_of(lines["nodes 1"]) == [1, 2, 4]


def test_lines_have_the_values_that_they_share(tmp_path: Path):
    lines = scalings(members_of(tmp_path / "m", SIZES, THREADS, WORKERS))
    assert [line.where for line in lines if line.rule == "strong"] == [
        f"T {threads}, {workers}" for threads in (1, 4) for workers in ("w-0", "w-2")
    ]


def test_an_option_that_is_off_is_one_that_another_strategy_does_not_have(tmp_path: Path):
    way = Axis(
        "way", "way", {"one": "one", "ddp": "ddp", "zero2": "zero2"},
        keys=("strategy.kind", "nproc", "strategy.cpu_offload"),
    )  # fmt: skip
    made = {
        "one": Made(batch=64),
        "ddp": Made(kind="ddp", world_size=2, batch=64),
        "zero2": Made(kind="zero2", world_size=2, batch=64, run={"config.strategy.cpu_offload": False}),
    }
    make_matrix(tmp_path / "m", (way,), lambda values: made[values["way"]])
    lines = scalings(
        Systems(read_sweep(tmp_path / "m"), read_cell_runs(tmp_path / "m", read_sweep(tmp_path / "m"))).measured
    )
    assert [[member.label for member in line.members] for line in lines] == [["one", "ddp"], ["one", "zero2"]]


def test_speed_ups_of_a_pair_are_not_adjusted_for_a_drift(tmp_path: Path):
    # 1, 2 and 4 devices in turn, three times, each run 1.2 times as fast as the one before.
    def drifting(values: Mapping[str, str]) -> Made:
        size = number(values, "nproc")
        at = 3 * (int(values["seed"][-1]) - 1) + (1, 2, 4).index(size)
        ended = {"finished": f"2026-11-21T10:{at:02}:50+00:00"}
        run = {"created": f"2026-11-21T10:{at:02}:00+00:00"}
        return Made(100 / size / 1.2**at, size, 64, kind="ddp", run=run, summary=ended)

    make_matrix(tmp_path / "m", (SIZES, SEED), drifting)
    lines = scalings(
        Systems(read_sweep(tmp_path / "m"), read_cell_runs(tmp_path / "m", read_sweep(tmp_path / "m"))).measured
    )
    first, *others = next(line.members for line in lines if line.rule == "strong")
    assert [speed_up(first, other).center for other in others] == pytest.approx([2 * 1.2, 4 * 1.2**2])
