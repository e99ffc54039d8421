"""A machine that one describes oneself, in YAML: a listed device with other figures, or a device that is not listed.

No torch.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paratune.base.units import GIB
from paratune.config.layers import read_text
from paratune.config.options import Option, options_of
from paratune.config.problems import Problem, failure
from paratune.config.section import NonNegative, PositiveFloat, Section, Text
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import Tree, read_tree
from paratune.errors import did_you_mean
from paratune.hardware.devices import ARITHMETICS, DEVICES, Device, find_device

_GIGA, _TERA = 1e9, 1e12


class PeakTflops(Section):
    """Most that one device computes, without sparsity, in 1e12 operations a second."""

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
    """A machine; what is not given is the listed device's."""

    name: Text | None = None
    """What it is called in tables; the file's name when not given."""
    device: Text | None = None
    """A listed device. Without one, memory_gib, memory_gb_per_s and peak_tflops are needed."""
    memory_gib: PositiveFloat | None = None
    """Memory of one device, in GiB."""
    memory_gb_per_s: PositiveFloat | None = None
    """Bandwidth of its memory, in 1e9 bytes a second."""
    peak_tflops: PeakTflops | None = None
    """Most that one device computes, by arithmetic."""
    link_gb_per_s: PositiveFloat | None = None
    """From a device to the others of its machine, one direction, all links together; PCIe is the link without it."""
    pcie_gb_per_s: PositiveFloat | None = None
    """Between host and device, one direction, in 1e9 bytes a second."""
    network_gbit_per_s: PositiveFloat | None = None
    """Between machines, one direction, all adapters of a machine together, in 1e9 bits a second."""
    tdp_w: PositiveFloat | None = None
    """Most power that one device draws in the long run."""
    price_per_hour: NonNegative | None = None
    """Of one device."""


def read_machine(path: Path) -> tuple[MachineFile, Device]:
    """Read a file that describes a machine.

    Returns:
        What it says, and the device with the file's figures in it.

    Raises:
        ConfigError: The file cannot be read, or has problems: all of them are in the text, each with its line.
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
        else:
            return described, _device(described, described.name or path.stem)
    raise failure(path, problems, str(path))


def _problems(tree: Tree) -> Iterator[Problem]:
    if not isinstance(tree.value, dict):
        known = ", ".join(options_of(MachineFile))
        yield Problem(
            f"a machine is a mapping of options ({known}), and this is {describe_value(tree.value)}",
            code="config.not_mapping",
        )
        return
    yield from _of_section(MachineFile, tree.value, "", tree)
    name = tree.value.get("device")
    if isinstance(name, str) and find_device(name) is None:
        keys = [device.key for device in DEVICES]
        message = f"device is {name}, which is not listed{did_you_mean(name, keys)}; listed: {', '.join(keys)}"
        yield Problem(message, place=tree.places.get("device"), code="plan.unknown_device")


def _of_section(section: type[Section], values: dict[Any, Any], prefix: str, tree: Tree) -> Iterator[Problem]:
    options = options_of(section)
    for key in values:
        if key not in options:
            near = did_you_mean(str(key), options) or f"; there are: {', '.join(options)}"
            yield Problem(
                f"{prefix}{key} is not a figure of a machine{near}",
                place=tree.places.get(f"{prefix}{key}"),
                code="config.unknown_key",
            )
    for key, option in options.items():
        if key in values:
            yield from _of_value(section, option, values[key], prefix, tree)


def _of_value(section: type[Section], option: Option, value: Any, prefix: str, tree: Tree) -> Iterator[Problem]:
    place = tree.places.get(f"{prefix}{option.key}")
    if option.sections and isinstance(value, dict):
        yield from _of_section(option.sections[0], value, f"{option.key}.", tree)
        return
    try:
        section.model_validate({option.key: value})
    except ValidationError:
        message = f"{prefix}{option.key} is {describe_value(value)}; allowed: {option.allowed}"
        yield Problem(message, place=place, code="config.invalid_value")


def _missing(described: MachineFile) -> list[str]:
    """Return what a device that is not listed needs and the file does not give."""
    if described.device is not None:
        return []
    needed = ("memory_gib", "memory_gb_per_s", "peak_tflops")
    return [key for key in needed if getattr(described, key) is None]


def _device(described: MachineFile, name: str) -> Device:
    """Return the listed device, or a new one, with the figures of the file."""
    base = find_device(described.device) if described.device is not None else None
    if base is None:
        base = Device(name, (), f"{name}, described by its owner", 0)
    given: dict[str, Any] = {}
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
