"""Device files: YAML that describes a listed device with other values, or a device that is not listed.

No torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paratune.base.units import GIB, parse_count
from paratune.config.layers import read_text
from paratune.config.options import Option, section_options
from paratune.config.problems import Problem, failure
from paratune.config.section import NonNegative, Positive, PositiveFloat, Section, Text
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import Tree, read_tree
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
    tree = read_tree(read_text(path), str(path))
    problems = list(tree.problems) or list(_problems(tree))
    if not problems:
        described = MachineFile.model_validate(tree.value)
        if missing := _missing(described):
            problems = [
                Problem(
                    f"without device, {', '.join(missing)} must be given; or name a listed device",
                    code="config.required",
                )
            ]
        elif described.cores is not None and (ignored := _unused_with_cores(described)):
            problems = [
                Problem(
                    f"{key} has no effect with cores, which describes a node without accelerators",
                    place=tree.places.get(key),
                    code="config.no_effect",
                )
                for key in ignored
            ]
        else:
            try:
                by_threads = _constants_by_threads(described.calibration or {})
            except ValueError as error:
                place = tree.places.get("calibration")
                problems = [Problem(f"calibration: {error}", place=place, code="plan.figures_damaged")]
            else:
                device = None if described.cores else _device(described, described.name or path.stem, by_threads)
                return described, device, by_threads
    raise failure(path, problems, str(path))


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


def _problems(tree: Tree) -> Iterator[Problem]:
    if not isinstance(tree.value, dict):
        known = ", ".join(section_options(MachineFile))
        yield Problem(
            f"a machine is a mapping of options ({known}), and this is {describe_value(tree.value)}",
            code="config.not_mapping",
        )
        return
    yield from _section_problems(MachineFile, tree.value, "", tree)
    name = tree.value.get("device")
    if isinstance(name, str) and find_device(name) is None:
        keys = [device.key for device in DEVICES]
        message = f"device is {name}, which is not listed{did_you_mean(name, keys)}; listed: {', '.join(keys)}"
        yield Problem(message, place=tree.places.get("device"), code="plan.unknown_device")


def _section_problems(section: type[Section], values: dict[Any, Any], prefix: str, tree: Tree) -> Iterator[Problem]:
    options = section_options(section)
    for key in values:
        if key not in options:
            near = did_you_mean(str(key), options) or f"; there are: {', '.join(options)}"
            yield Problem(
                f"{prefix}{key} is not an option of a device file{near}",
                place=tree.places.get(f"{prefix}{key}"),
                code="config.unknown_key",
            )
    for key, option in options.items():
        if key in values:
            yield from _value_problems(section, option, values[key], prefix, tree)


def _value_problems(section: type[Section], option: Option, value: Any, prefix: str, tree: Tree) -> Iterator[Problem]:
    place = tree.places.get(f"{prefix}{option.key}")
    if option.sections and isinstance(value, dict):
        yield from _section_problems(option.sections[0], value, f"{option.key}.", tree)
        return
    try:
        section.model_validate({option.key: value})
    except ValidationError:
        message = f"{prefix}{option.key} is {describe_value(value)}; allowed: {option.allowed}"
        yield Problem(message, place=place, code="config.invalid_value")


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
