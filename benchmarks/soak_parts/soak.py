"""All kinds in turn until the time is over: the next kind is the one that has used the least of its share."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import jobs, killer, warm
from .findings import DIFFERENCE, Count, Finding
from .fuzz import Reader, run_batch
from .kinds import KINDS, Kind
from .readers import READERS
from .trials import Reference, refer, run_trial

MOST_FINDINGS = 5
"""Findings of a kind, after which it is left out."""


@dataclass
class _Turn:
    """A kind with its counts."""

    count: Count
    share: float
    run: Callable[[int], tuple[int, int, list[Finding]]]
    """Runs a trial by number; returns kills, inputs, findings."""

    def take(self, number: int) -> None:
        began = time.monotonic()
        kills, inputs, findings = self.run(number)
        self.count.trials += 1
        self.count.kills += kills
        self.count.inputs += inputs
        self.count.findings += findings
        self.count.seconds += time.monotonic() - began

    @property
    def is_open(self) -> bool:
        return self.count.skipped is None and len(self.count.findings) < MOST_FINDINGS

    @property
    def had(self) -> float:
        return self.count.seconds / self.share


def names(*, readers: bool = True) -> list[str]:
    """Return all kinds: commands, then readers."""
    commands = [*(kind.name for kind in KINDS), jobs.NAME]
    return [*commands, *(reader.name for reader in READERS)] if readers else commands


def run(
    chosen: Sequence[str], seed: int, folder: Path, *, seconds: float, kills: float, trial: int | None, reading: float
) -> list[Count]:
    """Run trials of the chosen kinds; with `trial` only that one.

    Args:
        chosen: Names of kinds.
        seed: Seed of all draws.
        folder: Folder for the trials; those with findings stay.
        seconds: Time for all together, from now on.
        kills: Number of kills after which no trial begins.
        trial: Number of the trial to run.
        reading: Share of the time for readers, if there are commands as well.

    Returns:
        The counts, in the order of `names`.
    """
    end = time.monotonic() + seconds
    turns = [_command(kind, seed, folder) for kind in KINDS if kind.name in chosen]
    if jobs.NAME in chosen:
        turns.append(_jobs(seed, folder))
    readers = [_reader(reader, seed, folder, trial is not None) for reader in READERS if reader.name in chosen]
    share = 1.0 if not turns else reading / (1 - reading) * sum(turn.share for turn in turns) / max(1, len(readers))
    for reader in readers:
        reader.share = share
    turns += readers
    random.Random(seed).shuffle(turns)  # so that a short soak starts with different kinds each time
    warm.preload()
    if trial is not None:
        turns[0].take(trial)
        return [turns[0].count]
    last = time.monotonic()
    while time.monotonic() < end and sum(turn.count.kills for turn in turns) < kills:
        if not (left := [turn for turn in turns if turn.is_open]):
            break
        turn = min(left, key=lambda turn: (turn.count.trials > 0, turn.had))
        num_before = len(turn.count.findings)
        turn.take(turn.count.trials)
        for finding in turn.count.findings[num_before:]:
            print(f"{finding.kind}, trial {finding.trial}: {finding.sort}: {finding.text[:300]}", flush=True)
        if time.monotonic() - last > 60:
            last = time.monotonic()
            counts = [turn.count for turn in turns]
            print(f"{sum(c.kills for c in counts)} kills, {sum(c.inputs for c in counts)} inputs", flush=True)
    order = names()
    return sorted((turn.count for turn in turns), key=lambda count: order.index(count.kind))


def _jobs(seed: int, folder: Path) -> _Turn:
    count = Count(jobs.NAME, skipped=jobs.missing())
    if count.skipped is not None:
        print(f"{jobs.NAME}: not run: {count.skipped}", flush=True)

    def take(number: int) -> tuple[int, int, list[Finding]]:
        kills, findings = jobs.run_trial(number, seed, folder)
        return kills, 0, findings

    return _Turn(count, 1.0, take)


def _command(kind: Kind, seed: int, folder: Path) -> _Turn:
    count = Count(kind.name, skipped=kind.missing)
    if kind.missing is not None:
        print(f"{kind.name}: not run: {kind.missing}", flush=True)
    references: list[Reference] = []

    def take(number: int) -> tuple[int, int, list[Finding]]:
        place = folder / kind.name.replace(" ", "-")
        if not references:
            try:
                references.append(refer(kind, place, killer.is_loaded()))
            except RuntimeError as error:
                count.skipped = "it fails without a disturbance"
                return 0, 0, [Finding(DIFFERENCE, kind.name, number, str(error))]
        kills, findings = run_trial(references[0], number, seed, place / f"trial{number}")
        return kills, 0, findings

    return _Turn(count, kind.share, take)


def _reader(reader: Reader, seed: int, folder: Path, reduces: bool) -> _Turn:
    def take(number: int) -> tuple[int, int, list[Finding]]:
        reader.prepare()
        inputs, findings = run_batch(reader, number, seed, folder, reduces=reduces)
        return 0, inputs, findings

    return _Turn(Count(reader.name), 1.0, take)
