"""The machine that a job is predicted for: a listed device, a file of one's own, or the one that this process runs on.

No torch at import.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paratune import hardware
from paratune.base.units import parse_count
from paratune.errors import ConfigError, did_you_mean
from paratune.hardware.devices import DEVICES, Device, find_device
from paratune.hardware.gpus import describe_gpus
from paratune.plan.constants import Constants
from paratune.plan.machine_file import read_machine
from paratune.plan.uncalibrated import constants_of

_FILE_SUFFIXES = (".yaml", ".yml")
_GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Machine:
    """What one rank computes on, and what lies between the ranks."""

    name: str
    """As it was asked for, or as the machine calls its device."""
    device: Device | None
    """From the table, or from a file; None for a CPU, and for a device of this machine that is not listed."""
    is_cuda: bool
    """Whether ranks compute on accelerators; else on the cores of a CPU."""
    memory_bytes: int | None
    """Of one device, as it is sold; of a CPU, the machine's, which its ranks share. None where unknown."""
    constants: Constants | None
    """None where nothing is known of its speed: a CPU that has not been calibrated."""
    price_per_hour: float | None = None
    """Of one device; in whatever currency the user counts."""
    tdp_w: float | None = None
    """Most power of one device in the long run."""
    num_cores: float | None = None
    """Of a CPU: cores that the ranks share."""
    is_calibrated: bool = False
    """Whether its constants were measured on it."""
    by_threads: Mapping[int, Constants] = field(default_factory=dict, repr=False)
    """Of a CPU: what was measured with so many threads in a process."""

    def constants_for(self, ranks_per_node: int) -> Constants | None:
        """Return the figures of each of so many ranks of a machine: those of a CPU share its cores.

        Measured with the nearest number of threads, the smaller of two; None where nothing is known.
        """
        if not self.by_threads:
            return self.constants
        return self.by_threads[self.threads_for(ranks_per_node)]

    def threads_for(self, ranks_per_node: int) -> int:
        """Return with which number of threads it was measured that is nearest to that of so many ranks' threads."""
        threads = threads_of_rank(ranks_per_node, self.num_cores)
        return min(self.by_threads, key=lambda each: (abs(each - threads), each))

    def energy_j(self, num_ranks: int, seconds: float) -> float | None:
        """Return an upper bound of what the devices draw: all of them at their limit, all the time."""
        return None if self.tdp_w is None else self.tdp_w * num_ranks * seconds


def machine_of(name: str) -> Machine:
    """Return a machine by the key of a listed device, or by a YAML file that describes it.

    Args:
        name: Such as "a100-40gb", or a path that ends in .yaml.

    Raises:
        ConfigError: No device is called that, or the file has problems: all of them are in the text, with their lines.
    """
    if name.lower().endswith(_FILE_SUFFIXES):
        return _from_file(Path(name))
    return _of_device(find_known_device(name), name)


def find_known_device(name: str) -> Device:
    """Return a listed device.

    Raises:
        ConfigError: There is none of that name; the text lists those there are.
    """
    device = find_device(name)
    if device is None:
        keys = [each.key for each in DEVICES]
        asked = name.lower().replace("_", "-")
        kinds = _keys_of(asked, keys)
        meant = "" if kinds else did_you_mean(asked, keys)
        kinds = kinds or ([] if meant else _keys_of(asked.rpartition("-")[0], keys))
        meant = f"; there are {', '.join(kinds)}" if kinds else meant
        raise ConfigError(
            f"{name} is not a listed device{meant}; listed: "
            f"{', '.join(keys)}; describe another one in a file (docs/howto/plan.md#a-machine-of-your-own) "
            "and give its path",
            code="plan.unknown_device",
            name=name,
            keys=keys,
            similar=kinds,
        )
    return device


def _keys_of(family: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that begin with the words of a name, such as a100-40gb of a100."""
    return [key for key in keys if family and key.startswith(f"{family}-")]


def this_machine() -> Machine:
    """Return the machine that this process runs on: its first GPU, or its CPU, calibrated where it has been.

    Raises:
        ConfigError: What was measured on it is damaged.
    """
    from paratune.plan.calibration import stored_constants

    machine = unmeasured()
    return calibrated(machine, stored_constants(machine.name))


def unmeasured() -> Machine:
    """Return the machine that this process runs on, as it is known without having been measured."""
    gpus = describe_gpus() or []
    if gpus:
        return _of_gpu(gpus[0]["name"], gpus[0]["memory_bytes"])
    return Machine(
        name=hardware.cpu_model() or "CPU",
        device=None,
        is_cuda=False,
        memory_bytes=hardware.total_memory_bytes(),
        constants=None,
        num_cores=hardware.usable_cores(),
    )


def threads_of_rank(ranks_per_node: int, num_cores: float | None) -> int:
    """Return the threads that a rank computes with on a CPU: OMP_NUM_THREADS, else its share of the cores.

    So does `paratune train --nproc`.
    """
    given = parse_count(os.environ.get("OMP_NUM_THREADS"))
    return given or max(1, int((num_cores or 1) // ranks_per_node))


def calibrated(machine: Machine, by_threads: Mapping[int, Constants]) -> Machine:
    """Return the machine with what was measured on it, in the place of what was assumed.

    Args:
        machine: As it is known from its device's sheet.
        by_threads: What was measured, by the number of threads of a process; nothing where it was not.
    """
    if not by_threads:
        return machine
    assumed = machine.constants or Constants()
    known = {threads: assumed.replaced(each.by_name) for threads, each in by_threads.items()}
    return replace(
        machine,
        constants=known[max(known)],
        is_calibrated=True,
        by_threads={} if machine.is_cuda else known,
    )


def _of_device(device: Device, name: str, network_bytes_per_s: float | None = None) -> Machine:
    return Machine(
        name=name,
        device=device,
        is_cuda=True,
        memory_bytes=device.memory_bytes,
        constants=constants_of(device, network_bytes_per_s),
        tdp_w=device.tdp_w,
    )


def _of_gpu(name: str, memory_bytes: int) -> Machine:
    device = find_device(name)
    if device is None:
        return Machine(name, None, is_cuda=True, memory_bytes=memory_bytes, constants=None)
    return replace(_of_device(device, name), memory_bytes=memory_bytes)


def _from_file(path: Path) -> Machine:
    described, device = read_machine(path)
    network = described.network_gbit_per_s
    machine = _of_device(device, described.name or path.stem, None if network is None else network * _GIGABIT)
    return replace(machine, price_per_hour=described.price_per_hour)
