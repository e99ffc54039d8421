"""Main effects of the axes of a matrix: what a value changes on average over the values of the other axes.

A matrix of strategy, precision and learning rate has one effect for each value of an axis, in place of a comparison
within each combination of the others. The effect is the mean, over the combinations that have both values, of the
difference of cell means: the least-squares effect of a balanced design. Variances of cells are pooled where they are
alike, and are Welch's elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from paratune.verdicts.finding import MeasureComparison, change_of_log, decide
from paratune.verdicts.groups import SPEED, Group, Margin, default_margin
from paratune.verdicts.judge import metrics_of, shared_split
from paratune.verdicts.scores import differences
from paratune.verdicts.sequential import LookHistory
from paratune.verdicts.speeds import Speeds, logs_of, speeds_of

Levels = Mapping[str, str]
"""Name of the value of each axis."""
Pairs = Sequence[tuple[int, int]]
"""Places of cells that differ only on an axis, the baseline's value first."""


@dataclass(frozen=True)
class FactorCell:
    """A configuration by its values."""

    levels: Levels
    group: Group


@dataclass(frozen=True)
class FactorEffect:
    """The effect of a value of an axis on one measure, against the baseline's value."""

    axis: str
    level: str
    baseline: str
    comparison: MeasureComparison
    num_combinations: int
    """Combinations of the other axes that have both values."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; unknown values are None."""
        return {**vars(self), "comparison": self.comparison.as_dict()}


def factor_effects(
    cells: Sequence[FactorCell],
    baseline: Levels,
    margins: Mapping[str, Margin] | None = None,
    *,
    history: LookHistory | None = None,
) -> list[FactorEffect]:
    """Return the main effects of all axes with two values or more, on speed and on the scores that all runs have.

    `baseline` is the value of each axis with which its others are compared. An axis that changes the global batch size
    has no effect on speed here: a sample is not worth the same then. `margins` and `history` are those of `judge`.
    """
    runs = [run for cell in cells for run in cell.group.runs]
    task, split = str(runs[0].run.task.kind), shared_split(runs)
    margins, history = margins or {}, history or LookHistory()
    rates = [[run.summary.throughput.samples_per_s for run in cell.group.runs] for cell in cells]
    are_known = all(len(some) > 1 and len(logs_of(some)) == len(some) for some in rates)
    speeds = speeds_of([cell.group for cell in cells], rates) if are_known else None
    effects: list[FactorEffect] = []
    for axis, base in baseline.items():
        levels = [level for level in dict.fromkeys(cell.levels[axis] for cell in cells) if level != base]
        pairs = {level: some for level in levels if (some := _pairs(cells, axis, base, level))}
        # All runs of a value: scores are averaged over the combinations of a seed.
        sides = [
            [Group(str(at), tuple(run for pair in some for run in cells[pair[at]].group.runs)) for at in (0, 1)]
            for some in pairs.values()
        ]
        looks = [history.at(first.runs, second.runs) for first, second in sides]
        for measure in (SPEED, *metrics_of(runs, split, [*margins])):
            margin = margins.get(measure) or default_margin(measure, task)
            if measure == SPEED:
                measured = [_speed(speeds, cells, rates, some, margin) for some in pairs.values()]
            else:
                measured = [differences(first, [second], split or "", measure, margin)[0] for first, second in sides]
            for level, comparison in zip(pairs, decide(measured, looks, history.num_planned), strict=True):
                effects.append(FactorEffect(axis, level, base, comparison, len(pairs[level])))
    return effects


def _pairs(cells: Sequence[FactorCell], axis: str, base: str, level: str) -> list[tuple[int, int]]:
    """Return the places of cells that differ only on an axis."""
    at = {tuple(sorted(cell.levels.items())): place for place, cell in enumerate(cells)}
    pairs = []
    for place, cell in enumerate(cells):
        other = at.get(tuple(sorted({**cell.levels, axis: level}.items())))
        if cell.levels[axis] == base and other is not None:
            pairs.append((place, other))
    return pairs


def _speed(
    speeds: Speeds | None, cells: Sequence[FactorCell], rates: Sequence[Sequence[float | None]], pairs: Pairs,
    margin: Margin,
) -> MeasureComparison:  # fmt: skip
    """Return the comparison of the rates of two values; `speeds` is None where a cell has one run or no rate."""
    counts = tuple(sum(len(rates[pair[side]]) for pair in pairs) for side in (0, 1))
    bare = MeasureComparison(SPEED, True, None, None, (counts[0], counts[1]), margin=margin.of(1.0))
    groups = [(cells[base].group, cells[other].group) for base, other in pairs]
    if any(len({run.run.batch.global_batch_size for run in (*a.runs, *b.runs)}) > 1 for a, b in groups):
        return bare.without_change("not_same_experiment", "the global batch size differs")
    known = [[logs_of(rates[pair[side]]) for pair in pairs] for side in (0, 1)]
    if tuple(sum(map(len, side)) for side in known) != counts:
        return bare.without_change("unknown_value", "a rate is not recorded")
    means = [fmean(fmean(logs) for logs in side) for side in known]
    change = change_of_log(means[1] - means[0])
    found = replace(bare, baseline=math.exp(means[0]), value=math.exp(means[1]), change=change)
    if all(first.cannot_differ(second) for first, second in groups):
        return found.as_placebo()
    if speeds is None:
        return replace(found, code="one_run", reason="one run in a combination")
    return replace(found, control=speeds.control).with_interval(speeds.change(pairs))
