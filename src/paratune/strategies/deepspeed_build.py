"""The one part of DeepSpeed that is compiled: its AdamW for offloaded states.

torch compiles on first use, without a word and for minutes, and waits for ever for a compilation that was killed. Here
it is said before, done by one process of each machine while the others wait, and a lock that nobody holds is named.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from paratune.errors import LaunchError
from paratune.hangs.pulse import working
from paratune.hardware.extensions import BuildLock, extensions_folder, find_locks, is_compiled
from paratune.strategies.process_group import reduce_over_ranks

log = logging.getLogger(__name__)

CPU_ADAM = "cpu_adam"
"""Name of the extension and of its folder."""
POLL_S = 0.2


def make_cpu_adam(optimizer: Optimizer, *, local_rank: int) -> Optimizer:
    """Return DeepSpeed's AdamW for processors over the groups of an AdamW, compiled if it is not yet. Collective.

    The group dictionaries are shared, so that a learning rate set in one is the other's as well.

    Raises:
        LaunchError: It cannot be compiled, or a killed compilation is in the way.
    """
    prebuild(_load_cpu_adam, local_rank=local_rank)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    defaults = {key: optimizer.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
    own: Optimizer = DeepSpeedCPUAdam(optimizer.param_groups, adamw_mode=True, **defaults)
    return own


def prebuild(load: Callable[[], Any], *, local_rank: int, name: str = CPU_ADAM) -> None:
    """Have an extension compiled by the first process of each machine, then loaded by all. Collective.

    Args:
        load: Compiles it where it is not yet compiled, and loads it.
        local_rank: 0 compiles.
        name: Of the extension.

    Raises:
        LaunchError: On every rank, when one of them fails.
    """
    for turn in (True, False):
        error = _attempt(load, name) if (local_rank == 0) is turn else None
        failed = reduce_over_ranks(torch.tensor([float(error is not None)]), "max")
        if error is not None:
            raise error
        if float(failed):
            raise LaunchError(
                f"another rank could not compile or load DeepSpeed's {name}; its message has the reason",
                code="deepspeed.compile",
                name=name,
            )


def _attempt(load: Callable[[], Any], name: str) -> LaunchError | None:
    try:
        _wait_for_lock(name)
        folder = extensions_folder()
        if not is_compiled(folder, name):
            log.info("compiling DeepSpeed's %s into %s: a few minutes, only once", name, folder)
        begin = time.perf_counter()
        with working(f"compile and load DeepSpeed's {name}"):
            load()
        log.info("DeepSpeed's %s is ready after %.0f s", name, time.perf_counter() - begin)
    except LaunchError as error:
        return error
    except Exception as error:  # whatever a compiler or a loader says
        return LaunchError(
            f"DeepSpeed's {name} cannot be compiled or loaded: {error}; set strategy.cpu_adam: false, which needs "
            "no compiler",
            code="deepspeed.compile",
            name=name,
        )
    return None


def _wait_for_lock(name: str) -> None:
    """Wait for another process that compiles; for one that was killed there is nothing to wait for.

    Raises:
        LaunchError: The lock has no owner.
    """
    said = False
    while locks := find_locks(extensions_folder(), name):
        refuse_stale(locks)
        if not said:
            log.info("waiting for another process that compiles DeepSpeed's %s: %s", name, locks[0].describe())
            said = True
        time.sleep(POLL_S)


def refuse_stale(locks: list[BuildLock]) -> None:
    """Refuse to wait for a lock that nobody will delete.

    Raises:
        LaunchError: There is one; the message names it.
    """
    for lock in locks:
        if lock.is_stale:
            raise LaunchError(
                f"a compilation was killed and left its lock, for which every run would wait for ever: "
                f"{lock.describe()}; delete the file and start again",
                code="deepspeed.stale_lock",
            )


def _load_cpu_adam() -> Any:
    from deepspeed.ops.op_builder import CPUAdamBuilder

    return CPUAdamBuilder().load()
