"""Rounds of a matrix: `paratune sweep --until` adds a seed or repeat only to configurations that are not decided."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from paratune.errors import ConfigError, option_error
from paratune.records.sweep import CellRecord, Configuration, Rounds, SweepRecord
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.plan import block_of

FIRST_BLOCKS = 3
"""Runs that every configuration gets before the first look: fewer do not show how much runs vary."""
UNTIL = ("decided", "speed", "quality")
"""What has to be decided: all measures of a verdict, its speed, or its scores."""
NOT_NEEDED = "not needed: its verdict was decided with fewer runs (--until)"
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")


def read_rounds(matrix: Matrix, cells: Sequence[CellRecord], until: str | None, budget: str | None) -> Rounds | None:
    """Return the rounds that `--until`, and `--budget` of all runs together, request; None without `--until`.

    Raises:
        ConfigError: An option cannot be read, or has no effect.
    """
    if until is None:
        if budget is not None:
            message = "--budget has no effect without --until; add --until decided, or leave it out"
            raise ConfigError(message, code="cli.no_effect", option="--budget")
        return None
    if until not in UNTIL:
        raise option_error("--until", until, f"one of {', '.join(UNTIL)} is needed", code="cli.invalid_value")
    if until == "quality" and all(cell.kind == "probe" for cell in cells):
        raise option_error("--until", until, "probes have no scores; use --until speed", code="cli.no_effect")
    num_planned = len({block_of(cell, matrix.axes) for cell in cells})
    if num_planned <= FIRST_BLOCKS:
        reason = (
            f"it has no effect: {matrix.source.name} has {num_planned} runs of a configuration, and the first "
            f"{FIRST_BLOCKS} are always made; give more seeds on the axis of run.seed, or more repeats:"
        )
        raise option_error("--until", until, reason, code="cli.no_effect")
    if budget is None:
        return Rounds(until, num_planned)
    match = _DURATION.fullmatch(budget.strip())
    parts = match.groups() if match is not None else ()
    seconds = sum(float(part or 0) * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise option_error("--budget", budget, "a duration such as 8h or 1h30m is needed", code="cli.invalid_value")
    return Rounds(until, num_planned, seconds)


def next_round(record: SweepRecord, todo: Sequence[Cell], undecided: Collection[Configuration]) -> list[Cell]:
    """Return the runs of `todo` that are the next round; none when nothing is left that is needed.

    The first round is `FIRST_BLOCKS` runs of every configuration. Each later one is a run of every configuration whose
    verdict is undecided, baselines included.
    """
    first_blocks = sorted({block_of(cell, record.axes) for cell in record.cells})[:FIRST_BLOCKS]
    block = {cell.name: block_of(cell.record, record.axes) for cell in todo}
    first = [cell for cell in todo if block[cell.name] in first_blocks]
    needed = [cell for cell in todo if record.configuration_of(cell.record) in undecided]
    return first or [cell for cell in needed if block[cell.name] == min(block[other.name] for other in needed)]


def is_over_budget(record: SweepRecord, cell: Cell) -> bool:
    """Return whether another run would exceed the budget of all runs of the matrix, of earlier calls too."""
    budget_s = None if record.rounds is None else record.rounds.budget_s
    used_s = sum(cell.took_s or 0.0 for cell in record.cells)
    return budget_s is not None and used_s + (record.expected_s(cell.record) or 0.0) > budget_s


def end_rounds(record: SweepRecord, not_needed: Sequence[Cell], ended: str) -> SweepRecord:
    """Return the record at the end of the rounds, with the time that the runs that were not needed would have used."""
    assert record.rounds is not None
    saved_s = sum(record.expected_s(cell.record) or 0.0 for cell in not_needed)
    rounds = replace(record.rounds, ended=ended, num_saved=len(not_needed), saved_s=saved_s)
    for cell in not_needed:
        record = record.with_cell(replace(cell.record, state="skipped", reason=NOT_NEEDED, is_needed=False))
    return replace(record, rounds=rounds)
