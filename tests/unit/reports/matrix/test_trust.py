"""Whether the times of a matrix can be trusted; certificates beside its runs, tables of machines and software."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from make_matrix import SEED, STRATEGY, Axis, Made, make_matrix
from make_run import GIB, make_certificate

from paratune.records.sweep import read_sweep
from paratune.reports.document import Statement
from paratune.reports.matrix import make_sweep
from paratune.reports.statements import trust_statements
from paratune.reports.systems.model import Systems, read_cell_runs
from paratune.reports.systems.tables import machine_tables
from paratune.reports.tables.table import Table


def tables(folder: Path) -> dict[str, Table]:
    return {table.key: table for section in make_sweep(folder, None).sections for table in section.tables}


def test_certificates_beside_runs_are_shown_with_their_runs(tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"]))
    assert "certificates" not in tables(folder)
    make_certificate(folder / "runs" / "ddp.certificate", folder / "runs" / "ddp")
    table = tables(folder)["certificates"]
    assert table.rows[0][0] == "ddp"
    assert table.rows[0][-2:] == ("holds", "all runs")  # the two train the same: their strategy is no part of it
    assert table.lines[0][0].runs == ("ddp", "zero3")


@pytest.mark.parametrize(
    ("statuses", "is_good"),
    [
        (("holds", "holds"), True),
        (("holds", "cannot run"), None),
        (("cannot run", "cannot run"), None),
        (("cannot run", "differs"), False),
    ],
)
def test_a_strategy_that_could_not_run_is_not_certified(
    tmp_path: Path, statuses: tuple[str, str], is_good: bool | None
):
    folder = make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"]))
    findings = [{"strategy": name, "status": status} for name, status in zip(("ddp", "zero3"), statuses, strict=True)]
    make_certificate(folder / "runs" / "ddp.certificate", folder / "runs" / "ddp", *findings)
    statements = {statement.label: statement for statement in trust_statements(make_sweep(folder, None))}
    assert statements["Certificate"].is_good is is_good


def test_a_column_for_each_kind_of_machine(tmp_path: Path):
    gpus = {"ddp": [{"name": "Big GPU", "memory_bytes": 40 * GIB, "link": "NV18"}] * 4, "zero3": []}

    def tell(values: Mapping[str, str]) -> Made:
        node = {
            "hostname": values["strategy"], "cpu_model": "CPU", "num_physical_cores": 8, "num_logical_cores": 16,
            "ram_bytes": 64 * GIB, "storage": {"kind": "ssd", "filesystem": "ext4"}, "gpus": gpus[values["strategy"]],
            "data_storage": {"kind": "nvme", "filesystem": "xfs"}, "gpu_driver": "550.54.15",
            "virtualisation": {"hypervisor": "kvm", "container": "none"},
        }  # fmt: skip
        plan = {"num_steps": 2, "steps_per_epoch": 3, "num_epochs": 2 / 3, "batches_per_epoch": 6, "num_batches": 16}
        return Made(run={"hardware": [node], "plan": plan, "model.size_bytes": 437_951_488})

    folder = make_matrix(tmp_path / "m", (STRATEGY,), tell)
    systems, models, software = machine_tables(Systems(read_sweep(folder), read_cell_runs(folder, read_sweep(folder))))
    assert systems.header == ("", "Big GPU", "CPU")
    facts = {row[0]: row[1:] for row in systems.rows}
    assert facts["GPU model"] == ("Big GPU", "none")
    assert facts["GPUs per node"] == ("4", "0")
    assert facts["GPU memory"] == ("40 GiB", "n/a")
    assert facts["Link of GPUs"] == ("NV18", "n/a")
    assert facts["Storage of the run"] == ("kind ssd, filesystem ext4",) * 2
    assert facts["Storage of the tokens"] == ("kind nvme, filesystem xfs",) * 2
    assert facts["Virtualisation"] == ("hypervisor kvm, container none",) * 2
    assert facts["GPU driver"] == ("550.54.15", "550.54.15")
    assert facts["CPU cores"] == ("8 physical, 16 logical", "8 physical, 16 logical")
    assert facts["RAM"] == ("64 GiB", "64 GiB")
    assert facts["Hosts"] == ("ddp", "zero3")
    assert dict(models.rows)["Parameters"] == "22,713,986"
    assert dict(models.rows)["Model size (MB)"] == "438.0"  # 437,951,488 bytes
    assert dict(models.rows)["Batches per epoch and rank"] == "6"
    assert dict(models.rows)["Batches of all ranks"] == "16"
    assert dict(models.rows)["Epochs"] == "0.666667"
    assert dict(software.rows)["torch"] == "2.13.0"


RATES = Axis("train.learning_rate", "rate", {"low": "1e-5", "high": "1e-3"}, keys=("train.learning_rate",))
NOISE = {"seed-1": 1.0, "seed-2": 1.002}


def trust(folder: Path, tell: Callable[[str, str], Made], axis: Axis = STRATEGY) -> dict[str, Statement]:
    """Return the statements on a matrix of two configurations with two seeds, by label."""
    make_matrix(folder / "m", (axis, SEED), lambda values: tell(values[axis.label], values["seed"]))
    return {statement.label: statement for statement in trust_statements(make_sweep(folder / "m", None))}


def at(place: float, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the changes of the records of a run of 50 seconds that begins in this minute."""
    minute, second = int(place), int(60 * (place % 1))
    began, ended = 60 * minute + second, 60 * minute + second + 50
    created, finished = (f"2026-11-21T10:{seconds // 60:02}:{seconds % 60:02}+00:00" for seconds in (began, ended))
    return {"run": {"created": created}, "summary": {"finished": finished, **more}}


@pytest.mark.parametrize(
    ("others", "own", "is_good"), [(0.02, 0.9, True), (0.85, 0.12, False), (0.3, 0.6, False), (0.02, 0.12, None)]
)
def test_the_level_of_other_programs_counts_and_not_only_its_difference(
    tmp_path: Path, others: float, own: float, is_good: bool | None
):
    # 4 cores, and a run with 4 threads: its own share is that of the machine.
    node = {"hostname": "a", "num_logical_cores": 4, "num_usable_cores": 4}
    load = {"kind": "cpu", "mean": own, "machine_mean": min(1.0, own + others)}

    def tell(kind: str, seed: str) -> Made:
        changes = at(2 * (seed == "seed-2") + (kind == "zero3"), utilisation=load)
        changes["run"] |= {"hardware": [node], "num_threads": 4}
        return Made(kind=kind, step_ms=80 * NOISE[seed], **changes)

    assert trust(tmp_path, tell)["Other programs"].is_good is is_good


@pytest.mark.parametrize(
    ("device", "hosts", "is_good"), [("cpu", "aaaa", False), ("cuda", "aaaa", None), ("cpu", "abcd", True)]
)
def test_runs_at_the_same_time_on_one_host_are_not_in_turn(
    tmp_path: Path, device: str, hosts: str, is_good: bool | None
):
    def tell(kind: str, seed: str) -> Made:
        number = 2 * (seed == "seed-2") + (kind == "zero3")
        changes = at(number / 4)  # 15 seconds after one another, for 50 seconds
        changes["run"] |= {"hardware": [{"hostname": hosts[number]}], "device": device}
        return Made(kind=kind, step_ms=80 * NOISE[seed], **changes)

    assert trust(tmp_path, tell)["Order of runs"].is_good is is_good


@pytest.mark.parametrize(("drift", "is_good"), [(1.05, True), (1.41, False)])
def test_a_large_drift_is_a_problem_also_where_verdicts_are_adjusted(tmp_path: Path, drift: float, is_good: bool):
    def tell(kind: str, seed: str) -> Made:
        place = 2 * (seed == "seed-2") + (kind == "zero3")
        return Made(kind=kind, step_ms=80 * drift ** (place / 3) * (1 + 1e-4 * (place == 1)), **at(place))

    found = trust(tmp_path, tell)["Drift of the machine"]
    assert found.is_good is is_good
    assert f"{100 * (1 / drift - 1):.1f}%".replace("-", "\u2212") in found.text


@pytest.mark.parametrize(("slower", "is_good"), [(1.0, True), (1.28, False)])
def test_learning_rates_that_differ_in_speed_are_a_negative_control(tmp_path: Path, slower: float, is_good: bool):
    def tell(rate: str, seed: str) -> Made:
        changes = at(2 * (seed == "seed-2") + (rate == "high"))
        changes["run"] |= {"config.train.learning_rate": rate}
        return Made(step_ms=80 * NOISE[seed] * (slower if rate == "low" else 1.0), **changes)

    found = trust(tmp_path, tell, RATES)["Negative control"]
    assert found.is_good is is_good
    assert f" {100 * (slower - 1):.0f}." in found.text


def test_configurations_that_may_differ_have_no_negative_control(tmp_path: Path):
    assert "Negative control" not in trust(tmp_path, lambda kind, seed: Made(kind=kind, step_ms=80 * NOISE[seed]))


def test_training_budgets_that_differ_are_named(tmp_path: Path):
    steps = Axis("train.max_steps", "steps", {"few": "100", "many": "400"}, keys=("train.max_steps",))

    def tell(name: str, seed: str) -> Made:
        number = int(steps.values[name])
        plan = {"num_steps": number, "steps_per_epoch": 75, "num_epochs": number / 75}
        return Made(num_steps=number, step_ms=80 * NOISE[seed], run={"plan": plan, "config.train.max_steps": number})

    found = trust(tmp_path, tell, steps)["Same experiment"]
    assert found.is_good is False
    assert "steps 400 has 4 times the samples" in found.text
