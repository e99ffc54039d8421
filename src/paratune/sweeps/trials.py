"""Which runs of a search follow from the scores of earlier ones: successive halving, and suggestions of Optuna.

Successive halving: Jamieson and Talwalkar, AISTATS 2016. The trials of a round train a number of steps; the best
continue to the next round with more steps. Each run trains from the start, because the learning rate of a step depends
on the number of steps.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune.config.metric_names import direction
from paratune.config.plain import one_line
from paratune.errors import require_installed
from paratune.records import SUMMARY_FILE, read_json
from paratune.records.sweep import CellRecord, SweepRecord, cell_run_folder
from paratune.sweeps.search import STEPS, TRIAL, Range, Search, named, sampled
from paratune.sweeps.values import short

NOT_NEEDED = "not needed: its trial was not among the best of a round before (search.method: halving)"


@dataclass(frozen=True)
class Needed:
    """Runs of successive halving at some time."""

    now: frozenset[str]
    """Names of the runs of the present round."""
    never: frozenset[str]
    """Names of the runs of trials that do not continue."""


def halving_needs(folder: Path, record: SweepRecord, search: Search, todo: Collection[str]) -> Needed:
    """Return the runs of the first round that has runs to train, and the ones that no round needs.

    Args:
        todo: Names of the runs that are not tried yet.
    """
    trials = list(record.search.trials if record.search else ())
    never: set[str] = set()
    for number, steps in enumerate(search.steps):
        cells = [cell for cell in record.cells if cell.values[short(STEPS)] == f"steps-{steps}"]
        never |= {cell.name for cell in cells if cell.values[TRIAL] not in trials}
        cells = [cell for cell in cells if cell.values[TRIAL] in trials]
        now = {cell.name for cell in cells if cell.name in todo}
        if now or number == len(search.steps) - 1:
            return Needed(frozenset(now), frozenset(never))
        scores = trial_scores(folder, cells)
        trials = best_trials(scores, cells[0].metric, math.ceil(len(trials) / search.keep)) if scores else []
    raise AssertionError("a search by halving has rounds")


def skip_not_needed(record: SweepRecord, needed: Needed) -> SweepRecord:
    """Return the record with the runs of trials that do not continue as skipped."""
    for cell in record.cells:
        if cell.name in needed.never and cell.state == "pending":
            record = record.with_cell(replace(cell, state="skipped", reason=NOT_NEEDED, is_needed=False))
    return record


def best_trials(scores: Mapping[str, float], metric: str, count: int) -> list[str]:
    """Return the names of the `count` best trials, the best first; equal ones keep their order."""
    sign = -1.0 if direction(metric) == "max" else 1.0
    return sorted(scores, key=lambda name: sign * scores[name])[:count]


def trial_scores(folder: Path, cells: Sequence[CellRecord]) -> dict[str, float]:
    """Return the score of each trial whose runs are all finished: the mean over seeds of the metric on validation.

    Trials with a failed run or a score that is not finite are left out.

    Args:
        cells: Its cells, with at most one number of steps.
    """
    values: dict[str, list[float]] = {}
    left_out = set()
    for cell in cells:
        if cell.kind == "full" and cell.repeat == 1:
            score = _score(folder, cell)
            if score is None or not math.isfinite(score):
                left_out.add(cell.values[TRIAL])
            else:
                values.setdefault(cell.values[TRIAL], []).append(score)
    return {name: statistics.fmean(scores) for name, scores in values.items() if name not in left_out}


def _score(folder: Path, cell: CellRecord) -> float | None:
    if cell.state != "finished":
        return None
    scores = read_json(cell_run_folder(folder, cell.name) / SUMMARY_FILE)["scores"].get("validation") or {}
    value = scores.get(cell.metric)
    return None if value is None else float(value)


def next_trials(search: Search, record: SweepRecord, scores: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the known trials with those that Optuna's TPE sampler suggests next; the same where all are known.

    The suggestion follows from the seed, the settings and the scores alone.

    Args:
        scores: Of the trials that are finished, by name.

    Raises:
        MissingDependency: Optuna is not installed.
    """
    assert record.search is not None
    known = {name: dict(settings) for name, settings in record.search.trials.items()}
    count = min(search.num_at_once, search.num_trials - len(known))
    if count <= 0:
        return known
    metric = record.cells[0].metric
    suggested = list(_suggestions(search, known, scores, metric, count))
    return known | named(suggested, len(known) + 1)


def check_search(search: Search | None) -> None:
    """Check that the package of a search is installed.

    Raises:
        MissingDependency: It is not.
    """
    if search is not None and search.method == "bayesian":
        require_installed("optuna", extra="search")


def _suggestions(
    search: Search, known: Mapping[str, Mapping[str, Any]], scores: Mapping[str, float], metric: str, count: int
) -> Iterator[dict[str, Any]]:
    check_search(search)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=search.seed + len(known), n_startup_trials=0)
    study = optuna.create_study(direction="maximize" if direction(metric) == "max" else "minimize", sampler=sampler)
    distributions = {dimension.key: _distribution(dimension) for dimension in search.space}
    for name, settings in known.items():
        if name in scores:
            parameters = {dimension.key: _parameter(dimension, settings[dimension.key]) for dimension in search.space}
            study.add_trial(
                optuna.trial.create_trial(params=parameters, distributions=distributions, value=scores[name])
            )
    taken = [dict(settings) for settings in known.values()]
    for _ in range(count):
        parameters = study.ask(distributions).params
        settings = {
            dimension.key: dimension.choices[parameters[dimension.key]]
            if dimension.choices
            else dimension.rounded(parameters[dimension.key])
            for dimension in search.space
        }
        if one_line(settings) in map(one_line, taken):  # two runs of a matrix may not train the same
            settings = sampled(search, 1, taken)[0]
        taken.append(settings)
        yield settings


def _distribution(dimension: Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.choices:
        return CategoricalDistribution(range(len(dimension.choices)))
    if dimension.is_whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _parameter(dimension: Range, value: Any) -> Any:
    return dimension.choices.index(value) if dimension.choices else value


def num_runs_of_halving(search: Search) -> int:
    """Return the number of runs of one seed, where no run fails."""
    total, count = 0, search.num_trials
    for _ in search.steps:
        total, count = total + count, math.ceil(count / search.keep)
    return total
