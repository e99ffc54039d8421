"""Which of how many processes this is, as torchrun, srun and `paratune train --nproc` tell it.

Floor 1: no torch.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.config.batch_size import resolve_batch
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import Traits, traits_of
from paratune.errors import ConfigError, LaunchError
from paratune.processes.launcher import is_srun, tasks_here

RENDEZVOUS_VARIABLE = "PARATUNE_RENDEZVOUS"
"""Set by `paratune train --nproc`: where processes find each other; torchrun's variables are used otherwise."""
LAUNCHER_POLL_S = 0.05
"""How often `paratune train --nproc` looks for processes that have ended."""
OUT_OF_MEMORY_VARIABLE = "PARATUNE_OUT_OF_MEMORY"
"""Set by `paratune train --nproc`: where a process whose memory ran out leaves a note of what to try next."""
MICRO_BATCH_LIMIT_VARIABLE = "PARATUNE_MICRO_BATCH_LIMIT"
"""Set by `paratune train --nproc` when it starts the processes again: the largest micro-batch that they may take."""

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
    try:
        place = Place(*(int(given[name]) for name in names))
    except ValueError as error:
        raise LaunchError(
            f"environment: {given} holds a value that is not a whole number", code="launch.environment", given=given
        ) from error
    if not 0 <= place.rank < place.world_size:
        raise LaunchError(
            f"environment: RANK={place.rank} is not below WORLD_SIZE={place.world_size}",
            code="launch.environment",
            rank=place.rank,
            world_size=place.world_size,
        )
    return place


def _place_of_srun() -> Place:
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    try:
        return Place(*(int(os.environ[name]) for name in names))
    except (KeyError, ValueError) as error:
        raise LaunchError(
            f"environment: srun started several tasks, and {', '.join(names)} do not say which this is; "
            "start with srun --ntasks-per-node=N, or unset SLURM_STEP_ID to run one process",
            code="launch.environment",
        ) from error


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
    try:
        return tasks_here() if is_srun() else max(1, int(os.environ["LOCAL_WORLD_SIZE"]))
    except (KeyError, ValueError):
        return place.world_size


def check_world_size(traits: Traits, world_size: int, *, is_free: bool = True) -> None:
    """Hold the number of processes to what the strategy can do.

    Args:
        traits: Of the strategy.
        world_size: Processes.
        is_free: Whether another strategy may be advised; not where this one is to be tried.

    Raises:
        ConfigError: There are too few or too many of them.
    """
    if world_size < traits.min_world_size:
        started = "1 was started" if world_size == 1 else f"{world_size} were started"
        other = f", or set strategy.kind: {'single' if world_size == 1 else 'ddp'}" if is_free else ""
        raise ConfigError(
            f"strategy.kind: {traits.kind} needs {traits.min_world_size} processes or more, and {started}; "
            f"start them with --nproc {traits.min_world_size}{other}",
            code="strategy.world_size",
            key="strategy.kind",
            value=traits.kind,
            min_world_size=traits.min_world_size,
        )
    if rest := world_size % traits.world_size_multiple:
        below = world_size - rest
        raise ConfigError(
            f"strategy.kind: {traits.kind} needs a multiple of {traits.world_size_multiple} processes, and "
            f"{world_size} were started; the nearest: {below} or {below + traits.world_size_multiple}",
            code="strategy.world_size",
            key="strategy.kind",
            value=traits.kind,
            world_size_multiple=traits.world_size_multiple,
            world_size=world_size,
            below=below,
        )
    if traits.max_world_size is not None and world_size > traits.max_world_size:
        raise ConfigError(
            f"strategy.kind: {traits.kind} runs in {traits.max_world_size} process, and {world_size} were started; "
            f"{'set strategy.kind: ddp, or ' if is_free else ''}start one",
            code="strategy.world_size",
            key="strategy.kind",
            value=traits.kind,
            max_world_size=traits.max_world_size,
            world_size=world_size,
        )


def global_batch_size(config: Config, num_processes: int) -> int | None:
    """Return the samples of a step, None with a strategy of the user's own, which says later how it shares them.

    Raises:
        ConfigError: What the processes would refuse after their start: there are too few or too many of them, or they
            cannot share the batch.
    """
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
    if traits is None:
        return None
    check_world_size(traits, num_processes)
    return resolve_batch(
        config.batch,
        data_world_size=num_processes // traits.ranks_per_replica,
        num_micro_batches=traits.num_micro_batches,
        micro_batch_multiple=traits.micro_batch_multiple,
    ).global_batch_size
