"""The machine of a plan: a listed device, the machine of a measured run, or that of this process. No torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paratune import hardware
from paratune.base.units import GIB, parse_count
from paratune.errors import ConfigError, did_you_mean
from paratune.hardware.devices import DEVICES, Device, find_device
from paratune.hardware.gpus import describe_gpus
from paratune.planning.constants import Constants, assumed_constants


@dataclass(frozen=True)
class Machine:
    """The device of a rank, and the links between ranks."""

    name: str
    """The requested name, or the name that the driver reports."""
    device: Device | None
    """From the table; None for a CPU, and for a device of this machine that is not listed."""
    is_cuda: bool
    """Whether ranks compute on accelerators; else on the cores of a CPU."""
    memory_bytes: int | None
    """Memory of one device that programs can use, CUDA's context included; for a CPU the memory of the node, which its
    ranks share. None if unknown."""
    constants: Constants | None
    """None if its speed is unknown: a CPU or an unlisted device, before a fit to a run on it."""
    price_per_hour: float | None = None
    """Price of one device, in the user's currency."""
    num_cores: float | None = None
    """Cores that the ranks share, for a CPU."""
    has_amx: bool = False
    """Whether it is a CPU that is known to have units for products of bf16 matrices."""

    def threads_of_rank(self, ranks_per_node: int) -> int:
        """Return the threads of a rank on a CPU: OMP_NUM_THREADS, else its share of the cores; 1 with accelerators.

        `paratune train --nproc` uses the same number.
        """
        if self.is_cuda:
            return 1
        given = parse_count(os.environ.get("OMP_NUM_THREADS"))
        return given or max(1, int((self.num_cores or 1) // ranks_per_node))

    @property
    def kind(self) -> str:
        """Equal on machines for which the same measurements are valid: the listed device, or a CPU with its cores."""
        if self.device is not None:
            return self.device.key
        return self.name if self.num_cores is None else f"{self.name} ({self.num_cores:g} cores)"


def find_machine(name: str) -> Machine:
    """Return the machine of a listed device, such as "a100-40gb".

    Raises:
        ConfigError: The device is not listed.
    """
    device = find_device(name)
    if device is None:
        asked, keys = name.lower().replace("_", "-"), [device.key for device in DEVICES]
        family = [key for key in keys if key.startswith((f"{asked}-", f"{asked.rpartition('-')[0] or asked}-"))]
        hint = f"; there are {', '.join(family)}" if family else did_you_mean(asked, keys)
        remedy = "for another one, give a run on it: --measured RUN"
        text = f"{name} is not a listed device{hint}; listed: {', '.join(keys)}; {remedy}"
        raise ConfigError(text, code="plan.unknown_device", name=name)
    return machine_of_node({"gpus": [{"name": name, "memory_bytes": device.memory_bytes}]})


def this_machine(*, on_cpu: bool = False) -> Machine:
    """Return the machine that this process runs on: its first GPU, or its CPU where it has none, or with `on_cpu`."""
    return machine_of_node(
        {
            "gpus": [] if on_cpu else describe_gpus(),
            "cpu_model": hardware.cpu_model(),
            "cpu_flags": hardware.cpu_flags(),
            "num_usable_cores": hardware.usable_cores(),
            "ram_bytes": hardware.total_memory_bytes(),
        }
    )


def machine_of_node(node: Mapping[str, Any]) -> Machine:
    """Return the machine of a node that `hardware.describe_node` describes: its first GPU, or its CPU."""
    if gpus := node.get("gpus"):
        name, memory_bytes = gpus[0]["name"], gpus[0]["memory_bytes"]
        if (device := find_device(name)) is None:
            return Machine(name, None, True, memory_bytes, constants=None)
        # The driver gives to programs a part of the nominal memory. Another number than that of the sheet is an answer
        # of the driver of this GPU, and stays.
        if memory_bytes in (None, 0, device.memory_bytes):
            gib, _ = _TOTAL_CAPACITY_GIB.get(device.key, (None, ""))
            memory_bytes = int(_OTHER_SHARE * device.memory_bytes if gib is None else gib * GIB)
        return Machine(name, device, True, memory_bytes, constants=assumed_constants(device))
    sizes = [size for size in (node.get("ram_bytes"), node.get("ram_limit_bytes")) if size]
    memory_bytes = int(min(sizes)) if sizes else None
    cores = node.get("num_usable_cores")
    has_amx, name = "amx_bf16" in (node.get("cpu_flags") or ()), node.get("cpu_model") or "CPU"
    return Machine(name, None, False, memory_bytes, constants=None, num_cores=cores, has_amx=has_amx)


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
