"""Measures the constants of a machine and stores them: a JSON file for each machine in the user's cache folder.

No torch at import. Measuring takes about half a minute for each number of threads of a CPU. On GPUs no result has been
checked yet: the code has run only on meta tensors that imitate CUDA tensors.
"""

import datetime
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune import hardware, records
from paratune.base.units import GIB, format_number, parse_count
from paratune.config.plain import yaml_lines
from paratune.errors import CheckpointError, ConfigError, os_error_as
from paratune.hardware.gpus import describe_gpus
from paratune.planning.constants import KINDS, BoundedConstant, Constants
from paratune.planning.machine import Machine, detect_machine, with_measurements

if TYPE_CHECKING:
    from paratune.planning.target import MeasuredDevice

SCHEMA_VERSION = 1
_LAUNCH_TEXTS = {
    "eager_host_s": "the host, for one call of a tiny kernel",
    "eager_device_s": "the device, for a tiny kernel that waits in its queue",
    "graph_device_s": "the device, for a tiny kernel of a CUDA graph that is replayed",
}
_UNITS = (("bytes/s", " GB/s", 1e9), ("FLOP/s", " GFLOP/s", 1e9), ("seconds", " us", 1e-6))
"""Unit and divisor with which a constant is shown, by the first word of its meaning."""


def node_kind(machine_name: str, node: Mapping[str, Any]) -> str:
    """Return the kind of a node, which its host name does not change.

    Args:
        machine_name: Name of its device.
        node: gpus, cpu_model and num_usable_cores, as in `hardware.describe_node`.
    """
    detail = node.get("cpu_model") if node.get("gpus") else f"{node.get('num_usable_cores')} cores"
    return f"{machine_name}, {detail}"


def this_node() -> dict[str, Any]:
    """Return the part of `hardware.describe_node` that determines the kind of this node."""
    return {
        "gpus": describe_gpus(),
        "cpu_model": hardware.cpu_model(),
        "num_usable_cores": hardware.usable_cores(),
    }


def calibration_file(machine_name: str) -> Path:
    """Return the path of the stored constants of a machine, whether it exists or not.

    It is in `$PARATUNE_CACHE`, else in ~/.cache/paratune. The name is the kind of node (`node_kind`): nodes of one kind
    share constants through a home folder on the network, and other nodes do not.
    """
    cache = Path(os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune").expanduser()
    name = re.sub(r"[^A-Za-z0-9]+", "-", node_kind(machine_name, this_node())).strip("-").lower()
    return cache / "machines" / f"{name}.json"


def stored_constants(machine_name: str) -> dict[int, Constants]:
    """Return the constants that were measured on this machine, by threads of a process; empty if there are none.

    Raises:
        ConfigError: The file is damaged.
    """
    path = calibration_file(machine_name)
    if not path.exists():
        return {}
    try:
        written = records.read_json(path)
        if written["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its version is {written['schema_version']}, not {SCHEMA_VERSION}")
        return {int(threads): Constants.from_json(constants) for threads, constants in written["by_threads"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "remove it, or measure again: paratune plan --calibrate"
        text = f"{path} does not contain constants of a machine: {error}; {remedy}"
        raise ConfigError(text, code="plan.figures_damaged", path=path) from error


def store(machine_name: str, by_threads: Mapping[int, Constants], **extra: Any) -> Path:
    """Write measured constants, with `extra` as further keys; return the path.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = calibration_file(machine_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {str(threads): constants.as_json() for threads, constants in sorted(by_threads.items())}
    records.write_json(path, {"schema_version": SCHEMA_VERSION, "machine": machine_name, **extra, "by_threads": values})
    return path


def refining_runs(machine_name: str) -> list[str]:
    """Return the runs with which the stored constants were refined; a run must not be used twice."""
    path = calibration_file(machine_name)
    runs = records.read_json(path).get("refined_by", []) if path.exists() else []
    return [str(run) for run in runs]


def store_refined(machine: Machine, refined: Mapping[int, Constants], runs: Sequence[str]) -> Path:
    """Store refined constants by the threads of a process (1 for a GPU), keep all others, and return the path.

    `machine` has the constants before, `runs` are the names of the runs with which they were refined.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = calibration_file(machine.name)
    written = records.read_json(path) if path.exists() else {}
    extra = {key: written[key] for key in ("measured", "launching") if key in written}
    extra["refined_by"] = [*refining_runs(machine.name), *runs]
    return store(machine.name, {**machine.by_threads, **refined}, **extra)


@dataclass(frozen=True)
class Calibration:
    """The result of measuring this machine."""

    machine: Machine
    """This machine, with the new constants."""
    by_threads: Mapping[int, Constants]
    """Constants by the threads of a process; one entry for a GPU."""
    path: Path
    """The written file."""
    seconds: float
    """Duration of the measurement."""
    launching: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a tiny kernel on a GPU (`anchors.launch_facts`); no prediction uses them."""

    def lines(self) -> list[str]:
        """Return lines for the terminal: each constant with its bounds and source."""
        lines = [f"{self.machine.name}: measured in {self.seconds:.0f} s, kept in {self.path}"]
        for threads, constants in sorted(self.by_threads.items()):
            if not self.machine.is_cuda:
                lines.append(f"with {threads} thread{'s' * (threads > 1)} in a process:")
            lines += [f"  {name}: {_describe_constant(name, constants[name])}" for name in constants]
        for name, seconds in self.launching.items():
            duration = f"{format_number(1e6 * seconds, 3)} us"
            lines.append(f"  {name}: {duration}: {_LAUNCH_TEXTS[name]}; no prediction uses it")
        return lines


def _describe_constant(name: str, constant: BoundedConstant) -> str:
    """Return a constant with its bounds, meaning and source."""
    meaning = KINDS[name]
    unit, scale = next(((unit, scale) for word, unit, scale in _UNITS if meaning.startswith(word)), ("", 1.0))
    rates = [rate for _, rate in constant.curve] or [constant.value]
    value = " to ".join(format_number(rate / scale, 3) for rate in dict.fromkeys((min(rates), max(rates))))
    below, above = (
        100 * (end / constant.value - 1) if constant.value else 0.0 for end in (constant.low, constant.high)
    )
    return f"{value}{unit} ({below:+.0f}% to {above:+.0f}%): {meaning}; {constant.source}"


def calibrate(log_progress: Callable[[str], None] = lambda text: None) -> Calibration:
    """Measure this machine and store the constants for later plans.

    `log_progress` is called with the name of each measurement before it starts.

    Raises:
        LaunchError: The two processes that measure the link could not connect.
        CheckpointError: The file cannot be written.
    """
    begin = time.perf_counter()
    machine = detect_machine()
    by_threads, launching = _on_cuda(log_progress) if machine.is_cuda else (_on_cpu(machine, log_progress), {})
    return _stored_calibration(by_threads, launching, begin)


def _stored_calibration(
    by_threads: Mapping[int, Constants], launching: Mapping[str, float], begin: float
) -> Calibration:
    machine = detect_machine()
    extra = {"measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "launching": launching}
    path = store(machine.name, by_threads, **extra)
    return Calibration(with_measurements(machine, by_threads), by_threads, path, time.perf_counter() - begin, launching)


def calibrate_nodes(
    rank: int, local_rank: int, ranks_per_node: int, log_progress: Callable[[str], None]
) -> Calibration | None:
    """Measure the node of rank 0, and the network between the nodes of all ranks. Collective.

    torchrun started this process with `rank` and `local_rank`, and `ranks_per_node` processes on each node.

    Returns:
        The result on rank 0, None on the others.

    Raises:
        LaunchError: As for `calibrate`.
        CheckpointError: The file cannot be written.
    """
    import torch

    from paratune.planning.probe_network import measure_network

    begin = time.perf_counter()
    device = torch.device("cuda", local_rank) if detect_machine().is_cuda else torch.device("cpu")
    calibration = None if rank else calibrate(log_progress)
    within_s = 0.0
    if calibration is not None:
        log_progress("the network between nodes")
        within_s = next(iter(calibration.by_threads.values())).value("link.latency", 0.0)
    network = measure_network(device, ranks_per_node, within_s)
    if calibration is None:
        return None
    by_threads = {threads: constants.replaced(network) for threads, constants in calibration.by_threads.items()}
    return _stored_calibration(by_threads, calibration.launching, begin)


def _on_cpu(machine: Machine, log_progress: Callable[[str], None]) -> dict[int, Constants]:
    """Measure a process with one thread and one with all cores; with OMP_NUM_THREADS only that number."""
    import torch

    from paratune.planning.probe_links import link_figures
    from paratune.planning.target import cpu_target

    before = torch.get_num_threads()
    given = parse_count(os.environ.get("OMP_NUM_THREADS"))
    threads = {given} if given else {1, max(1, int(machine.num_cores or 1))}
    log_progress("two processes that exchange bytes")
    links = dict(link_figures(torch.device("cpu"), min(threads)))
    measured = {}
    try:
        for count in sorted(threads):
            torch.set_num_threads(count)
            log_progress(f"kernels, with {count} thread{'s' * (count > 1)}")
            # bf16 also where the CPU has no instructions for it: PyTorch then converts, and this time is measured.
            measured[count] = measure_process(cpu_target(), ("fp32", "bf16"), links)
    finally:
        torch.set_num_threads(before)
    return measured


def _on_cuda(log_progress: Callable[[str], None]) -> tuple[dict[int, Constants], dict[str, float]]:
    """Measure the current CUDA device, and the link if there are two; return constants and launch times."""
    import torch

    from paratune.planning.anchors import launch_facts
    from paratune.planning.probe_links import link_figures
    from paratune.planning.target import cuda_target

    arithmetics = ["fp32", "fp16"]
    arithmetics += ["tf32"] if torch.cuda.is_tf32_supported() else []
    arithmetics += ["bf16"] if torch.cuda.is_bf16_supported(including_emulation=False) else []
    links: dict[str, BoundedConstant] = {}
    if torch.cuda.device_count() > 1:
        log_progress("two processes that exchange bytes")
        links = dict(link_figures(torch.device("cuda"), torch.get_num_threads()))
    log_progress("kernels")
    target = cuda_target()
    return {1: measure_process(target, arithmetics, links)}, launch_facts(target)


def measure_process(
    target: "MeasuredDevice", arithmetics: Sequence[str], links: Mapping[str, BoundedConstant]
) -> Constants:
    """Return the constants of one process on a device; those of the link between two ranks were measured before.

    `arithmetics` are those of products to measure, of `devices.ARITHMETICS`.
    """
    from paratune.planning.anchors import factor_figures, launch_figures
    from paratune.planning.probes import kernel_figures
    from paratune.planning.uncalibrated import common_constants

    measured = {**common_constants(), **links, **dict(kernel_figures(target, arithmetics))}
    measured |= dict(launch_figures(target))
    return Constants({**measured, **dict(factor_figures(target, Constants(measured)))})


def node_values(machine: Machine, by_threads: Mapping[int, Constants], num_devices: int) -> dict[str, Any]:
    """Return the options of the device file of this node with its accelerators; see `machine_file.MachineFile`.

    The measured constants are by the threads of a process.
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
