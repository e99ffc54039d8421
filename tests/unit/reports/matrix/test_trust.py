"""Certificates beside the runs of a matrix, and the tables of machines and software."""

from collections.abc import Mapping
from pathlib import Path

from make_matrix import STRATEGY, Made, make_matrix
from make_run import GIB, make_certificate

from paratune.records.sweep import read_sweep
from paratune.reports.matrix.trust import certificate_table
from paratune.reports.systems.machines import machine_tables
from paratune.reports.systems.model import build_systems


def test_certificates_beside_runs_are_shown_with_their_runs(tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"]))
    assert list(certificate_table(build_systems(folder, read_sweep(folder)))) == []
    make_certificate(folder / "runs" / "ddp.certificate", folder / "runs" / "ddp")
    (table,) = certificate_table(build_systems(folder, read_sweep(folder)))
    assert table.rows[0][0] == "ddp"
    assert table.rows[0][-2:] == ("holds", "all runs")  # the two train the same: their strategy is no part of it
    assert table.lines[0][0].runs == ("ddp", "zero3")


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
    systems, models, software = machine_tables(build_systems(folder, read_sweep(folder)))
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
