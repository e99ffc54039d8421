"""Which of how many processes this is, as torchrun, srun and `paratune train --nproc` tell it.

Floor 1: no torch.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.base.text import plain
from paratune.base.units import parse_count
from paratune.config.batch_size import ResolvedBatch, find_batch
from paratune.config.feasibility.layers import num_layers
from paratune.config.feasibility.rules import batch_rule, why_not
from paratune.config.feasibility.target import Ranks
from paratune.config.feasibility.words import refuse
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import traits_of
from paratune.errors import LaunchError
from paratune.processes.launcher import is_srun, tasks_here

RENDEZVOUS_VARIABLE = "PARATUNE_RENDEZVOUS"
"""Set by `paratune train --nproc`: where processes find each other; torchrun's variables are used otherwise."""
LAUNCHER_POLL_S = 0.05
"""How often `paratune train --nproc` looks for processes that have ended."""
OUT_OF_MEMORY_VARIABLE = "PARATUNE_OUT_OF_MEMORY"
"""Set by `paratune train --nproc`: where a process whose memory ran out leaves a note of what to try next."""
MICRO_BATCH_LIMIT_VARIABLE = "PARATUNE_MICRO_BATCH_LIMIT"
"""Set by `paratune train --nproc` when it starts the processes again: the largest micro-batch that they may take."""

MOST_PROCESSES = 1_000_000
"""Of a run. A larger number comes from a damaged environment, and code that looks at each rank would not end."""
EXIT_CODES_VARIABLE = "PARATUNE_EXIT_CODES"
"""Set by the script of `paratune launch`: a folder in which each process writes what it ends with, because torchrun
ends with 1 whatever happened."""


@dataclass(frozen=True)
class Place:
    """One process of a run."""

    rank: int
    local_rank: int
    world_size: int


def place_from_environment() -> Place:
    """Read RANK, LOCAL_RANK and WORLD_SIZE, or what srun says; a process that was not launched is the only one.

    Raises:
        LaunchError: Only some of them are set, or they contradict each other.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if not given:
        return _place_of_srun() if is_srun() else Place(0, 0, 1)
    missing = [name for name in names if name not in given]
    if missing:
        found = ", ".join(f"{name}={value}" for name, value in given.items())
        raise LaunchError(
            f"environment: {found} without {', '.join(missing)}; start with torchrun or paratune train --nproc N, "
            f"or unset {', '.join(given)} to run one process",
            code="launch.environment",
            missing=missing,
            given=given,
        )
    return _place_of(names, "start with torchrun or paratune train --nproc N")


def _place_of_srun() -> Place:
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    missing = [name for name in names if name not in os.environ]
    advice = "start with srun --ntasks-per-node=N, or unset SLURM_STEP_ID to run one process"
    if missing:
        raise LaunchError(
            f"environment: srun started several tasks without {', '.join(missing)}; {advice}",
            code="launch.environment",
            missing=missing,
        )
    return _place_of(names, advice)


def _place_of(names: tuple[str, str, str], advice: str) -> Place:
    """Return the place that three variables give: the rank, the local rank, and the number of processes.

    Raises:
        LaunchError: One of them is no whole number, or the two ranks are not below the number of processes.
    """
    rank, local_rank, world_size = (parse_count(os.environ[name]) for name in names)
    found = {name: plain(os.environ[name][:40]) for name in names}
    text = ", ".join(f"{name}={value}" for name, value in found.items())
    if rank is None or local_rank is None or world_size is None or world_size > MOST_PROCESSES:
        allowed = f"whole numbers, at most {MOST_PROCESSES}"
    elif max(rank, local_rank) >= world_size:
        allowed = f"{names[0]} and {names[1]} below {names[2]}"
    else:
        return Place(rank, local_rank, world_size)
    raise LaunchError(
        f"environment: {text}; allowed: {allowed}; {advice}", code="launch.environment", given=found, allowed=allowed
    )


def note_exit_code(code: int) -> None:
    """Write what this process ends with where EXIT_CODES_VARIABLE says; elsewhere nobody asks."""
    folder = os.environ.get(EXIT_CODES_VARIABLE)
    if folder:
        rank = os.environ.get("SLURM_PROCID") if is_srun() else os.environ.get("RANK")
        name = f"rank{rank}" if rank is not None else "command"
        with suppress(OSError):
            Path(folder, name).write_text(f"{code}\n")


def local_world_size(place: Place) -> int:
    """Return how many processes of the run are on this machine, as the launcher says; all of them when it does not."""
    number = tasks_here() if is_srun() else parse_count(os.environ.get("LOCAL_WORLD_SIZE"))
    return min(max(1, number), place.world_size) if number is not None else place.world_size


def global_batch_size(config: Config, num_processes: int, num_nodes: int | None = None) -> int | None:
    """Return the samples of a step, None with a strategy of the user's own, which says later how it shares them.

    Args:
        config: The whole of it.
        num_processes: Of the run.
        num_nodes: Machines that share them equally; None where that is not known.

    Raises:
        ConfigError: What the processes would refuse after their start: there are too few or too many of them, they
            cannot share the batch, or a pipeline has more stages than the model has layers.
    """
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
    if traits is None:
        return None
    refuse(why_not(config, traits, None, Ranks(num_processes, num_nodes), num_blocks=num_layers(config.model)))
    resolved = find_batch(config.batch, batch_rule(traits, num_processes))
    assert isinstance(resolved, ResolvedBatch), "why_not looks at the batch"
    return resolved.global_batch_size
