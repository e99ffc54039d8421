"""Runs that hang on purpose: DDP as faults:Faulty, with the fault "kind:rank" in $FAULT; imported at the start.

A rank whose fault begins creates the file `fault` in the working directory. Before that no rank counts as hanging:
these tests do not depend on the time that a run needs to reach its fault.
"""

import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from patience import wait_for
from torch import Tensor

from paratune.batch import Batch
from paratune.data.loader import TrainBatches
from paratune.processes.watchdog import HEARTBEATS, Watchdog
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.protocol import Phases

FAULT, _, _RANK = os.environ.get("FAULT", "none:-1").partition(":")
IS_IT = os.environ.get("RANK") == _RANK
STEP = 3
FOR_EVER_S = 10_000
FAULT_FILE = Path("fault").absolute()


def for_ever() -> None:
    FAULT_FILE.touch()
    time.sleep(FOR_EVER_S)


def switch_off_loopback() -> None:
    """Switch off the loopback interface in the network namespace that the test created."""
    name = struct.pack("16sH14s", b"lo", 0, b"")
    with socket.socket() as connection:
        fcntl.ioctl(connection, 0x8914, name)  # SIOCSIFFLAGS


def heartbeat() -> Path:
    return Path("runs", HEARTBEATS, "c", f"rank{int(_RANK):04d}.json")


class Faulty(DDPStrategy):
    """DDP with a fault in its third step, on one rank."""

    step = 0

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        self.step += 1
        if self.step == STEP and IS_IT:
            wait_for(heartbeat().exists)  # its watchdog has sent a sign of life, even on a busy machine
            FAULT_FILE.touch()
            if FAULT == "exit":
                os._exit(17)
            if FAULT == "sigstop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if FAULT == "mismatch":
                dist.all_gather([torch.zeros(7) for _ in range(2)], torch.zeros(7))
            if FAULT == "uneven":  # its loader has no batch for this step, so the rank continues
                return torch.zeros(())
            if FAULT == "network":
                switch_off_loopback()
            if FAULT == "native":
                block_interpreter()
        return super().forward_backward(micro_batches, phases)


def block_interpreter() -> None:
    """Block the interpreter in native code, so that none of its other threads runs."""
    import ctypes

    ctypes.PyDLL(None).sleep(FOR_EVER_S)


def hang_when(is_due: Any, original: Any) -> Any:
    def replacement(*arguments: Any, **named: Any) -> Any:
        if IS_IT and is_due(*arguments):
            for_ever()
        return original(*arguments, **named)

    return replacement


def restart_until_fault(check: Any) -> Any:
    def replacement(self: Watchdog) -> None:
        check(self)
        if not FAULT_FILE.exists():
            self._began = time.monotonic()
            for heartbeats in list(self._seen.values()):
                heartbeats.beaten_at = self._began

    return replacement


Watchdog._skip_suspended_time = restart_until_fault(Watchdog._skip_suspended_time)  # type: ignore[method-assign]
if FAULT == "loader":
    TrainBatches.step = hang_when(lambda _, step: step == STEP, TrainBatches.step)  # type: ignore[method-assign]
if FAULT == "tokenize":
    from paratune.data import tokens

    tokens.cached_store = hang_when(lambda *_: True, tokens.cached_store)
if FAULT == "slow":  # but healthy: on one rank each batch takes 2 s
    inner = TrainBatches.step

    def slowly(self: TrainBatches, step: int) -> list[Batch]:
        FAULT_FILE.touch()
        time.sleep(2.0 if IS_IT else 0.0)
        return inner(self, step)

    TrainBatches.step = slowly  # type: ignore[method-assign]
if FAULT == "disk":
    from paratune import checkpoint

    checkpoint._write_shards = hang_when(lambda *_: True, checkpoint._write_shards)
