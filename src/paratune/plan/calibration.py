"""What was measured on a machine: one JSON file each in the user's cache folder, read whenever one plans for it.

No torch at import. It takes about half a minute for each number of threads of a CPU. On GPUs no figure of it has been
checked yet: the whole of it has run on stand-ins of CUDA tensors, which have a device and no numbers.
"""

import datetime
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune import hardware, records
from paratune.base.units import format_number, parse_count
from paratune.errors import ConfigError
from paratune.plan.constants import KINDS, BoundedConstant, Constants
from paratune.plan.machine import Machine, calibrated, unmeasured

if TYPE_CHECKING:
    from paratune.plan.target import MeasuredDevice

SCHEMA_VERSION = 1
_LAUNCHING = {
    "eager_host_s": "the host, for one call of a tiny kernel",
    "eager_device_s": "the device, for a tiny kernel that waits in its queue",
    "graph_device_s": "the device, for a tiny kernel of a CUDA graph that is replayed",
}
_UNITS = (("bytes/s", " GB/s", 1e9), ("FLOP/s", " GFLOP/s", 1e9), ("seconds", " us", 1e-6))
"""How a figure is shown, by how its meaning begins: unit, and what it is divided by."""


def calibration_file(machine_name: str) -> Path:
    """Return where the figures of a machine are kept, existing or not.

    In `$PARATUNE_CACHE`, else ~/.cache/paratune, where tokens are. The name is the device's and the host's: two
    machines of a kind do not share figures through a home folder on the network.
    """
    cache = Path(os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune").expanduser()
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{socket.gethostname()} {machine_name}").strip("-").lower()
    return cache / "machines" / f"{name}.json"


def stored_constants(machine_name: str) -> dict[int, Constants]:
    """Return what was measured on this machine, by the threads of a process; nothing where nobody has.

    Raises:
        ConfigError: The file is there, and damaged.
    """
    path = calibration_file(machine_name)
    if not path.exists():
        return {}
    try:
        written = records.read_json(path)
        if written["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its version is {written['schema_version']}, not {SCHEMA_VERSION}")
        return {int(threads): Constants.from_json(each) for threads, each in written["by_threads"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} does not hold the figures of a machine: {error}; remove it, or measure again: "
            "paratune plan --calibrate",
            code="plan.figures_damaged",
            path=path,
        ) from error


def store(machine_name: str, by_threads: Mapping[int, Constants], **about: Any) -> Path:
    """Keep what was measured; `about` says how. Return the file.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = calibration_file(machine_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {str(threads): constants.as_json() for threads, constants in sorted(by_threads.items())}
    records.write_json(path, {"schema_version": SCHEMA_VERSION, "machine": machine_name, **about, "by_threads": values})
    return path


def refined_by(machine_name: str) -> list[str]:
    """Return the runs that have refined the figures that are kept, so that none counts twice."""
    path = calibration_file(machine_name)
    found = records.read_json(path).get("refined_by", []) if path.exists() else []
    return [str(each) for each in found]


def keep_refined(machine: Machine, refined: Mapping[int, Constants], runs: Sequence[str]) -> Path:
    """Keep figures that runs on this machine have refined, beside those for other numbers of threads; return the file.

    Args:
        machine: With the figures before.
        refined: By the threads of a process; of a GPU by 1.
        runs: By which.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = calibration_file(machine.name)
    written = records.read_json(path) if path.exists() else {}
    about = {key: written[key] for key in ("measured", "launching") if key in written}
    about["refined_by"] = [*refined_by(machine.name), *runs]
    return store(machine.name, {**machine.by_threads, **refined}, **about)


@dataclass(frozen=True)
class Calibration:
    """What a probe has found."""

    machine: Machine
    """With the new figures."""
    by_threads: Mapping[int, Constants]
    """By the threads of a process; of a GPU one entry."""
    path: Path
    """Where they are kept."""
    seconds: float
    launching: Mapping[str, float] = field(default_factory=dict)
    """Of a GPU: seconds of a tiny kernel, by `anchors.launch_facts`; no prediction uses them."""

    def lines(self) -> list[str]:
        """Return what was found, for people: each figure with its bounds and how it was taken."""
        found = [f"{self.machine.name}: measured in {self.seconds:.0f} s, kept in {self.path}"]
        for threads, constants in sorted(self.by_threads.items()):
            if not self.machine.is_cuda:
                found.append(f"with {threads} thread{'s' * (threads > 1)} in a process:")
            found += [f"  {name}: {_said(name, constants[name])}" for name in constants]
        for name, seconds in self.launching.items():
            found.append(f"  {name}: {format_number(1e6 * seconds, 3)} us: {_LAUNCHING[name]}; no prediction uses it")
        return found


def _said(name: str, constant: BoundedConstant) -> str:
    """Return a figure with its bounds, what it is, and how it was taken."""
    meaning = KINDS[name]
    unit, scale = next(((unit, scale) for word, unit, scale in _UNITS if meaning.startswith(word)), ("", 1.0))
    rates = [rate for _, rate in constant.curve] or [constant.value]
    value = " to ".join(format_number(rate / scale, 3) for rate in dict.fromkeys((min(rates), max(rates))))
    below, above = (
        100 * (end / constant.value - 1) if constant.value else 0.0 for end in (constant.low, constant.high)
    )
    return f"{value}{unit} ({below:+.0f}% to {above:+.0f}%): {meaning}; {constant.source}"


def calibrate(say: Callable[[str], None] = lambda text: None) -> Calibration:
    """Measure this machine, and keep what is found for all later plans.

    Args:
        say: Told what is measured next.

    Raises:
        LaunchError: Two processes could not meet, to measure what is between them.
        CheckpointError: The file cannot be written.
    """
    begin = time.perf_counter()
    machine = unmeasured()
    found, launching = _on_cuda(say) if machine.is_cuda else (_on_cpu(machine, say), {})
    about = {"measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "launching": launching}
    path = store(machine.name, found, **about)
    return Calibration(calibrated(machine, found), found, path, time.perf_counter() - begin, launching)


def _on_cpu(machine: Machine, say: Callable[[str], None]) -> dict[int, Constants]:
    """Measure a process of one thread and one of all cores, or of as many as OMP_NUM_THREADS says."""
    import torch

    from paratune.plan.probe_links import link_figures
    from paratune.plan.target import cpu_target

    before = torch.get_num_threads()
    given = parse_count(os.environ.get("OMP_NUM_THREADS"))
    threads = {given} if given else {1, max(1, int(machine.num_cores or 1))}
    say("two processes that exchange bytes")
    links = dict(link_figures(torch.device("cpu"), min(threads)))
    measured = {}
    try:
        for count in sorted(threads):
            torch.set_num_threads(count)
            say(f"kernels, with {count} thread{'s' * (count > 1)}")
            measured[count] = kernels_of(cpu_target(), ("fp32", *_half_of_cpu()), links)
    finally:
        torch.set_num_threads(before)
    return measured


def _half_of_cpu() -> tuple[str, ...]:
    return ("bf16",) if hardware.BF16_FLAGS & set(hardware.cpu_flags() or ()) else ()


def _on_cuda(say: Callable[[str], None]) -> tuple[dict[int, Constants], dict[str, float]]:
    """Measure the current CUDA device, and two of them where there are; return the figures, and facts of launching."""
    import torch

    from paratune.plan.anchors import launch_facts
    from paratune.plan.probe_links import link_figures
    from paratune.plan.target import cuda_target

    arithmetics = ["fp32", "fp16"]
    arithmetics += ["tf32"] if torch.cuda.is_tf32_supported() else []
    arithmetics += ["bf16"] if torch.cuda.is_bf16_supported(including_emulation=False) else []
    links: dict[str, BoundedConstant] = {}
    if torch.cuda.device_count() > 1:
        say("two processes that exchange bytes")
        links = dict(link_figures(torch.device("cuda"), torch.get_num_threads()))
    say("kernels")
    target = cuda_target()
    return {1: kernels_of(target, arithmetics, links)}, launch_facts(target)


def kernels_of(target: "MeasuredDevice", arithmetics: Sequence[str], links: Mapping[str, BoundedConstant]) -> Constants:
    """Return what one process does on a device; figures that rest on others are measured after them.

    Args:
        target: What is measured.
        arithmetics: In which products are measured, of `devices.ARITHMETICS`.
        links: What lies between two ranks, measured before.
    """
    from paratune.plan.anchors import factor_figures, launch_figures
    from paratune.plan.probes import kernel_figures
    from paratune.plan.uncalibrated import for_every_machine

    measured = {**for_every_machine(), **links, **dict(kernel_figures(target, arithmetics))}
    measured |= dict(launch_figures(target))
    return Constants({**measured, **dict(factor_figures(target, Constants(measured)))})
