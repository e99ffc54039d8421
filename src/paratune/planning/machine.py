"""The machine of a plan: a listed device, a device file, or the machine that this process runs on.

No torch at import.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paratune import hardware
from paratune.base.units import GIB, parse_count
from paratune.errors import ConfigError, did_you_mean
from paratune.hardware.devices import DEVICES, Device, find_device
from paratune.hardware.gpus import describe_gpus
from paratune.planning.constants import Constants
from paratune.planning.machine_file import read_machine
from paratune.planning.uncalibrated import assumed_constants

_FILE_SUFFIXES = (".yaml", ".yml")
_GIGABIT = 1e9 / 8
DEVICES_PER_NODE = 8
"""Devices of a node if no file states another number."""


@dataclass(frozen=True)
class Machine:
    """The device of a rank, and the links between ranks."""

    name: str
    """The requested name, or the name that the driver reports."""
    device: Device | None
    """From the table or a file; None for a CPU, and for a device of this machine that is not listed."""
    is_cuda: bool
    """Whether ranks compute on accelerators; else on the cores of a CPU."""
    memory_bytes: int | None
    """Memory of one device that programs can use (`usable_bytes`); for a CPU the memory of the node, which its ranks
    share. None if unknown."""
    constants: Constants | None
    """None if its speed is unknown: a CPU that was not calibrated."""
    price_per_hour: float | None = None
    """Price of one device, in the user's currency."""
    tdp_w: float | None = None
    """Highest sustained power of one device."""
    num_cores: float | None = None
    """Cores that the ranks share, for a CPU."""
    is_calibrated: bool = False
    """Whether its constants were measured on it."""
    devices_per_node: int | None = None
    """None for a CPU, whose processes share one node."""
    host_memory_bytes: int | None = None
    """Memory of the host of a node with accelerators; None if unknown, and for a CPU."""
    by_threads: Mapping[int, Constants] = field(default_factory=dict, repr=False)
    """Measured constants by the threads of a process, for a CPU."""

    @property
    def has_links(self) -> bool:
        """Whether all devices of a node have NVLink or the like; a bridge connects two cards, if there is one."""
        return self.device is not None and self.device.link_kind not in (None, "nvlink bridge")

    def constants_for(self, ranks_per_node: int) -> Constants | None:
        """Return the constants of a rank, or None if they are unknown; the ranks of a CPU share its cores.

        For a CPU these were measured with the nearest number of threads, the smaller one of two.
        """
        if not self.by_threads:
            return self.constants
        return self.by_threads[self.threads_for(ranks_per_node)]

    def threads_for(self, ranks_per_node: int) -> int:
        """Return the measured number of threads that is nearest to the threads of a rank."""
        threads = threads_of_rank(ranks_per_node, self.num_cores)
        return min(self.by_threads, key=lambda measured: (abs(measured - threads), measured))

    def energy_j(self, num_ranks: int, seconds: float) -> float | None:
        """Return an upper bound of the energy: all devices at their power limit all the time; None if it is unknown."""
        return None if self.tdp_w is None else self.tdp_w * num_ranks * seconds


def find_machine(name: str) -> Machine:
    """Return the machine of a listed device, such as "a100-40gb", or of a YAML file that describes it.

    Raises:
        ConfigError: The device is not listed, or the file has problems; the text lists them with their lines.
    """
    if name.lower().endswith(_FILE_SUFFIXES):
        return _machine_of_file(Path(name))
    return _machine_of_device(known_device(name), name)


def known_device(name: str) -> Device:
    """Return a listed device.

    Raises:
        ConfigError: The device is not listed; the text lists all devices.
    """
    device = find_device(name)
    if device is None:
        keys = [device.key for device in DEVICES]
        asked = name.lower().replace("_", "-")
        similar_keys = _keys_of_family(asked, keys)
        hint = "" if similar_keys else did_you_mean(asked, keys)
        similar_keys = similar_keys or ([] if hint else _keys_of_family(asked.rpartition("-")[0], keys))
        hint = f"; there are {', '.join(similar_keys)}" if similar_keys else hint
        remedy = "describe another one in a file (docs/howto/plan.md#a-machine-of-your-own) and give its path"
        text = f"{name} is not a listed device{hint}; listed: {', '.join(keys)}; {remedy}"
        raise ConfigError(text, code="plan.unknown_device", name=name, keys=keys, similar=similar_keys)
    return device


def _keys_of_family(family: str, keys: Sequence[str]) -> list[str]:
    """Return the keys of a family, such as a100-40gb and a100-80gb for a100."""
    return [key for key in keys if family and key.startswith(f"{family}-")]


def this_machine() -> Machine:
    """Return the machine that this process runs on: its first GPU, or its CPU, with measured constants if any.

    Raises:
        ConfigError: The stored constants are damaged.
    """
    from paratune.planning.calibration import stored_constants

    machine = detect_machine()
    return with_measurements(machine, stored_constants(machine.name))


def detect_machine() -> Machine:
    """Return the machine that this process runs on, without measured constants."""
    gpus = describe_gpus() or []
    if gpus:
        gpu = _machine_of_gpu(gpus[0]["name"], gpus[0]["memory_bytes"])
        return replace(gpu, host_memory_bytes=hardware.total_memory_bytes())
    return Machine(
        name=hardware.cpu_model() or "CPU",
        device=None,
        is_cuda=False,
        memory_bytes=hardware.total_memory_bytes(),
        constants=None,
        num_cores=hardware.usable_cores(),
    )


def threads_of_rank(ranks_per_node: int, num_cores: float | None) -> int:
    """Return the threads of a rank on a CPU: OMP_NUM_THREADS, else its share of the cores.

    `paratune train --nproc` uses the same number.
    """
    given = parse_count(os.environ.get("OMP_NUM_THREADS"))
    return given or max(1, int((num_cores or 1) // ranks_per_node))


def with_measurements(machine: Machine, by_threads: Mapping[int, Constants]) -> Machine:
    """Return the machine with measured constants, by the threads of a process, instead of assumed ones.

    Without any, the machine is returned unchanged.
    """
    if not by_threads:
        return machine
    assumed = machine.constants or Constants()
    known = {threads: assumed.replaced(measured.by_name) for threads, measured in by_threads.items()}
    return replace(
        machine,
        constants=known[max(known)],
        is_calibrated=True,
        by_threads={} if machine.is_cuda else known,
    )


def _machine_of_device(
    device: Device, name: str, network_bytes_per_s: float | None = None, memory_bytes: int | None = None
) -> Machine:
    return Machine(
        name=name,
        device=device,
        is_cuda=True,
        memory_bytes=usable_bytes(device, memory_bytes or device.memory_bytes),
        constants=assumed_constants(device, network_bytes_per_s),
        tdp_w=device.tdp_w,
        devices_per_node=DEVICES_PER_NODE,
    )


def _machine_of_gpu(name: str, memory_bytes: int) -> Machine:
    device = find_device(name)
    if device is None:
        return Machine(name, None, True, memory_bytes, constants=None, devices_per_node=DEVICES_PER_NODE)
    return _machine_of_device(device, name, memory_bytes=memory_bytes)


def _machine_of_file(path: Path) -> Machine:
    described, device, by_threads = read_machine(path)
    name = described.name or path.stem
    if device is None:
        assert described.memory_gib is not None
        memory_bytes = int(described.memory_gib * GIB)
        node = Machine(name, None, is_cuda=False, memory_bytes=memory_bytes, constants=None, num_cores=described.cores)
    else:
        network = described.network_gbit_per_s
        node = _machine_of_device(device, name, None if network is None else network * _GIGABIT)
        host = described.host_memory_gib
        node = replace(
            node,
            devices_per_node=described.devices_per_node or DEVICES_PER_NODE,
            host_memory_bytes=None if host is None else int(host * GIB),
        )
    return with_measurements(replace(node, price_per_hour=described.price_per_hour), by_threads)


_TOTAL_CAPACITY_GIB = {
    "v100-16gb": (15.75, "Morizeyao/GPT2-Chinese#215"),
    "v100-16gb-pcie": (15.75, "Morizeyao/GPT2-Chinese#215"),
    "v100-32gb": (31.74, "haotian-liu/LLaVA#812"),
    "v100-32gb-pcie": (31.74, "haotian-liu/LLaVA#812"),
    "v100s": (31.74, "haotian-liu/LLaVA#812, of a V100"),
    "t4": (14.75, "hpcaitech/Open-Sora#697"),
    "rtx-4090": (23.64, "ali-vilab/VGen#104"),
    "rtx-5090": (31.37, "Wan-Video/Wan2.1#465"),
    "a10": (21.99, "zai-org/CogVLM#236"),
    "a30": (23.53, "google/RB-Modulation#5"),
    "a100-40gb": (39.50, "TianheWu/CoSeR#10"),
    "a100-80gb": (79.25, "levihsu/OOTDiffusion#235"),
    "h100-80gb": (79.11, "vllm-project/vllm#27508"),
    "h100-nvl": (93.00, "ali-vilab/VACE#56"),
}
"""GiB that PyTorch prints as the total capacity of the device in an out-of-memory error, and the issue on GitHub."""
_OTHER_SHARE = 0.97
"""Of the nominal memory, for devices that are not listed: those above have 0.92 to 0.99."""


def usable_bytes(device: Device | None, memory_bytes: int) -> int:
    """Return the bytes of a device that its driver gives to programs, context included.

    Args:
        device: The listed device; None if it is unknown.
        memory_bytes: Its memory; where it is not the nominal size of the listed device (a machine's file, or a GPU
            of this machine, whose driver was asked), this number is returned.
    """
    listed = None if device is None else find_device(device.key)
    if listed is None or memory_bytes != listed.memory_bytes:
        return memory_bytes
    if listed.key in _TOTAL_CAPACITY_GIB:
        return int(_TOTAL_CAPACITY_GIB[listed.key][0] * GIB)
    return int(_OTHER_SHARE * memory_bytes)
