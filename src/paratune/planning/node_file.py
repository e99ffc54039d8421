"""Writes the constants of a node to a device file, with which a plan on another machine predicts this kind of node."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.base.units import GIB
from paratune.config.plain import yaml_lines
from paratune.errors import CheckpointError, os_error_as
from paratune.hardware.gpus import describe_gpus
from paratune.planning.constants import Constants
from paratune.planning.machine import Machine


def node_values(machine: Machine, by_threads: Mapping[int, Constants], num_devices: int) -> dict[str, Any]:
    """Return the options of the device file of a measured node; see `machine_file.MachineFile`.

    Args:
        machine: This machine.
        by_threads: Measured constants by the threads of a process.
        num_devices: Accelerators of the node.
    """
    values: dict[str, Any] = {"name": machine.name}
    if machine.is_cuda:
        values |= {} if machine.device is None else {"device": machine.device.key}
        values |= {"devices_per_node": num_devices} if num_devices else {}
        values |= {} if machine.host_memory_bytes is None else {"host_memory_gib": machine.host_memory_bytes / GIB}
    else:
        values |= {"cores": float(machine.num_cores or 1)}
    if machine.memory_bytes is not None:
        values["memory_gib"] = machine.memory_bytes / GIB
    calibration = {str(threads): constants.as_json() for threads, constants in sorted(by_threads.items())}
    return {**values, "calibration": calibration}


def write_node_file(path: Path, machine: Machine, by_threads: Mapping[int, Constants]) -> None:
    """Write the device file of this node.

    Raises:
        CheckpointError: The file exists or cannot be written.
    """
    values = node_values(machine, by_threads, len(describe_gpus() or ()))
    calibration = values.pop("calibration")
    lines = [line.removesuffix("  # ") for line in yaml_lines(values, lambda key: "")]
    lines += ["calibration:"]
    for threads, constants in calibration.items():
        lines.append(f'  "{threads}":')
        # JSON is YAML; one line for each constant.
        lines += [f"    {name}: {json.dumps(constant)}" for name, constant in constants.items()]
    text = "\n".join(["# Measured by paratune plan --calibrate.", *lines]) + "\n"
    failed = os_error_as(CheckpointError, f"{path} cannot be written", "name another file", code="output.not_writable")
    with failed, path.open("x", encoding="utf-8") as file:
        file.write(text)
