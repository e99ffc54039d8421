"""What was measured on a machine: one JSON file each in the user's cache folder, read whenever one plans for it.

No torch at import. A probe takes about half a minute for each number of threads; on GPUs it has not been tried: no
accelerator was at hand.
"""

import datetime
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune import hardware, records
from paratune.errors import ConfigError
from paratune.plan.constants import KINDS, Constant, Constants
from paratune.plan.machine import Machine, calibrated, unmeasured
from paratune.units import format_number

SCHEMA_VERSION = 1
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
            "paratune plan --calibrate"
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
    return store(machine.name, {**machine.by_threads, **refined}, refined_by=[*refined_by(machine.name), *runs])


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

    def lines(self) -> list[str]:
        """Return what was found, for people: each figure with its bounds and how it was taken."""
        found = [f"{self.machine.name}: measured in {self.seconds:.0f} s, kept in {self.path}"]
        for threads, constants in sorted(self.by_threads.items()):
            if not self.machine.is_cuda:
                found.append(f"with {threads} thread{'s' * (threads > 1)} in a process:")
            found += [f"  {name}: {_said(name, constants[name])}" for name in constants]
        return found


def _said(name: str, constant: Constant) -> str:
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
    found = _on_cuda(say) if machine.is_cuda else _on_cpu(machine, say)
    about = {"measured": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
    path = store(machine.name, found, **about)
    return Calibration(calibrated(machine, found), found, path, time.perf_counter() - begin)


def _on_cpu(machine: Machine, say: Callable[[str], None]) -> dict[int, Constants]:
    """Measure a process of one thread and one of all cores, or of as many as OMP_NUM_THREADS says."""
    import torch

    from paratune.plan.probe_links import link_figures

    device, before = torch.device("cpu"), torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = {int(given)} if given.isdigit() and int(given) else {1, max(1, int(machine.num_cores or 1))}
    say("two processes that exchange bytes")
    links = dict(link_figures(device, min(threads)))
    found = {}
    try:
        for each in sorted(threads):
            torch.set_num_threads(each)
            say(f"kernels, with {each} thread{'s' * (each > 1)}")
            found[each] = _kernels(device, ("fp32", *_half_of_cpu()), links)
    finally:
        torch.set_num_threads(before)
    return found


def _half_of_cpu() -> tuple[str, ...]:
    return ("bf16",) if hardware.BF16_FLAGS & set(hardware.cpu_flags() or ()) else ()


def _on_cuda(say: Callable[[str], None]) -> dict[int, Constants]:
    import torch

    from paratune.plan.probe_links import link_figures

    device = torch.device("cuda")
    arithmetics = ["fp32", "fp16"]
    arithmetics += ["tf32"] if torch.cuda.is_tf32_supported() else []
    arithmetics += ["bf16"] if torch.cuda.is_bf16_supported(including_emulation=False) else []
    links: dict[str, Constant] = {}
    if torch.cuda.device_count() > 1:
        say("two processes that exchange bytes")
        links = dict(link_figures(device, torch.get_num_threads()))
    say("kernels")
    return {1: _kernels(device, arithmetics, links)}


def _kernels(device: Any, arithmetics: Sequence[str], links: Mapping[str, Constant]) -> Constants:
    """Measure what one process does; figures that rest on others are measured behind them."""
    from paratune.plan.anchors import factor_figures, launch_figures
    from paratune.plan.probes import kernel_figures
    from paratune.plan.uncalibrated import for_every_machine

    found = {**for_every_machine(), **links, **dict(kernel_figures(device, arithmetics))}
    found |= dict(launch_figures(device))
    return Constants({**found, **dict(factor_figures(device, Constants(found)))})
