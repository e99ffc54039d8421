"""Shares of this machine for runs that are trained side by side: GPUs, or disjoint sets of cores."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

VISIBLE = "CUDA_VISIBLE_DEVICES"
CORES_OF_A_SLOT = 4
"""Cores of each run on CPUs by default, where the machine has enough for two such runs."""


@dataclass(frozen=True)
class Share:
    """What one run may use; the whole machine where nothing is named."""

    gpus: tuple[str, ...] = ()
    """As in `CUDA_VISIBLE_DEVICES`: numbers or UUIDs."""
    core_sets: tuple[tuple[int, ...], ...] = ()
    """Numbers of logical cores: a set for each process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its processes."""

    @property
    def cores(self) -> list[int] | None:
        return [core for cores in self.core_sets for core in cores] or None


class Slots:
    """The GPUs and sets of cores of this machine, and which of them are free.

    A run takes a GPU, or a set of cores, for each of its processes. With one slot, each run has the whole machine.
    """

    def __init__(
        self, num_slots: int | None, num_gpus: int, cores: Sequence[int], environ: Mapping[str, str] = os.environ
    ) -> None:
        """Divide the machine.

        Args:
            num_slots: Most runs at a time; None: as many as there are GPUs, or sets of four cores, and at least two.
            num_gpus: GPUs for runs that use GPUs.
            cores: Numbers of the logical cores that runs may use.
        """
        named = [word.strip() for word in environ.get(VISIBLE, "").split(",") if word.strip()]
        gpus = (named or [str(number) for number in range(num_gpus)])[:num_gpus]
        self.num_slots = num_slots or len(gpus) or max(min(2, len(cores)), len(cores) // CORES_OF_A_SLOT)
        size = max(1, len(cores) // self.num_slots)
        self._gpus = gpus
        self._core_sets = [
            tuple(cores[start : start + size]) for start in range(0, size * min(self.num_slots, len(cores)), size)
        ]
        self._sizes = len(self._gpus), len(self._core_sets)
        self._cores_of_a_gpu = max(1, len(cores) // max(1, len(gpus)))
        self._num_runs = 0

    def take(self, num_processes: int, *, on_gpus: bool) -> Share | None:
        """Return the share of a run with so many processes; None where it has to wait for others to end.

        A run with more processes than the machine has GPUs or sets takes all of them.
        """
        if self._num_runs == self.num_slots:
            return None
        free = self._gpus if on_gpus else self._core_sets
        num_wanted = min(num_processes, self._sizes[0 if on_gpus else 1])
        if self.num_slots > 1 and len(free) < num_wanted:
            return None
        self._num_runs += 1
        if self.num_slots == 1:
            return Share()
        if on_gpus:
            taken, self._gpus = self._gpus[:num_wanted], self._gpus[num_wanted:]
            own = {VISIBLE: ",".join(taken), "OMP_NUM_THREADS": str(self._cores_of_a_gpu)}
            return Share(gpus=tuple(taken), environment=own)
        sets, self._core_sets = self._core_sets[:num_wanted], self._core_sets[num_wanted:]
        # Not left to the affinity of the process: a quota of the container would give each run all of its cores.
        num_threads = max(1, sum(map(len, sets)) // num_processes)
        return Share(core_sets=tuple(sets), environment={"OMP_NUM_THREADS": str(num_threads)})

    def give_back(self, share: Share) -> None:
        """Make the share of a run that has ended free for others."""
        self._num_runs -= 1
        self._gpus = [*self._gpus, *share.gpus]
        self._core_sets = sorted([*self._core_sets, *share.core_sets])
