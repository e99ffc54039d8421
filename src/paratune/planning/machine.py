"""The machine of a plan: a listed device, a device file, the machine of a measured run, or that of this process.

A device file is YAML that describes a listed device with other values, or a device that is not listed. No torch.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.units import GIB, parse_count
from paratune.config.problems import Problem
from paratune.config.section import NonNegative, Positive, PositiveFloat, Section, Text
from paratune.config.section_file import read_section_file
from paratune.errors import ConfigError, did_you_mean
from paratune.hardware.devices import ARITHMETICS, DEVICES, Device, find_device
from paratune.hardware.gpus import describe_gpus
from paratune.planning.constants import Constants, assumed_constants

_FILE_SUFFIXES = (".yaml", ".yml")
_GIGA, _TERA, _GIGABIT = 1e9, 1e12, 1e9 / 8
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
    """None if its speed is unknown: a CPU or an unlisted device, before a fit to a run on it."""
    price_per_hour: float | None = None
    """Price of one device, in the user's currency."""
    num_cores: float | None = None
    """Cores that the ranks share, for a CPU."""
    devices_per_node: int | None = None
    """None for a CPU, whose processes share one node."""

    @property
    def has_links(self) -> bool:
        """Whether all devices of a node have NVLink or the like; a bridge connects two cards, if there is one."""
        return self.device is not None and self.device.link_kind not in (None, "nvlink bridge")

    def threads_of_rank(self, ranks_per_node: int) -> int:
        """Return the threads of a rank on a CPU: OMP_NUM_THREADS, else its share of the cores; 1 with accelerators.

        `paratune train --nproc` uses the same number.
        """
        if self.is_cuda:
            return 1
        given = parse_count(os.environ.get("OMP_NUM_THREADS"))
        return given or max(1, int((self.num_cores or 1) // ranks_per_node))

    def is_same_kind(self, other: "Machine") -> bool:
        """Return whether figures measured on one are valid for the other: equal devices, or equal CPUs and cores."""
        if self.device is None or other.device is None:
            return (self.is_cuda, self.name, self.num_cores) == (other.is_cuda, other.name, other.num_cores)
        return self.device.key == other.device.key

    @property
    def description(self) -> str:
        """The name, and for a CPU its number of cores."""
        return self.name if self.num_cores is None else f"{self.name} ({self.num_cores:g} cores)"


class PeakTflops(Section):
    """Peak rate of one device, without sparsity, in 1e12 operations per second."""

    fp64: PositiveFloat | None = None
    """In float64."""
    fp32: PositiveFloat | None = None
    """In float32."""
    tf32: PositiveFloat | None = None
    """In TF32."""
    fp16: PositiveFloat | None = None
    """In float16, with sums in float32."""
    bf16: PositiveFloat | None = None
    """In bfloat16, with sums in float32."""


class MachineFile(Section):
    """A machine; options that are not given have the value of the listed device."""

    name: Text | None = None
    """Name in tables; the file's name when not given."""
    device: Text | None = None
    """A listed device. Without one, memory_gib, memory_gb_per_s and peak_tflops are needed."""
    memory_gib: PositiveFloat | None = None
    """Memory of one device, in GiB."""
    memory_gb_per_s: PositiveFloat | None = None
    """Bandwidth of its memory, in 1e9 bytes a second."""
    peak_tflops: PeakTflops | None = None
    """Peak rate of one device, by arithmetic."""
    link_gb_per_s: PositiveFloat | None = None
    """From a device to the others of its machine, one direction, all links together; without it the link is PCIe."""
    pcie_gb_per_s: PositiveFloat | None = None
    """Between host and device, one direction, in 1e9 bytes a second."""
    network_gbit_per_s: PositiveFloat | None = None
    """Between machines, one direction, all adapters of a machine together, in 1e9 bits a second."""
    devices_per_node: Positive | None = None
    """Devices of one node; 8 when not given."""
    price_per_hour: NonNegative | None = None
    """Price of one device."""


def find_machine(name: str) -> Machine:
    """Return the machine of a listed device, such as "a100-40gb", or of a YAML file that describes it.

    Raises:
        ConfigError: The device is not listed, or the file has problems; the text lists them with their lines.
    """
    if name.lower().endswith(_FILE_SUFFIXES):
        return _machine_of_file(Path(name))
    device = find_device(name)
    if device is None:
        asked, keys = name.lower().replace("_", "-"), [device.key for device in DEVICES]
        family = [key for key in keys if key.startswith((f"{asked}-", f"{asked.rpartition('-')[0] or asked}-"))]
        hint = f"; there are {', '.join(family)}" if family else did_you_mean(asked, keys)
        remedy = "describe another one in a file (docs/howto/plan.md#a-machine-of-your-own) and give its path"
        text = f"{name} is not a listed device{hint}; listed: {', '.join(keys)}; {remedy}"
        raise ConfigError(text, code="plan.unknown_device", name=name)
    return _machine_of_device(device, name)


def this_machine() -> Machine:
    """Return the machine that this process runs on: its first GPU, or its CPU."""
    return machine_of_node(
        {
            "gpus": describe_gpus(),
            "cpu_model": hardware.cpu_model(),
            "num_usable_cores": hardware.usable_cores(),
            "ram_bytes": hardware.total_memory_bytes(),
        }
    )


def machine_of_node(node: Mapping[str, Any]) -> Machine:
    """Return the machine of a node that `hardware.describe_node` describes: its first GPU, or its CPU."""
    if gpus := node.get("gpus"):
        name, memory_bytes = gpus[0]["name"], gpus[0]["memory_bytes"]
        if (device := find_device(name)) is not None:
            return _machine_of_device(device, name, memory_bytes=memory_bytes)
        return Machine(name, None, True, memory_bytes, constants=None, devices_per_node=DEVICES_PER_NODE)
    sizes = [size for size in (node.get("ram_bytes"), node.get("ram_limit_bytes")) if size]
    memory_bytes = int(min(sizes)) if sizes else None
    cores = node.get("num_usable_cores")
    return Machine(node.get("cpu_model") or "CPU", None, False, memory_bytes, constants=None, num_cores=cores)


def _machine_of_device(
    device: Device, name: str, network_bytes_per_s: float | None = None, memory_bytes: int | None = None
) -> Machine:
    return Machine(
        name=name,
        device=device,
        is_cuda=True,
        memory_bytes=usable_bytes(device, memory_bytes or device.memory_bytes),
        constants=assumed_constants(device, network_bytes_per_s),
        devices_per_node=DEVICES_PER_NODE,
    )


def _machine_of_file(path: Path) -> Machine:
    """Return the machine that a file describes.

    Raises:
        ConfigError: The file cannot be read, or has problems; the text lists all of them with their lines.
    """
    described = read_section_file(path, MachineFile, "a device file", _problems)
    name, network = described.name or path.stem, described.network_gbit_per_s
    return replace(
        _machine_of_device(_device_of_file(described, name), name, None if network is None else network * _GIGABIT),
        price_per_hour=described.price_per_hour,
        devices_per_node=described.devices_per_node or DEVICES_PER_NODE,
    )


def _problems(values: dict[str, Any], _: dict[str, Any], is_valid: bool) -> list[Problem]:
    """Return the problems of values with the right types; combinations are checked only if all options are valid."""
    described = MachineFile.model_validate(values)
    name = described.device
    if name is not None and find_device(name) is None:
        keys = [device.key for device in DEVICES]
        message = f"device is {name}, which is not listed{did_you_mean(name, keys)}; listed: {', '.join(keys)}"
        return [Problem(message, ("device",), code="plan.unknown_device")]
    missing = [key for key in ("memory_gib", "memory_gb_per_s", "peak_tflops") if getattr(described, key) is None]
    if is_valid and missing and name is None:
        text = f"without device, {', '.join(missing)} must be given; or name a listed device"
        return [Problem(text, code="config.required")]
    return []


def _device_of_file(described: MachineFile, name: str) -> Device:
    """Return the listed device, or a new one, with the values of the file."""
    base = find_device(described.device) if described.device is not None else None
    given: dict[str, Any] = {}
    if described.memory_gib is not None:
        given["memory_bytes"] = int(described.memory_gib * GIB)
    if described.link_gb_per_s is not None:
        given |= {"link_kind": "nvlink", "link_bytes_per_s": described.link_gb_per_s * _GIGA}
    for key in ("memory", "pcie"):
        if (rate := getattr(described, f"{key}_gb_per_s")) is not None:
            given[f"{key}_bytes_per_s"] = rate * _GIGA
    for arithmetic in ARITHMETICS if described.peak_tflops is not None else ():
        if (peak := getattr(described.peak_tflops, arithmetic)) is not None:
            given[arithmetic] = peak * _TERA
    return replace(base or Device(name, (), f"{name}, described by its owner", 0), **given)


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
