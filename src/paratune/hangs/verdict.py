"""Who is missing, and why: from what all ranks say of themselves at the moment when nobody gets on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paratune.base.units import format_duration
from paratune.hangs.beat import Beat

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
MEETING = "waiting for the other processes to join"
PREPARING = "preparing"
"""What ranks say of themselves before they have met, in `Pulse.doing`."""
WAITING = "waiting for the tokens that another process makes"
"""In `Pulse.detail` of a rank that is not at work itself."""
READING = "read and tokenize the data"
"""In `Pulse.work`."""
SAVING = ("writing a checkpoint", "writing the model")
NO_SIGN = "no bytes move any more. Look at the network, the disk and the stack"
"""Of a call that reports no progress itself; one that only computes is waited for longer."""


@dataclass(frozen=True)
class HangVerdict:
    """Why a run stands still."""

    cause: Cause
    ranks: tuple[int, ...]
    """Those for which the others wait; empty when all do the same."""
    text: str
    """A sentence or two, with what to do."""


def judge(beats: Mapping[int, Beat], world_size: int, silent: Mapping[int, str | None]) -> HangVerdict:
    """Say who is missing.

    Args:
        beats: The last word of each rank that was ever heard; of those that answer, with their collectives.
        world_size: Ranks that there should be.
        silent: Ranks that no longer write, with the system's letter for their process (`process_state`), "gone" when
            there is none, or None when it is on another machine.
    """
    absent = tuple(sorted(set(range(world_size)) - set(beats)))
    if silent:
        return _of_silent(beats, silent)
    if absent:
        said = f"{_ranks(absent)} {_has(absent, 'was', 'were')} not found: not started, or with another run.folder"
        return HangVerdict("absent", absent, f"{said} folder there. Look at the log of what starts the processes")
    at_work = [beat for beat in beats.values() if beat.doing != MEETING and not beat.detail.startswith(WAITING)]
    if at_work and len(at_work) < len(beats):
        return _of_work(at_work, "to meet it")
    if not at_work:
        text = "all ranks are there, and do not reach each other: look at MASTER_ADDR, the interfaces and the firewall"
        return HangVerdict("network", (), text)
    late = _late(list(beats.values()))
    if late:
        return _of_work(late, "in a collective")
    return _of_all(list(beats.values()))


def _of_silent(beats: Mapping[int, Beat], silent: Mapping[int, str | None]) -> HangVerdict:
    ranks = tuple(sorted(silent))
    first = beats[ranks[0]]
    whose = f"{_ranks(ranks)} ({_place(first)}; last at {first.where()})"
    state = silent[ranks[0]]
    if state in ("T", "t"):
        text = (
            f"{whose} {_has(ranks, 'is', 'are')} stopped (SIGSTOP, a debugger, a suspended job): kill -CONT {first.pid}"
        )
        return HangVerdict("stopped", ranks, text)
    if state in ("gone", "Z"):
        text = f"{whose} {_has(ranks, 'is', 'are')} gone: killed, by memory or by hand. Look at its log and at dmesg"
        return HangVerdict("gone", ranks, text)
    if state == "D":
        text = f"{whose} {_has(ranks, 'waits', 'wait')} for a disk or a network file system that does not answer"
        return HangVerdict("disk", ranks, text)
    if state is None:
        text = (
            f"{whose} no longer {_has(ranks, 'writes', 'write')}: the machine, its network or the file system is gone"
        )
        return HangVerdict("silent", ranks, text)
    text = f"{whose} {_has(ranks, 'is', 'are')} in native code that blocks all other threads; its stack shows where"
    return HangVerdict("silent", ranks, text)


def _late(beats: Sequence[Beat]) -> list[Beat]:
    """Return the ranks that have not begun the exchange that others wait in; none when all have, or none waits."""
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


def _of_work(late: Sequence[Beat], how: str) -> HangVerdict:
    """Say what the ranks are at for which the others wait."""
    ranks, first = tuple(sorted(beat.rank for beat in late)), min(late, key=lambda beat: beat.rank)
    waited = f"the others wait {how} for {_ranks(ranks)}, which {_has(ranks, 'has', 'have')} been at {first.where()} "
    waited += f"for {format_duration(first.for_s)}"
    if how == "to meet it" and _reads_data(first):
        text = f"{waited}: tokenizing, or reading the files, makes no progress. Look at the disk of data.cache_dir"
        return HangVerdict("tokenizing", ranks, text)
    if first.phase == "get_batch":
        return HangVerdict(
            "loader", ranks, f"{waited}: it waits for a batch. Look at the loader processes and at the disk"
        )
    if first.doing in SAVING:
        return HangVerdict("checkpoint", ranks, f"{waited}: the disk of run.folder does not take what is written")
    if first.work is not None:
        return HangVerdict("call", ranks, f"{waited}: {NO_SIGN}")
    return HangVerdict("behind", ranks, f"{waited}; its stack shows where")


def _of_all(beats: Sequence[Beat]) -> HangVerdict:
    """Judge ranks that are all in an exchange, or all outside of one."""
    lasts = {beat.rank: beat.last for beat in beats}
    kinds = {rank: (last.name, last.sizes) for rank, last in lasts.items() if last is not None}
    if not any(beat.waits for beat in beats):
        return _alone(max(beats, key=lambda beat: beat.for_s))
    if len(set(kinds.values())) > 1:
        usual = Counter(kinds.values()).most_common(1)[0][0]
        odd = tuple(sorted(rank for rank in kinds if kinds[rank] != usual))
        said = "; ".join(f"rank {beat.rank} is in {lasts[beat.rank]} at {beat.where()}" for beat in beats)
        why = "a branch that only some of them take"
        if len({(beat.step, beat.phase, beat.doing) for beat in beats}) > 1:
            why = "unequal numbers of batches, or a branch that only some of them take"
        return HangVerdict("mismatch", odd, f"the ranks wait in different collectives: {said}. Look for {why}")
    down = [f"{', '.join(beat.interfaces_down)} on {beat.host}" for beat in beats if beat.interfaces_down]
    off = f" Switched off: {'; '.join(dict.fromkeys(down))}." if down else ""
    last = next(iter(lasts.values()))
    text = f"all ranks are in {last}, and it does not end: the network between them carries nothing.{off} "
    return HangVerdict("network", (), f"{text}Look at the interfaces, the switch and the firewall; paratune doctor")


def _alone(beat: Beat) -> HangVerdict:
    where = f"rank {beat.rank} has been at {beat.where()} for {format_duration(beat.for_s)}"
    if beat.phase == "get_batch":
        return HangVerdict(
            "loader", (beat.rank,), f"{where}: it waits for a batch. Look at the loader processes and the disk"
        )
    if beat.doing in SAVING:
        return HangVerdict("checkpoint", (beat.rank,), f"{where}: the disk of run.folder does not take what is written")
    if _reads_data(beat):
        return HangVerdict("tokenizing", (beat.rank,), f"{where}: reading or tokenizing makes no progress")
    if beat.work is not None:
        return HangVerdict("call", (beat.rank,), f"{where}: {NO_SIGN}")
    return HangVerdict("behind", (beat.rank,), f"{where}; its stack shows where")


def _reads_data(beat: Beat) -> bool:
    return beat.doing == PREPARING and beat.work in (None, READING)


def _place(beat: Beat) -> str:
    return f"process {beat.pid} on {beat.host}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _has(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several
