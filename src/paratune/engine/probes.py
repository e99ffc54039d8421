"""What the sampler reads of a rank's device: an NVIDIA GPU by NVML, or the part of a machine's cores that it has.

Each rank looks at its own device: it is the one process that surely may see it (a container or a job step is often
shown no other), and it knows which of the machine's devices it has. A counter that fails is left alone, with the reason
noted; no failure leaves this module.
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
"""NVML's utilisation is that of the last 1/6 to 1 second, depending on the GPU (nvmlUtilization_t)."""
_MOST_FAILURES = 3
"""Times in a row that a counter may fail which has worked before."""
_POWERCAP = Path("/sys/class/powercap")
_CHILDREN_S = 30.0
"""How often child processes are looked for, after more often at first: that reads all of /proc."""


@dataclass(frozen=True)
class Reading:
    """Gauges, and counters that only differences are taken of; None where there is none or it failed."""

    utilisation: float | None = None
    """Share of the last `window_s` in which the device was busy."""
    busy_s: float | None = None
    """Counter of the device's busy time, for probes without that gauge."""
    machine_busy_s: float | None = None
    """Counter: the busy time of all of the machine's cores over their number, whoever keeps them busy."""
    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Counter."""


class DeviceProbe(Protocol):
    """Reads a device."""

    kind: Literal["nvml", "cpu"]
    window_s: float
    """What `Reading.utilisation` looks back on."""
    is_energy_here: bool
    """Whether this rank is to measure energy: of the ranks that share a machine's counter one does."""
    energy_source: EnergySource | None
    reasons: list[str]
    """Why something is not known; grows."""

    def read(self) -> Reading: ...


class _Counters:
    """Queries by name, each given up after it has failed for good."""

    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons
        self._failures: dict[str, int] = {}
        self._worked: set[str] = set()

    def ask(self, name: str, query: Callable[[], T]) -> T | None:
        if self._failures.get(name, 0) >= _MOST_FAILURES:
            return None
        try:
            value = query()
        except Exception as error:  # of NVML, of the operating system
            failures = self._failures.get(name, 0) + 1 if name in self._worked else _MOST_FAILURES
            self._failures[name] = failures
            if failures >= _MOST_FAILURES:
                self._reasons.append(f"{name}: {error or type(error).__name__}")
            return None
        self._worked.add(name)
        self._failures[name] = 0
        return value


class NvmlProbe:
    """An NVIDIA GPU, by its UUID, so that CUDA_VISIBLE_DEVICES and the order of devices do not matter.

    Of a slice of a GPU (MIG) NVML tells the memory alone: utilisation is not supported, and power is the whole GPU's.
    """

    kind: Literal["nvml", "cpu"] = "nvml"
    window_s = NVML_WINDOW_S
    is_energy_here = True

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Find the device.

        Args:
            nvml: The module `pynvml` of the package nvidia-ml-py.
            uuid: As PyTorch has it, without a prefix.

        Raises:
            Exception: What NVML raises when there is no driver, no such device, or no permission.
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
        """Say whether the device is a slice; PyTorch may know a slice by the UUID of its GPU."""
        try:
            if self._nvml.nvmlDeviceIsMigDeviceHandle(self._handle):
                return True
            current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle)
        except self._nvml.NVMLError:  # GPUs that know no slices
            return False
        return bool(current)


class CpuProbe:
    """The cores that a rank has: those that its machine's processes may use over the ranks on the machine.

    Busy is the CPU time of this process and its children. The first rank of a machine also reads how busy all of it is,
    and the energy of its processors (RAPL: of their packages and of memory where it is told, whoever uses them).
    """

    kind: Literal["nvml", "cpu"] = "cpu"
    window_s = 0.0

    def __init__(self, *, num_cores: float, is_first: bool, powercap: Path = _POWERCAP) -> None:
        """Find the counters.

        Args:
            num_cores: That this rank has; a fraction is possible.
            is_first: Whether this is the first rank of its machine.
            powercap: Where the kernel tells energy.
        """
        import psutil

        self.reasons: list[str] = []
        self.is_energy_here = is_first
        self._psutil, self._counters = psutil, _Counters(self.reasons)
        self._num_cores = num_cores
        self._own = psutil.Process()
        self._children: dict[Any, float] = {}
        """Of each its CPU time when it was found: what it took before is in no time that a sample covers."""
        self._children_busy_s: dict[Any, float] = {}
        self._look_for_children_at, self._look_again_s = 0.0, 1.0
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
            busy_s=ask("utilisation", lambda: (time.process_time() + self._of_children_s()) / self._num_cores),
            machine_busy_s=ask("utilisation of the machine", self._machine_busy_s) if self.is_energy_here else None,
            memory_bytes=ask("memory", hardware.resident_memory_bytes),
            energy_j=ask("energy", self._energy_j) if self.energy_source else None,
        )

    def _of_children_s(self) -> float:
        """Return the CPU time of child processes since they were found; of ended ones, what was last seen of them."""
        now = time.monotonic()
        if now >= self._look_for_children_at:
            self._look_for_children_at = now + self._look_again_s
            self._look_again_s = min(2 * self._look_again_s, _CHILDREN_S)
            for child in self._own.children(recursive=True):
                if child not in self._children:
                    with contextlib.suppress(self._psutil.Error):  # it has ended since
                        self._children[child] = _busy_s(child)
        for child, begin_s in list(self._children.items()):
            try:
                self._children_busy_s[child] = _busy_s(child) - begin_s
            except self._psutil.Error:
                del self._children[child]
        return sum(self._children_busy_s.values())

    def _machine_busy_s(self) -> float:
        times = self._psutil.cpu_times()
        # Time of guests is in user and nice already.
        names = ("user", "nice", "system", "irq", "softirq", "steal")
        return float(sum(getattr(times, name, 0.0) for name in names)) / (self._psutil.cpu_count() or 1)

    def _energy_j(self) -> float:
        return sum(counter.read_j() for counter in self._joules)


def _busy_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class RaplCounter:
    """An energy counter of the kernel's powercap, made one that does not begin anew."""

    def __init__(self, domain: Path) -> None:
        self._domain = domain
        self._before: int | None = None
        self._turned = 0

    def read_j(self) -> float:
        """Return joules since some time before the first reading.

        Raises:
            OSError: It cannot be read; most kernels show it to root alone.
        """
        now = int((self._domain / "energy_uj").read_text())
        if self._before is not None and now < self._before:
            self._turned += int((self._domain / "max_energy_range_uj").read_text())
        self._before = now
        return (now + self._turned) / 1e6


def rapl_domains(powercap: Path) -> list[Path]:
    """Return the folders of the processors' packages and of their memory, which is not in the packages' energy."""
    found = []
    for domain in sorted(powercap.glob("intel-rapl:*")):  # AMD's as well
        try:
            name = (domain / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package") or name == "dram":
            found.append(domain)
    return found


def make_probe(device: torch.device, place: Place) -> tuple[DeviceProbe | None, str | None]:
    """Return what reads this rank's device, or why nothing can."""
    if device.type != "cuda":
        num_cores = (hardware.usable_cores() or 1) / local_world_size(place)
        return CpuProbe(num_cores=num_cores, is_first=place.local_rank == 0), None
    try:
        nvml = require("pynvml", extra="nvml")
        return NvmlProbe(nvml, str(torch.cuda.get_device_properties(device).uuid)), None
    except MissingDependency as error:
        return None, str(error)
    except Exception as error:  # no driver, another vendor's GPU, no permission: NVML has an error for each
        return None, f"NVML reports nothing for this GPU: {error or type(error).__name__}"
