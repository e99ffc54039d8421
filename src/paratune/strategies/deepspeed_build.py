"""Compiles the only part of DeepSpeed that has to be compiled: its AdamW for offloaded states.

torch compiles at the first use, without a message and for minutes, and waits for ever for the lock of a killed
compilation. Here a message is logged first, one process of each machine compiles while the others wait, and a lock
without an owner is an error.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from paratune.errors import LaunchError
from paratune.hardware.extensions import extensions_folder, find_locks, is_compiled
from paratune.processes.progress import working
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import raise_on_all_ranks

log = logging.getLogger(__name__)

CPU_ADAM = "cpu_adam"
"""Name of the extension and of its folder."""
POLL_S = 0.2


def make_cpu_adam(optimizer: Optimizer, *, local_rank: int) -> Optimizer:
    """Return DeepSpeed's AdamW for CPUs over the parameter groups of an AdamW; compile it if necessary. Collective.

    Both optimizers share the group dictionaries, so a new learning rate in one is also set in the other.

    Raises:
        LaunchError: It cannot be compiled, or there is the lock of a killed compilation.
    """
    prebuild(_load_cpu_adam, local_rank=local_rank)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    defaults = {key: optimizer.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
    own: Optimizer = DeepSpeedCPUAdam(optimizer.param_groups, adamw_mode=True, **defaults)
    return own


def prebuild(load: Callable[[], Any], *, local_rank: int) -> None:
    """Compile the extension in the first process of each machine, then load it in all processes. Collective.

    `load` compiles the extension if necessary, and loads it.

    Raises:
        LaunchError: On every rank, if one rank fails.
    """
    for is_first_process in (True, False):
        error = _attempt(load) if (local_rank == 0) is is_first_process else None
        message = f"another rank could not compile or load DeepSpeed's {CPU_ADAM}; its message has the reason"
        raise_on_all_ranks(reduce_over_ranks, error, LaunchError(message, code="deepspeed.compile", name=CPU_ADAM))


def _attempt(load: Callable[[], Any]) -> LaunchError | None:
    try:
        _wait_for_lock()
        folder = extensions_folder()
        if not is_compiled(folder, CPU_ADAM):
            log.info("compiling DeepSpeed's %s into %s: a few minutes, only once", CPU_ADAM, folder)
        begin = time.perf_counter()
        with working(f"compile and load DeepSpeed's {CPU_ADAM}"):
            load()
        log.info("DeepSpeed's %s is ready after %.0f s", CPU_ADAM, time.perf_counter() - begin)
    except LaunchError as error:
        return error
    except Exception as error:  # a compiler or a loader may raise anything
        message = (
            f"DeepSpeed's {CPU_ADAM} cannot be compiled or loaded: {error}; set strategy.cpu_adam: false, which needs "
            "no compiler"
        )
        return LaunchError(message, code="deepspeed.compile", name=CPU_ADAM)
    return None


def _wait_for_lock() -> None:
    """Wait for another process that compiles the extension.

    Raises:
        LaunchError: The process that made the lock has ended, so that no process will delete it.
    """
    has_logged = False
    while locks := find_locks(extensions_folder(), CPU_ADAM):
        if stale := next((lock for lock in locks if lock.is_stale), None):
            message = (
                f"a killed compilation left a lock file, for which every run would wait for ever: {stale.describe()}; "
                "delete the file and start again"
            )
            raise LaunchError(message, code="deepspeed.compile")
        if not has_logged:
            log.info("waiting for another process that compiles DeepSpeed's %s: %s", CPU_ADAM, locks[0].describe())
            has_logged = True
        time.sleep(POLL_S)


def _load_cpu_adam() -> Any:
    from deepspeed.ops.op_builder import CPUAdamBuilder

    return CPUAdamBuilder().load()
