"""Main effects of the axes of a matrix: what a value changes on average over the values of the other axes.

A matrix of strategy, precision and learning rate has one effect for each value of an axis, in place of a comparison
within each combination of the others. The effect is the mean, over the combinations that have both values, of the
difference of cell means: the least-squares effect of a balanced design. Variances of cells are pooled where they are
alike, and are Welch's elsewhere. An interaction is a difference that varies over the combinations.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paratune.verdicts.estimate import ALPHA, Estimate, Side, holm
from paratune.verdicts.finding import MeasureComparison, UncorrectedComparison, decide, with_interval
from paratune.verdicts.groups import Group
from paratune.verdicts.judge import metrics_of, shared_split
from paratune.verdicts.margins import SPEED, Margin, default_margin
from paratune.verdicts.order import ADJUST_BELOW, Floats, order_model, run_time
from paratune.verdicts.pooling import common_sides
from paratune.verdicts.scores import difference
from paratune.verdicts.sequential import FIRST_LOOK, LookHistory

Levels = Mapping[str, str]
"""Name of the value of each axis."""
_RATE = "summary.throughput.samples_per_s"


@dataclass(frozen=True)
class FactorCell:
    """A configuration by its values."""

    levels: Levels
    group: Group


@dataclass(frozen=True)
class Interaction:
    """How the effect of a value varies over the combinations of the other axes."""

    p_value: float
    """Of "it is the same in all of them", corrected by Holm's rule over all effects of a measure."""
    least: float
    """Smallest effect in a combination, in the unit of the change."""
    most: float
    matters: bool
    """Whether p is at most 5%, and an effect is further from the mean one than the margin."""


@dataclass(frozen=True)
class FactorEffect:
    """The effect of a value of an axis on one measure, against the baseline's value."""

    axis: str
    level: str
    baseline: str
    comparison: MeasureComparison
    num_combinations: int
    """Combinations of the other axes that have both values."""
    interaction: Interaction | None = None
    """None for a single combination, and for scores."""


def factor_effects(
    cells: Sequence[FactorCell],
    baseline: Levels,
    margins: Mapping[str, Margin] | None = None,
    *,
    history: LookHistory | None = None,
) -> list[FactorEffect]:
    """Return the main effects of all axes with two values or more, on speed and on the scores that all runs have.

    An axis that changes the global batch size has no effect on speed here: a sample is not worth the same then.

    Args:
        baseline: Value of each axis with which its others are compared.
        margins: By measure; `default_margin` for those that are absent.
    """
    effects: list[FactorEffect] = []
    runs = [run for cell in cells for run in cell.group.runs]
    task, split = str(runs[0].get("run.task.kind")), shared_split(runs)
    given, history = margins or {}, history or LookHistory()
    adjusted = _logs(cells)
    for axis, base in baseline.items():
        levels = [level for level in dict.fromkeys(cell.levels[axis] for cell in cells) if level != base]
        pairs = {level: some for level in levels if (some := _pairs(cells, axis, base, level))}
        margin = given.get(SPEED) or default_margin(SPEED, task)
        speeds = [_speed(adjusted, cells, some, margin) for some in pairs.values()]
        for level, comparison in _decided(cells, pairs, speeds, history):
            some = pairs[level]
            interaction = _interaction(adjusted, cells, some, comparison) if comparison.change is not None else None
            effects.append(FactorEffect(axis, level, base, comparison, len(some), interaction))
        for metric in metrics_of(runs, split, [*given]):
            assert split is not None
            margin = given.get(metric) or default_margin(metric, task)
            sides = [(_merged(cells, some, 0), _merged(cells, some, 1)) for some in pairs.values()]
            scores = [difference(first, second, split, metric, margin) for first, second in sides]
            for level, comparison in _decided(cells, pairs, scores, history):
                effects.append(FactorEffect(axis, level, base, comparison, len(pairs[level])))
    return _with_holm(effects)


def _decided(
    cells: Sequence[FactorCell],
    pairs: Mapping[str, Sequence[tuple[int, int]]],
    measured: Sequence[UncorrectedComparison],
    history: LookHistory,
) -> Iterator[tuple[str, MeasureComparison]]:
    """Yield each value of an axis with its decided comparison."""
    looked = []
    for some, comparison in zip(pairs.values(), measured, strict=True):
        names = [{run.name for run in _merged(cells, some, side).runs} for side in (0, 1)]
        looks = history.at(*names) or FIRST_LOOK
        looked.append(replace(comparison, looks=looks, num_planned=history.num_planned))
    return zip(pairs, decide(looked), strict=True)


def _pairs(cells: Sequence[FactorCell], axis: str, base: str, level: str) -> list[tuple[int, int]]:
    """Return the places of cells that differ only on an axis."""
    at = {tuple(sorted(cell.levels.items())): place for place, cell in enumerate(cells)}
    pairs = []
    for place, cell in enumerate(cells):
        other = at.get(tuple(sorted({**cell.levels, axis: level}.items())))
        if cell.levels[axis] == base and other is not None:
            pairs.append((place, other))
    return pairs


def _merged(cells: Sequence[FactorCell], pairs: Sequence[tuple[int, int]], side: int) -> Group:
    """Return the runs of one value in all combinations; scores are averaged over those of a seed."""
    return Group(str(side), tuple(run for pair in pairs for run in cells[pair[side]].group.runs))


@dataclass(frozen=True)
class _CellRates:
    """Logarithms of rates of all cells, adjusted for the order of runs where there is a drift."""

    values: list[list[float] | None]
    """None for a cell with an unknown rate."""
    sides: list[Side | None]
    """None for a cell with one run."""
    covariates: list[Floats] | None = None
    covariance: Floats | None = None
    freedom: float = math.inf


def _logs(cells: Sequence[FactorCell]) -> _CellRates:
    rates = [[run.number(_RATE) for run in cell.group.runs] for cell in cells]
    values = [
        [math.log(rate) for rate in some if rate] if all(rate and rate > 0 for rate in some) else None for some in rates
    ]
    times = [[run_time(run) for run in cell.group.runs] for cell in cells]
    full = [place for place, some in enumerate(values) if some is not None and len(some) > 1]
    covariates = covariance = None
    freedom = math.inf
    leverages = [0.0] * len(cells)
    known = [[time for time in times[place] if time is not None] for place in full]
    if len(full) == len(cells) and all(len(some) == len(times[place]) for some, place in zip(known, full, strict=True)):
        model = order_model([some for some in values if some is not None], known)
        if model is not None and model.p_value < ADJUST_BELOW:
            values = [model.adjusted(some, place) for place, some in enumerate(values) if some is not None]
            covariates, covariance, freedom = list(model.columns), model.covariance, model.freedom
            leverages = list(model.leverages)
    sides: list[Side | None] = [None] * len(cells)
    for place in full:
        some = values[place]
        assert some is not None
        free = len(some) - 1 - leverages[place]
        square = float(np.square(np.asarray(some) - np.mean(some)).sum()) / free
        sides[place] = Side(square, len(some), own_freedom=free)
    alike = common_sides([side for side in sides if side is not None]) if len(full) > 1 else []
    for place, side in zip(full, alike, strict=False):
        sides[place] = side
    return _CellRates(values, sides, covariates, covariance, freedom)


def _speed(
    rates: _CellRates, cells: Sequence[FactorCell], pairs: Sequence[tuple[int, int]], margin: Margin
) -> UncorrectedComparison:
    places = [place for pair in pairs for place in pair]
    counts = tuple(sum(len(cells[pair[side]].group.runs) for pair in pairs) for side in (0, 1))
    bare = MeasureComparison(SPEED, True, None, None, (counts[0], counts[1]), margin=margin.of(1.0))
    if any(len(_batches(cells[a]) | _batches(cells[b])) > 1 for a, b in pairs):
        return UncorrectedComparison(replace(bare, code="not_same_experiment", reason="the global batch size differs"))
    values = [[rates.values[pair[side]] for pair in pairs] for side in (0, 1)]
    if any(some is None for side in values for some in side):
        return UncorrectedComparison(replace(bare, code="unknown_value", reason="a rate is not recorded"))
    means = [float(np.mean([np.mean(some) for some in side if some is not None])) for side in values]
    finding = replace(
        bare, baseline=math.exp(means[0]), value=math.exp(means[1]), change=math.expm1(means[1] - means[0])
    )
    sides = [rates.sides[place] for place in places]
    if any(side is None for side in sides):
        return UncorrectedComparison(replace(finding, code="one_run", reason="one run in a combination"))
    weight = 1 / len(pairs)
    scaled = tuple(replace(side, mean_square=side.mean_square * weight**2) for side in sides if side is not None)
    estimate = Estimate(means[1] - means[0], scaled, 0.0, 0, "runs")
    if rates.covariates is not None and rates.covariance is not None:
        apart = np.mean([rates.covariates[b].mean(axis=0) - rates.covariates[a].mean(axis=0) for a, b in pairs], axis=0)
        estimate = replace(estimate, drift=float(apart @ rates.covariance @ apart), drift_freedom=rates.freedom)
    return UncorrectedComparison(with_interval(finding, estimate), estimate)


def _batches(cell: FactorCell) -> set[float | None]:
    return {run.number("run.batch.global_batch_size") for run in cell.group.runs}


def _interaction(
    rates: _CellRates, cells: Sequence[FactorCell], pairs: Sequence[tuple[int, int]], comparison: MeasureComparison
) -> Interaction | None:
    """Return how the effect varies over combinations: an F test with the mean variance of a combination's effect.

    With unequal variances its degrees of freedom are Satterthwaite's.
    """
    from scipy import special

    if len(pairs) < 2:
        return None
    apart, variances, below = [], [], 0.0
    for pair in pairs:
        values, sides = [rates.values[place] for place in pair], [rates.sides[place] for place in pair]
        if any(some is None for some in values) or any(side is None for side in sides):
            return None
        apart.append(float(np.mean(values[1] or ())) - float(np.mean(values[0] or ())))
        variances.append(sum(side.variance for side in sides if side is not None))
        below += sum(side.variance**2 / side.degrees_of_freedom for side in sides if side is not None)
    pooled = {side.pooled_freedom for pair in pairs for side in (rates.sides[place] for place in pair) if side}
    freedom = sum(variances) ** 2 / below if below else math.inf
    if len(pooled) == 1 and 0 not in pooled:
        freedom = pooled.pop()
    between = float(np.var(apart, ddof=1))
    mean = float(np.mean(variances))
    p_value = float(special.fdtrc(len(pairs) - 1, freedom, between / mean)) if mean else float(between == 0)
    margin = math.log1p(comparison.margin or 0.0)
    far = max(abs(value - float(np.mean(apart))) for value in apart) > margin
    return Interaction(p_value, math.expm1(min(apart)), math.expm1(max(apart)), far)


def _with_holm(effects: Sequence[FactorEffect]) -> list[FactorEffect]:
    """Return effects with the p-values of their interactions corrected."""
    places = [place for place, effect in enumerate(effects) if effect.interaction is not None]
    p_values = holm([effect.interaction.p_value for effect in effects if effect.interaction is not None])
    corrected = list(effects)
    for place, p_value in zip(places, p_values, strict=True):
        interaction = effects[place].interaction
        assert interaction is not None
        matters = p_value <= ALPHA and interaction.matters
        corrected[place] = replace(effects[place], interaction=replace(interaction, p_value=p_value, matters=matters))
    return corrected
