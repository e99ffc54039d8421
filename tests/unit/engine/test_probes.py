"""Counters of devices: NVML by a module that stands for it, RAPL by files as the kernel lays them out."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paratune.engine import probes
from paratune.engine.probes import CpuProbe, NvmlProbe, RaplCounter, make_probe, rapl_domains
from paratune.errors import MissingDependency
from paratune.processes.place import Place

UUID = "4f2b1d3c-0000-1111-2222-333344445555"


class NVMLError(Exception):
    """As pynvml's."""


class FakeNvml:
    """Stands for pynvml: one GPU, whose counters may fail, for some time or for good."""

    NVMLError = NVMLError

    def __init__(self, *, known: str = f"GPU-{UUID}", mig: bool = False, failing: dict[str, str] | None = None) -> None:
        self.known, self.mig, self.failing = known, mig, failing or {}
        self.energy_mj, self.power_mw, self.busy, self.used = 1_000_000, 250_000, 80, 5 * 2**30
        self.asked: list[str] = []

    def _answer(self, name: str, value: Any) -> Any:
        self.asked.append(name)
        if name in self.failing:
            raise NVMLError(self.failing[name])
        return value

    def nvmlInit(self) -> None:  # noqa: N802
        self._answer("init", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self.known:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> int:  # noqa: N802
        return int(handle.startswith("MIG-"))

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return self._answer("mig mode", [int(self.mig), int(self.mig)])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return self._answer("utilisation", SimpleNamespace(gpu=self.busy, memory=3))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return self._answer("memory", SimpleNamespace(used=self.used, total=80 * 2**30))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return self._answer("power", self.power_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self._answer("energy", self.energy_mj)


def test_a_gpu_is_read_in_units_of_the_record():
    probe = NvmlProbe(FakeNvml(), UUID)
    reading = probe.read()
    # NVML gives per cent, milliwatts and millijoules.
    assert (reading.utilisation, reading.power_w, reading.energy_j) == (0.8, 250.0, 1000.0)
    assert reading.memory_bytes == 5 * 2**30
    assert (probe.energy_source, probe.reasons) == ("nvml counter", [])


def test_power_is_used_if_there_is_no_energy_counter():
    probe = NvmlProbe(FakeNvml(failing={"energy": "Not Supported"}), UUID)
    assert probe.energy_source == "nvml power"
    assert probe.read().energy_j is None
    assert probe.reasons == ["energy counter: Not Supported"]


def test_an_unsupported_counter_is_not_read_again():
    nvml = FakeNvml(failing={"utilisation": "Not Supported"})
    probe = NvmlProbe(nvml, UUID)
    readings = [probe.read() for _ in range(3)]
    assert nvml.asked.count("utilisation") == 1
    assert [(reading.utilisation, reading.power_w) for reading in readings] == [(None, 250.0)] * 3
    assert probe.reasons == ["utilisation: Not Supported"]


def test_a_device_that_vanishes_is_given_up_after_three_readings():
    nvml = FakeNvml()
    probe = NvmlProbe(nvml, UUID)
    assert probe.read().utilisation == 0.8
    nvml.failing = dict.fromkeys(("utilisation", "memory", "power", "energy"), "GPU is lost")
    before = len(nvml.asked)
    for _ in range(6):
        assert probe.read() == probes.Reading()
    assert len(nvml.asked) - before == 4 * 3
    assert sorted(probe.reasons) == [
        f"{name}: GPU is lost" for name in ("energy counter", "memory", "power", "utilisation")
    ]


def test_a_counter_that_fails_once_is_read_again():
    nvml = FakeNvml()
    probe = NvmlProbe(nvml, UUID)
    probe.read()
    nvml.failing = {"utilisation": "Timeout"}
    assert probe.read().utilisation is None
    nvml.failing = {}
    assert probe.read().utilisation == 0.8
    assert probe.reasons == []


@pytest.mark.parametrize("nvml", [FakeNvml(known=f"MIG-{UUID}"), FakeNvml(mig=True)])
def test_only_the_memory_of_a_mig_slice_is_read(nvml):
    probe = NvmlProbe(nvml, UUID)
    assert probe.read() == probes.Reading(memory_bytes=5 * 2**30)
    assert probe.energy_source is None
    assert "MIG" in probe.reasons[0]


def test_a_gpu_without_mig_is_not_a_slice():
    assert NvmlProbe(FakeNvml(failing={"mig mode": "Not Supported"}), UUID).read().utilisation == 0.8


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    return torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("nvml", "expected"),
    [
        (FakeNvml(failing={"init": "Driver Not Loaded"}), "Driver Not Loaded"),
        (FakeNvml(failing={"init": "Insufficient Permissions"}), "Insufficient Permissions"),
        (FakeNvml(known="GPU-another"), "Not Found"),
    ],
)
def test_an_error_of_nvml_becomes_a_reason(monkeypatch, cuda, nvml, expected):
    monkeypatch.setattr(probes, "require", lambda module, extra: nvml)
    probe, reason = make_probe(cuda, Place(1, 1, 2))
    assert probe is None
    assert expected in str(reason)


def test_without_the_package_the_reason_names_the_extra(monkeypatch, cuda):
    def missing(module: str, *, extra: str) -> None:
        raise MissingDependency(
            f"{module} is not installed; pip install 'paratune[{extra}]'", code="dependency.missing"
        )

    monkeypatch.setattr(probes, "require", missing)
    probe, reason = make_probe(cuda, Place(0, 0, 1))
    assert probe is None
    assert reason == "pynvml is not installed; pip install 'paratune[gpu]'"


def test_the_device_is_found_by_its_uuid(monkeypatch, cuda):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(probes, "require", lambda module, extra: FakeNvml())
    probe, reason = make_probe(cuda, Place(1, 1, 2))
    assert reason is None
    assert probe is not None
    assert probe.read().utilisation == 0.8


def domain(folder: Path, name: str, uj: int, most: int = 1_000_000_000) -> Path:
    folder.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", str(uj)), ("max_energy_range_uj", str(most))):
        (folder / file).write_text(f"{text}\n")
    return folder


def test_the_energy_of_a_machine_is_the_sum_of_packages_and_memory(tmp_path):
    domain(tmp_path / "intel-rapl:0", "package-0", 7_000_000)
    domain(tmp_path / "intel-rapl:0:0", "core", 5_000_000)
    domain(tmp_path / "intel-rapl:0:1", "dram", 2_000_000)
    domain(tmp_path / "intel-rapl:1", "package-1", 1_000_000)
    domain(tmp_path / "intel-rapl:2", "psys", 90_000_000)
    domain(tmp_path / "intel-rapl-mmio:0", "package-0", 7_000_000)
    assert [path.name for path in rapl_domains(tmp_path)] == ["intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1"]
    probe = CpuProbe(num_cores=2, is_first=True, powercap=tmp_path)
    assert probe.energy_source == "rapl"
    assert probe.read().energy_j == 10.0
    assert CpuProbe(num_cores=2, is_first=False, powercap=tmp_path).read().energy_j is None


def test_an_overflow_of_an_energy_counter_is_corrected(tmp_path):
    folder = domain(tmp_path / "intel-rapl:0", "package-0", 999_000_000)
    counter = RaplCounter(folder)
    begin = counter.read_j()
    (folder / "energy_uj").write_text("1500000")
    # 1000 J - 999 J, and 1.5 J more.
    assert counter.read_j() - begin == pytest.approx(2.5)


def test_energy_that_only_root_may_read_is_unknown(tmp_path, monkeypatch):
    domain(tmp_path / "intel-rapl:0", "package-0", 7)

    def refuse(counter: RaplCounter) -> float:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(RaplCounter, "read_j", refuse)
    probe = CpuProbe(num_cores=2, is_first=True, powercap=tmp_path)
    assert (probe.energy_source, probe.read().energy_j) == (None, None)
    assert "Permission denied" in probe.reasons[0]


def test_busy_time_is_divided_by_the_cores_of_the_rank(tmp_path):
    probe = CpuProbe(num_cores=4, is_first=True, powercap=tmp_path)
    outer_begin, before, inner_begin = time.process_time(), probe.read(), time.process_time()
    while time.process_time() - inner_begin < 0.2:
        pass
    inner_end, after, outer_end = time.process_time(), probe.read(), time.process_time()
    assert before.busy_s is not None
    assert after.busy_s is not None
    busy_s = 4 * (after.busy_s - before.busy_s)
    assert 0.999 * (inner_end - inner_begin) <= busy_s <= 1.001 * (outer_end - outer_begin)
    assert after.machine_busy_s is not None
    assert after.memory_bytes is not None
    assert after.memory_bytes > 2**20
    assert str(tmp_path) in probe.reasons[0]


def test_the_time_of_children_counts_even_after_they_end(tmp_path):
    probe = CpuProbe(num_cores=1, is_first=False, powercap=tmp_path)
    with busy_child() as child:
        own, before = time.process_time(), probe.read().busy_s
        let_it_work(child)
        with_child = probe.read().busy_s
        own = time.process_time() - own
        child.communicate()
    assert before is not None
    assert with_child is not None
    assert with_child - before - own > 0.25
    after = probe.read().busy_s
    assert after is not None
    assert after >= with_child


def test_a_child_counts_only_from_the_time_when_it_is_found(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(probes.time, "monotonic", lambda: now)
    probe = CpuProbe(num_cores=1, is_first=False, powercap=tmp_path)
    probe.read()
    with busy_child() as child:
        let_it_work(child)
        own, before = time.process_time(), probe.read().busy_s
        now = 1.5  # children are looked for after 1 s, then after 2, and so on
        busy_s = probe.read().busy_s
        own = time.process_time() - own
        let_it_work(child)
        after = probe.read().busy_s
        child.communicate()
    assert before is not None
    assert busy_s is not None
    assert after is not None
    assert busy_s - before < own + 0.1, "0.3 s of before it was found are not in the sample in which it was"
    assert after - busy_s > 0.25


def busy_child() -> subprocess.Popen[bytes]:
    """Start a process that computes for 0.3 s for each line that it is told."""
    code = (
        "import sys, time\n"
        "for line in sys.stdin:\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    print('done', flush=True)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def let_it_work(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"work\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"done\n"


def test_the_cores_of_a_machine_are_divided_among_its_ranks(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(probes.hardware, "usable_cores", lambda: 8)
    probe, reason = make_probe(torch.device("cpu"), Place(1, 1, 4))
    assert isinstance(probe, CpuProbe)
    assert reason is None
    assert (probe._num_cores, probe.is_energy_here) == (4, False)
    assert probe._own.pid == os.getpid()
