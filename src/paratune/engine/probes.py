"""Reads counters of a rank's device: an NVIDIA GPU through NVML, or the rank's share of the CPU cores.

Each rank reads its own device: a container or a job step often cannot see other devices, and no other process has
the number of the rank's device. A counter that fails is not read again, and the reason is stored; no error is raised.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch

from paratune import hardware
from paratune.errors import MissingDependency, require
from paratune.processes.place import Place, local_world_size

T = TypeVar("T")
EnergySource = Literal["nvml counter", "nvml power", "rapl"]
NVML_WINDOW_S = 1.0
"""NVML's utilisation covers the last 1/6 to 1 second, depending on the GPU (nvmlUtilization_t)."""
_MAX_FAILURES = 3
"""A counter that has worked is given up after this number of failures in a row."""
_POWERCAP = Path("/sys/class/powercap")
_CHILDREN_S = 30.0
"""Longest interval between searches for child processes, which read all of /proc; the first intervals are shorter."""


@dataclass(frozen=True)
class Reading:
    """Gauges, and counters of which only differences matter; None if unsupported or failed."""

    utilisation: float | None = None
    """Share of the last `window_s` in which the device was busy."""
    busy_s: float | None = None
    """Counter of the device's busy time, for probes without `utilisation`."""
    machine_busy_s: float | None = None
    """Counter of the busy time of all cores of the machine, for any process, divided by the number of cores."""
    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Counter."""


class DeviceProbe(Protocol):
    """Reads a device."""

    kind: Literal["nvml", "cpu"]
    window_s: float
    """The time that `Reading.utilisation` covers."""
    is_energy_here: bool
    """Whether this rank measures energy: only one of the ranks that share a machine's counter does."""
    energy_source: EnergySource | None
    reasons: list[str]
    """Why values are unknown; more reasons may be added later."""

    def read(self) -> Reading: ...


class _Counters:
    """Runs queries by name; stops a query that fails permanently."""

    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons
        self._failures: dict[str, int] = {}
        self._worked: set[str] = set()

    def ask(self, name: str, query: Callable[[], T]) -> T | None:
        if self._failures.get(name, 0) >= _MAX_FAILURES:
            return None
        try:
            value = query()
        except Exception as error:  # NVML or the operating system may raise anything
            failures = self._failures.get(name, 0) + 1 if name in self._worked else _MAX_FAILURES
            self._failures[name] = failures
            if failures >= _MAX_FAILURES:
                self._reasons.append(f"{name}: {error or type(error).__name__}")
            return None
        self._worked.add(name)
        self._failures[name] = 0
        return value


class NvmlProbe:
    """An NVIDIA GPU, found by its UUID, so that CUDA_VISIBLE_DEVICES and the order of devices do not matter.

    For a slice of a GPU (MIG) only the memory is read: NVML has no utilisation, and only the power of the whole GPU.
    """

    kind: Literal["nvml", "cpu"] = "nvml"
    window_s = NVML_WINDOW_S
    is_energy_here = True

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Find the device by its UUID from PyTorch, without a prefix; `nvml` is the module `pynvml` of nvidia-ml-py.

        Raises:
            Exception: An error of NVML: no driver, no such device, or no permission.
        """
        self.reasons: list[str] = []
        self._nvml, self._counters = nvml, _Counters(self.reasons)
        nvml.nvmlInit()
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except nvml.NVMLError:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        self._is_slice = self._shares_the_gpu()
        self.energy_source: EnergySource | None = None
        if self._is_slice:
            self.reasons.append("NVML reports neither utilisation nor power for a MIG slice of a GPU")
        elif self._counters.ask("energy counter", self._energy_j) is not None:
            self.energy_source = "nvml counter"
        elif self._counters.ask("power", self._power_w) is not None:
            self.energy_source = "nvml power"

    def read(self) -> Reading:
        ask = self._counters.ask
        memory_bytes = ask("memory", lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))
        if self._is_slice:
            return Reading(memory_bytes=memory_bytes)
        by_counter = self.energy_source == "nvml counter"
        return Reading(
            utilisation=ask("utilisation", lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100),
            memory_bytes=memory_bytes,
            power_w=ask("power", self._power_w),
            energy_j=ask("energy counter", self._energy_j) if by_counter else None,
        )

    def _power_w(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000

    def _energy_j(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000

    def _shares_the_gpu(self) -> bool:
        """Return whether the device is a slice; PyTorch may give the UUID of the whole GPU for a slice."""
        try:
            if self._nvml.nvmlDeviceIsMigDeviceHandle(self._handle):
                return True
            current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle)
        except self._nvml.NVMLError:  # a GPU without MIG
            return False
        return bool(current)


class CpuProbe:
    """The cores of a rank: the usable cores of the machine divided by the ranks on it.

    Busy time is the CPU time of this process and its children. The first rank of a machine also reads the busy time of
    the whole machine and the energy of its processors (RAPL: packages and, if available, memory, for all processes).
    """

    kind: Literal["nvml", "cpu"] = "cpu"
    window_s = 0.0

    def __init__(self, *, num_cores: float, is_first: bool, powercap: Path = _POWERCAP) -> None:
        """Find the counters. `num_cores` of the rank may be a fraction.

        Only the first rank of a machine (`is_first`) reads energy, from the folder `powercap` of the kernel.
        """
        import psutil

        self.reasons: list[str] = []
        self.is_energy_here = is_first
        self._psutil, self._counters = psutil, _Counters(self.reasons)
        self._num_cores = num_cores
        self._own = psutil.Process()
        self._children: dict[Any, float] = {}
        """CPU time of each child process when it was found; it is subtracted, as it was before all samples."""
        self._children_busy_s: dict[Any, float] = {}
        self._next_search_s, self._search_interval_s = 0.0, 1.0
        self._domains = rapl_domains(powercap) if is_first else []
        self._joules = [RaplCounter(domain) for domain in self._domains]
        self.energy_source: EnergySource | None = "rapl" if self._joules else None
        if is_first and not self._joules:
            self.reasons.append(f"energy: this machine does not report the energy of its processors ({powercap})")
        elif self._counters.ask("energy", self._energy_j) is None:
            self.energy_source = None

    def read(self) -> Reading:
        ask = self._counters.ask
        return Reading(
            busy_s=ask("utilisation", lambda: (time.process_time() + self._read_children_s()) / self._num_cores),
            machine_busy_s=ask("utilisation of the machine", self._machine_busy_s) if self.is_energy_here else None,
            memory_bytes=ask("memory", hardware.resident_memory_bytes),
            energy_j=ask("energy", self._energy_j) if self.energy_source else None,
        )

    def _read_children_s(self) -> float:
        """Return the CPU time of child processes since they were found; for ended processes the last known value."""
        now = time.monotonic()
        if now >= self._next_search_s:
            self._next_search_s = now + self._search_interval_s
            self._search_interval_s = min(2 * self._search_interval_s, _CHILDREN_S)
            for child in self._own.children(recursive=True):
                if child not in self._children:
                    with contextlib.suppress(self._psutil.Error):  # it has ended in the meantime
                        self._children[child] = _busy_s(child)
        for child, begin_s in list(self._children.items()):
            try:
                self._children_busy_s[child] = _busy_s(child) - begin_s
            except self._psutil.Error:
                del self._children[child]
        return sum(self._children_busy_s.values())

    def _machine_busy_s(self) -> float:
        times = self._psutil.cpu_times()
        # `user` and `nice` already contain the time of virtual machines.
        names = ("user", "nice", "system", "irq", "softirq", "steal")
        return float(sum(getattr(times, name, 0.0) for name in names)) / (self._psutil.cpu_count() or 1)

    def _energy_j(self) -> float:
        return sum(counter.read_j() for counter in self._joules)


def _busy_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class RaplCounter:
    """An energy counter of the kernel's powercap, corrected for overflows."""

    def __init__(self, domain: Path) -> None:
        self._domain = domain
        self._before: int | None = None
        self._overflow_uj = 0

    def read_j(self) -> float:
        """Return joules since an unknown time before the first reading.

        Raises:
            OSError: The counter cannot be read; on most kernels only root can.
        """
        now = int((self._domain / "energy_uj").read_text())
        if self._before is not None and now < self._before:
            self._overflow_uj += int((self._domain / "max_energy_range_uj").read_text())
        self._before = now
        return (now + self._overflow_uj) / 1e6


def rapl_domains(powercap: Path) -> list[Path]:
    """Return the folders of the processors' packages and memory; a package's energy does not include the memory's."""
    domains = []
    for domain in sorted(powercap.glob("intel-rapl:*")):  # AMD's too
        try:
            name = (domain / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package") or name == "dram":
            domains.append(domain)
    return domains


def make_probe(device: torch.device, place: Place) -> tuple[DeviceProbe | None, str | None]:
    """Return the probe of this rank's device, or None and the reason."""
    if device.type != "cuda":
        num_cores = (hardware.usable_cores() or 1) / local_world_size(place)
        return CpuProbe(num_cores=num_cores, is_first=place.local_rank == 0), None
    try:
        nvml = require("pynvml", extra="gpu")
        return NvmlProbe(nvml, str(torch.cuda.get_device_properties(device).uuid)), None
    except MissingDependency as error:
        return None, str(error)
    except Exception as error:  # NVML's errors: no driver, a GPU of another vendor, no permission
        return None, f"NVML reports nothing for this GPU: {error or type(error).__name__}"
