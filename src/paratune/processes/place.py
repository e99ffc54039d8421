"""Reads rank and world size of this process from the variables of torchrun, srun and `paratune train --nproc`.

No torch.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.base.text import plain
from paratune.base.units import parse_count
from paratune.config.batch_size import resolve_batch
from paratune.config.feasibility import Ranks, num_layers, reasons_against
from paratune.config.problems import refuse
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import group_size
from paratune.config.traits import strategy_traits
from paratune.errors import EXIT_OK, EXIT_STOPPED, LaunchError
from paratune.processes.launcher import is_srun, tasks_on_node

RENDEZVOUS_VARIABLE = "PARATUNE_RENDEZVOUS"
"""Set by `paratune train --nproc`: file for the rendezvous; otherwise torchrun's variables are used."""
POLL_S = 0.05
"""Seconds between polls of processes by `paratune train --nproc`."""
OUT_OF_MEMORY_VARIABLE = "PARATUNE_OUT_OF_MEMORY"
"""Set by `paratune train --nproc`: file for notes of processes that run out of memory."""
MICRO_BATCH_LIMIT_VARIABLE = "PARATUNE_MICRO_BATCH_LIMIT"
"""Set by `paratune train --nproc` at a restart: maximum micro-batch."""

MOST_PROCESSES = 1_000_000
"""Maximum world size. A larger number is an error, and loops over ranks would take too long."""
EXIT_CODES_VARIABLE = "PARATUNE_EXIT_CODES"
"""Set by the script of `paratune launch`: folder in which each process writes its exit code, because torchrun always
ends with 1."""


@dataclass(frozen=True)
class Place:
    """Rank of a process, and world size."""

    rank: int
    local_rank: int
    world_size: int


def place_from_environment() -> Place:
    """Read RANK, LOCAL_RANK and WORLD_SIZE, or srun's variables; without a launcher the world size is 1.

    Raises:
        LaunchError: Some variables are missing or no whole numbers, or they contradict each other.
    """
    names, advice = ("RANK", "LOCAL_RANK", "WORLD_SIZE"), "start with torchrun or paratune train --nproc N"
    is_step = is_srun() and not any(name in os.environ for name in names)
    if is_step:
        names, advice = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"), "start with srun --ntasks-per-node=N"
    given = {name: plain(os.environ[name][:40]) for name in names if name in os.environ}
    if not given:
        return Place(0, 0, 1)
    text = "environment: " + ", ".join(f"{name}={value}" for name, value in given.items())
    if missing := [name for name in names if name not in given]:
        unset = "SLURM_STEP_ID" if is_step else ", ".join(given)
        message = f"{text} without {', '.join(missing)}; {advice}, or unset {unset} to run one process"
        raise LaunchError(message, code="launch.not_started", missing=missing, given=given)
    rank, local_rank, world_size = (parse_count(os.environ[name]) for name in names)
    if rank is None or local_rank is None or world_size is None or world_size > MOST_PROCESSES:
        allowed = f"whole numbers, at most {MOST_PROCESSES}"
    elif max(rank, local_rank) >= world_size:
        allowed = f"{names[0]} and {names[1]} below {names[2]}"
    else:
        return Place(rank, local_rank, world_size)
    message = f"{text}; allowed: {allowed}; {advice}"
    raise LaunchError(message, code="launch.not_started", given=given, allowed=allowed)


def note_exit_code(code: int) -> int:
    """Write the exit code of this process to the folder in EXIT_CODES_VARIABLE, if it is set.

    Returns:
        The code with which it ends: 0 after a stop where the folder has the code, because torchrun prints a traceback
        of its own for every other one.
    """
    folder = os.environ.get(EXIT_CODES_VARIABLE)
    if folder:
        rank = os.environ.get("SLURM_PROCID") if is_srun() else os.environ.get("RANK")
        name = f"rank{rank}" if rank is not None else "command"
        with suppress(OSError):
            Path(folder, name).write_text(f"{code}\n")
            return EXIT_OK if code == EXIT_STOPPED and "TORCHELASTIC_RUN_ID" in os.environ else code
    return code


def local_world_size(place: Place) -> int:
    """Return the number of processes on this machine from the launcher; the world size if it is unknown."""
    number = tasks_on_node() if is_srun() else parse_count(os.environ.get("LOCAL_WORLD_SIZE"))
    return min(max(1, number), place.world_size) if number is not None else place.world_size


def global_batch_size(config: Config, num_processes: int, num_nodes: int | None = None) -> int | None:
    """Return the samples of a step, None for a strategy of the user, which decides later.

    `num_nodes` is the number of machines with equal numbers of processes, if it is known.

    Raises:
        ConfigError: There are too few or too many processes, the batch is not divisible, or a pipeline has more stages
            than the model has layers.
    """
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    if traits is None:
        return None
    refuse(reasons_against(config, traits, None, Ranks(num_processes, num_nodes), num_blocks=num_layers(config.model)))
    num_replicas = num_processes // traits.ranks_per_replica
    batch = resolve_batch(config.batch, traits, data_world_size=num_replicas, group_size=group_size(config.task))
    return batch.global_batch_size
