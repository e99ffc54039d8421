"""Finds the cause of a hang from the heartbeats of all ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paratune.base.units import format_duration
from paratune.processes.heartbeat import Heartbeat

Cause = Literal[
    "stopped",
    "gone",
    "disk",
    "silent",
    "absent",
    "tokenizing",
    "loader",
    "checkpoint",
    "call",
    "behind",
    "mismatch",
    "network",
]
JOINING = "waiting for the other processes to join"
PREPARING = "preparing"
"""Values of `RankProgress.doing` before the process group exists."""
WAITING = "waiting for the tokens that another process makes"
"""Value of `RankProgress.detail` of a rank that waits for another one."""
READING = "read and tokenize the data"
"""Value of `RankProgress.work`."""
SAVING = ("writing a checkpoint", "writing the model")
NO_SIGN = "no bytes move any more. Look at the network, the disk and the stack"
"""Text for a call that reports no progress; the limit is longer for one that only computes."""


@dataclass(frozen=True)
class HangDiagnosis:
    """The cause of a hang."""

    cause: Cause
    ranks: tuple[int, ...]
    """Ranks that the others wait for; empty if all ranks are in the same place."""
    text: str
    """One or two sentences, with what to do."""


def diagnose(beats: Mapping[int, Heartbeat], world_size: int, silent: Mapping[int, str | None]) -> HangDiagnosis:
    """Return the cause of a hang.

    Args:
        beats: Last heartbeat of each known rank; of those that respond, with collectives.
        silent: Ranks without new heartbeats, with the state of their process (`process_state`), "gone" if it does not
            exist, or None if it is on another machine.
    """
    absent = tuple(sorted(set(range(world_size)) - set(beats)))
    if silent:
        return _silent_ranks(beats, silent)
    if absent:
        problem = f"{_ranks(absent)} {_has(absent, 'was', 'were')} not found: not started, or with another run.folder"
        return HangDiagnosis("absent", absent, f"{problem}. Look at the log of the launcher")
    at_work = [beat for beat in beats.values() if beat.doing != JOINING and not beat.detail.startswith(WAITING)]
    if at_work and len(at_work) < len(beats):
        return _late_ranks(at_work, "at the rendezvous")
    if not at_work:
        text = "all ranks run, but cannot connect: look at MASTER_ADDR, the interfaces and the firewall"
        return HangDiagnosis("network", (), text)
    late = _late(list(beats.values()))
    if late:
        return _late_ranks(late, "in a collective")
    return _all_ranks(list(beats.values()))


def _silent_ranks(beats: Mapping[int, Heartbeat], silent: Mapping[int, str | None]) -> HangDiagnosis:
    ranks = tuple(sorted(silent))
    first = beats[ranks[0]]
    whose = f"{_ranks(ranks)} (process {first.pid} on {first.host}; last at {first.where()})"
    state, are = silent[ranks[0]], _has(ranks, "is", "are")
    causes: dict[str | None, tuple[Cause, str]] = {
        "T": ("stopped", f"{are} stopped (SIGSTOP, a debugger, a suspended job): kill -CONT {first.pid}"),
        "gone": ("gone", f"{are} gone: killed, by the kernel (memory) or by a user. Look at its log and at dmesg"),
        "D": ("disk", f"{_has(ranks, 'waits', 'wait')} for a disk or a network file system that does not respond"),
        None: (
            "silent",
            f"no longer {_has(ranks, 'writes', 'write')}: the machine, its network or the file system is gone",
        ),
    }
    blocked: tuple[Cause, str] = (
        "silent",
        f"{are} in native code that blocks all other threads; its stack shows where",
    )
    cause, text = causes.get({"t": "T", "Z": "gone"}.get(state or "", state), blocked)
    return HangDiagnosis(cause, ranks, f"{whose} {text}")


def _late(beats: Sequence[Heartbeat]) -> list[Heartbeat]:
    """Return the ranks that have not entered the collective in which others wait; empty if all have, or none waits."""
    if not any(beat.waits for beat in beats):
        return []
    free = [beat for beat in beats if not beat.waits]
    if free:
        return free
    numbers = {beat.rank: beat.last.number for beat in beats if beat.last is not None}
    groups = {beat.last.group for beat in beats if beat.last is not None}
    if len(groups) > 1 or len(set(numbers.values())) == 1:
        return []
    return [beat for beat in beats if numbers[beat.rank] == min(numbers.values())]


def _late_ranks(late: Sequence[Heartbeat], how: str) -> HangDiagnosis:
    """Return the cause for ranks that the others wait for."""
    ranks, first = tuple(sorted(beat.rank for beat in late)), min(late, key=lambda beat: beat.rank)
    waited = f"the others wait {how} for {_ranks(ranks)}, which {_has(ranks, 'has', 'have')} been at {first.where()} "
    waited += f"for {format_duration(first.for_s)}"
    return _at_work(ranks, first, waited, can_read=how == "at the rendezvous")


def _at_work(ranks: tuple[int, ...], beat: Heartbeat, where: str, *, can_read: bool) -> HangDiagnosis:
    """Return the cause for ranks that make no progress outside of collectives."""
    if can_read and beat.doing == PREPARING and beat.work in (None, READING):
        text = "tokenizing, or reading the files, makes no progress. Look at the disk of data.cache_dir"
        return HangDiagnosis("tokenizing", ranks, f"{where}: {text}")
    if beat.phase == "get_batch":
        text = "it waits for a batch. Look at the loader processes and at the disk"
        return HangDiagnosis("loader", ranks, f"{where}: {text}")
    if beat.doing in SAVING:
        return HangDiagnosis("checkpoint", ranks, f"{where}: the disk of run.folder does not accept data")
    if beat.work is not None:
        return HangDiagnosis("call", ranks, f"{where}: {NO_SIGN}")
    return HangDiagnosis("behind", ranks, f"{where}; its stack shows where")


def _all_ranks(beats: Sequence[Heartbeat]) -> HangDiagnosis:
    """Return the cause if all ranks are in a collective, or none is."""
    lasts = {beat.rank: beat.last for beat in beats}
    kinds = {rank: (last.name, last.sizes) for rank, last in lasts.items() if last is not None}
    if not any(beat.waits for beat in beats):
        beat = max(beats, key=lambda beat: beat.for_s)
        where = f"rank {beat.rank} has been at {beat.where()} for {format_duration(beat.for_s)}"
        return _at_work((beat.rank,), beat, where, can_read=True)
    if len(set(kinds.values())) > 1:
        usual = Counter(kinds.values()).most_common(1)[0][0]
        odd = tuple(sorted(rank for rank in kinds if kinds[rank] != usual))
        calls = "; ".join(f"rank {beat.rank} is in {lasts[beat.rank]} at {beat.where()}" for beat in beats)
        why = "a branch that only some ranks take"
        if len({(beat.step, beat.phase, beat.doing) for beat in beats}) > 1:
            why = "unequal numbers of batches, or a branch that only some ranks take"
        return HangDiagnosis("mismatch", odd, f"the ranks wait in different collectives: {calls}. Look for {why}")
    down = [f"{', '.join(beat.interfaces_down)} on {beat.host}" for beat in beats if beat.interfaces_down]
    off = f" Interfaces down: {'; '.join(dict.fromkeys(down))}." if down else ""
    last = next(iter(lasts.values()))
    text = f"all ranks are in {last}, which does not end: no data passes between them.{off} "
    return HangDiagnosis("network", (), f"{text}Look at the interfaces, the switch and the firewall; paratune doctor")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _has(ranks: Sequence[int], singular: str, plural: str) -> str:
    return singular if len(ranks) == 1 else plural
