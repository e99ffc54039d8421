"""Device files: YAML that describes a listed device with other values, or a device that is not listed.

No torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.base.units import GIB, parse_count
from paratune.config.problems import Problem
from paratune.config.section import NonNegative, Positive, PositiveFloat, Section, Text
from paratune.config.section_file import read_section_file
from paratune.errors import did_you_mean
from paratune.hardware.devices import ARITHMETICS, DEVICES, Device, find_device
from paratune.planning.constants import Constants

_GIGA, _TERA = 1e9, 1e12


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
    tdp_w: PositiveFloat | None = None
    """Highest sustained power of one device."""
    devices_per_node: Positive | None = None
    """Devices of one node; 8 when not given."""
    host_memory_gib: PositiveFloat | None = None
    """Memory of the host of a node, in GiB."""
    cores: PositiveFloat | None = None
    """Cores of a node without accelerators, which then has no device; memory_gib is the memory of the node."""
    calibration: dict[str, Any] | None = None
    """Constants that paratune plan --calibrate --write measured, by the threads of a process ("1" for a GPU)."""
    price_per_hour: NonNegative | None = None
    """Price of one device."""


def read_machine(path: Path) -> tuple[MachineFile, Device | None, dict[int, Constants]]:
    """Read a file that describes a machine.

    Returns:
        The content of the file; the device with the file's values, None for a node without accelerators; and the
        measured constants by the threads of a process.

    Raises:
        ConfigError: The file cannot be read, or has problems; the text lists all of them with their lines.
    """
    described = read_section_file(path, MachineFile, "a device file", _problems)
    by_threads = _constants_by_threads(described.calibration or {})
    device = None if described.cores else _device(described, described.name or path.stem, by_threads)
    return described, device, by_threads


def _problems(values: dict[str, Any], _: dict[str, Any], is_valid: bool) -> list[Problem]:
    """Return the problems of values with the right types; combinations are checked only if all options are valid."""
    described = MachineFile.model_validate(values)
    name = described.device
    if name is not None and find_device(name) is None:
        keys = [device.key for device in DEVICES]
        message = f"device is {name}, which is not listed{did_you_mean(name, keys)}; listed: {', '.join(keys)}"
        return [Problem(message, ("device",), code="plan.unknown_device")]
    if not is_valid:
        return []
    if missing := _missing(described):
        text = f"without device, {', '.join(missing)} must be given; or name a listed device"
        return [Problem(text, code="config.required")]
    text = "has no effect with cores, which describes a node without accelerators"
    ignored = [] if described.cores is None else _unused_with_cores(described)
    problems = [Problem(f"{key} {text}", (key,), code="config.no_effect") for key in ignored]
    try:
        _constants_by_threads(described.calibration or {})
    except ValueError as error:
        problems.append(Problem(f"calibration: {error}", ("calibration",), code="plan.figures_damaged"))
    return problems


def _unused_with_cores(described: MachineFile) -> list[str]:
    """Return the given options that apply only to accelerators."""
    used = ("name", "memory_gib", "cores", "calibration", "price_per_hour")
    return [key for key in described.model_fields_set if key not in used and getattr(described, key) is not None]


def _constants_by_threads(calibration: Mapping[str, Any]) -> dict[int, Constants]:
    """Return measured constants by the threads of a process.

    Raises:
        ValueError: A number of threads, a name or a value is invalid.
    """
    by_threads = {}
    for key, values in calibration.items():
        threads = parse_count(key)
        if not threads:
            raise ValueError(f"{key} is not a number of threads")
        by_threads[threads] = Constants.from_json(values)
    return by_threads


def _missing(described: MachineFile) -> list[str]:
    """Return the missing options that a device that is not listed needs."""
    if described.device is not None and described.cores is None:
        return []
    needed: tuple[str, ...] = ("memory_gib", "memory_gb_per_s", "peak_tflops")
    if described.calibration or described.cores:
        needed = ("memory_gib",)
    return [key for key in needed if getattr(described, key) is None]


def _device(described: MachineFile, name: str, by_threads: Mapping[int, Constants]) -> Device:
    """Return the listed device, or a new one, with the values of the file.

    The peak rates of a device that is not listed are measured rates if the file gives no others.
    """
    given: dict[str, Any] = {}
    base = find_device(described.device) if described.device is not None else None
    if base is None:
        base = Device(name, (), f"{name}, described by its owner", 0)
        given = {
            arithmetic: constants[f"product.{arithmetic}"].value
            for constants in by_threads.values()
            for arithmetic in ARITHMETICS
            if f"product.{arithmetic}" in constants
        }
    if described.memory_gib is not None:
        given["memory_bytes"] = int(described.memory_gib * GIB)
    if described.link_gb_per_s is not None:
        given |= {"link_kind": "nvlink", "link_bytes_per_s": described.link_gb_per_s * _GIGA}
    for key in ("memory", "pcie"):
        if (rate := getattr(described, f"{key}_gb_per_s")) is not None:
            given[f"{key}_bytes_per_s"] = rate * _GIGA
    if described.tdp_w is not None:
        given["tdp_w"] = described.tdp_w
    for arithmetic in ARITHMETICS if described.peak_tflops is not None else ():
        if (peak := getattr(described.peak_tflops, arithmetic)) is not None:
            given[arithmetic] = peak * _TERA
    return replace(base, **given)
