"""Runs that stand still on purpose: DDP as faults:Faulty, whose fault is in $FAULT, "kind:rank"; imported early on.

A rank whose fault begins leaves the file `fault` in the working directory. Until it is there nobody is taken to hang:
how long a run takes to come so far is not what these tests are about.
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
from paratune.hangs.watchdog import HEARTBEATS, Watchdog
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.protocol import Phases

FAULT, _, _RANK = os.environ.get("FAULT", "none:-1").partition(":")
IS_IT = os.environ.get("RANK") == _RANK
STEP = 3
FOR_EVER_S = 10_000
BEGUN = Path("fault").absolute()


def for_ever() -> None:
    BEGUN.touch()
    time.sleep(FOR_EVER_S)


def switch_off_loopback() -> None:
    """Take the network of this machine's own addresses away, in the namespace that the test has made."""
    name = struct.pack("16sH14s", b"lo", 0, b"")
    with socket.socket() as asked:
        fcntl.ioctl(asked, 0x8914, name)  # SIOCSIFFLAGS


def heartbeat() -> Path:
    return Path("runs", HEARTBEATS, "c", f"rank{int(_RANK):04d}.json")


class Faulty(DDPStrategy):
    """DDP that does something wrong in its third step, on one rank."""

    step = 0

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        self.step += 1
        if self.step == STEP and IS_IT:
            wait_for(heartbeat().exists)  # by then its watchdog has been heard, however busy the machine is
            BEGUN.touch()
            if FAULT == "exit":
                os._exit(17)
            if FAULT == "sigstop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if FAULT == "mismatch":
                dist.all_gather([torch.zeros(7) for _ in range(2)], torch.zeros(7))
            if FAULT == "uneven":  # its loader has given it no batch for this step: it goes on to what comes next
                return torch.zeros(())
            if FAULT == "network":
                switch_off_loopback()
            if FAULT == "native":
                held()
        return super().forward_backward(micro_batches, phases)


def held() -> None:
    """Hold the interpreter in native code, so that no other thread of it runs."""
    import ctypes

    ctypes.PyDLL(None).sleep(FOR_EVER_S)


def replaced(original: Any, is_due: Any) -> Any:
    def instead(*arguments: Any, **named: Any) -> Any:
        if IS_IT and is_due(*arguments):
            for_ever()
        return original(*arguments, **named)

    return instead


def as_if_begun_now(come_by: Any) -> Any:
    def instead(self: Watchdog) -> None:
        come_by(self)
        if not BEGUN.exists():
            self._began = time.monotonic()
            for seen in list(self._seen.values()):
                seen.beaten_at = self._began

    return instead


Watchdog._skip_suspended_time = as_if_begun_now(Watchdog._skip_suspended_time)  # type: ignore[method-assign]
if FAULT == "loader":
    TrainBatches.step = replaced(TrainBatches.step, lambda _, step: step == STEP)  # type: ignore[method-assign]
if FAULT == "tokenize":
    from paratune.data import tokens

    tokens.cached_store = replaced(tokens.cached_store, lambda *_: True)
if FAULT == "slow":  # and healthy: each batch takes a while, on one rank only
    inner = TrainBatches.step

    def slowly(self: TrainBatches, step: int) -> list[Batch]:
        BEGUN.touch()
        time.sleep(2.0 if IS_IT else 0.0)
        return inner(self, step)

    TrainBatches.step = slowly  # type: ignore[method-assign]
if FAULT == "disk":
    from paratune import checkpoint

    checkpoint._write_shards = replaced(checkpoint._write_shards, lambda *_: True)
