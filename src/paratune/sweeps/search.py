"""The key `search` of a matrix file: trials with sampled settings, also those that follow from earlier scores.

The trials are the values of the axis `trial`, so they have all features of an axis: names, resumption, clusters,
reports.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.config.layers import Layer
from paratune.config.metric_names import direction
from paratune.config.plain import one_line
from paratune.config.section import Positive, Section
from paratune.config.validate import describe_value
from paratune.errors import require_installed
from paratune.records.finished import read_typed
from paratune.records.sweep import CellRecord, SearchRecord, SweepRecord, cell_run_folder, holds_sweep, read_sweep
from paratune.records.typed import Summary
from paratune.sweeps.axes import SEEDS, MatrixAxis, read_axes, short, show
from paratune.sweeps.matrix_file import MatrixFile

TRIAL = "trial"
"""Key and label of the axis of trials."""
_MAX_RANDOM, _MAX_DRAWS = 10, 200
_DIGITS = 3
"""Significant digits of a sampled number: the names and the tables of runs show it whole."""
Trials = dict[str, dict[str, Any]]
"""Settings by the name of the trial."""


@dataclass(frozen=True)
class Range:
    """One option of the space: a range of numbers, or the numbers of its choices."""

    key: str
    low: float
    high: float
    is_log: bool = False
    is_whole: bool = True
    choices: tuple[Any, ...] = ()

    def draw(self, generator: random.Random) -> Any:
        """Return a random value."""
        if self.is_log:
            return self.value(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))
        if self.is_whole:
            return self.value(generator.randint(int(self.low), int(self.high)))
        return self.value(generator.uniform(self.low, self.high))

    def value(self, number: float) -> Any:
        """Return a choice by its number, or a number of the range, whole or with three significant digits."""
        number = round(number) if self.is_whole else float(f"{number:.{_DIGITS}g}")
        number = min(max(number, self.low), self.high)
        return self.choices[int(number)] if self.choices else int(number) if self.is_whole else number

    def text(self) -> str:
        """Return the range for tables."""
        if self.choices:
            return f"{short(self.key)} in {show(list(self.choices))}"
        return f"{short(self.key)} from {self.low} to {self.high}{' (log)' if self.is_log else ''}"


class Search(Section):
    """Trials with sampled settings."""

    method: Literal["random", "bayesian"] = "random"
    """How trials are chosen."""
    trials: Annotated[int, Field(ge=2, le=1000)]
    """Number of trials."""
    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Options with their ranges, {min: 1e-5, max: 1e-4, scale: log}, or lists of choices."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the sampling."""
    at_once: Positive = 1
    """bayesian: trials that are suggested together."""

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The space; only of a search without problems."""
        ranges = []
        for key, wanted in self.space.items():
            if isinstance(wanted, list):
                ranges.append(Range(key, 0, len(wanted) - 1, choices=tuple(wanted)))
            else:
                low, high, is_log = wanted["min"], wanted["max"], wanted.get("scale") == "log"
                ranges.append(Range(key, low, high, is_log, is_whole=type(low) is type(high) is int))
        return tuple(ranges)

    def record(self, trials: Mapping[str, Mapping[str, Any]]) -> SearchRecord:
        """Return the record of the search with these trials."""
        space = tuple(option.text() for option in self.ranges)
        return SearchRecord(self.method, self.seed, self.trials, space, trials)


def check_search(file: MatrixFile, search: Search) -> Search | None:
    """Return a search, or None where its options contradict each other: `file` collects the problems."""
    before = len(file.problems)
    if "at_once" in search.model_fields_set and search.method != "bayesian":
        message = "search.at_once has no effect with method: random, which needs no scores: remove it"
        file.refuse(message, "search.at_once", "config.no_effect")
    for key, wanted in search.space.items():
        if (problem := _problem_of_range(key, wanted)) is not None:
            file.refuse(f"search.space.{key}{problem}", f"search.space.{key}")
    if len(file.problems) == before and (num_found := len(sampled(search, search.trials))) < search.trials:
        file.refuse(
            f"search.trials is {search.trials}, and the space has {num_found} combinations of values (numbers with "
            f"{_DIGITS} significant digits); list them below axes:",
            "search.trials",
        )
    return search if len(file.problems) == before else None


def _problem_of_range(key: str, wanted: Any) -> str | None:
    if key in SEEDS:
        return f": trials are compared by their mean over seeds; list them: axes: {{{key}: [1, 2, 3]}}"
    if isinstance(wanted, list) and len(wanted) > 1:
        return " has a choice twice; keep one" if len({one_line(value) for value in wanted}) < len(wanted) else None
    given: dict[str, Any] = wanted if isinstance(wanted, dict) else {}
    ends: tuple[Any, Any] = (given.get("min"), given.get("max"))
    (low, high), scale = ends, given.get("scale", "linear")
    is_range = all(type(end) in (int, float) and math.isfinite(end) for end in ends) and low < high
    if not is_range or not given.keys() <= {"min", "max", "scale"} or scale not in ("linear", "log"):
        allowed = "{min: 1e-5, max: 1e-4, scale: log}, with min below max, or a list of two choices or more"
        return f" is {describe_value(wanted)}; allowed: {allowed}; scale is linear or log"
    return f".min is {low}; allowed with scale: log: above 0" if scale == "log" and low <= 0 else None


def sampled(search: Search, num_trials: int, known: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return random settings, each another and none known; fewer where the space has no more of them."""
    # Another stream for each number of known trials: the same stream would first draw the known settings again.
    generator = random.Random(f"{search.seed}/{len(known)}")
    seen = {one_line(dict(settings)) for settings in known}
    trials: list[dict[str, Any]] = []
    # So many draws find nearly all of a small space.
    for _ in range((num_trials + len(known)) * _MAX_DRAWS):
        settings = {option.key: option.draw(generator) for option in search.ranges}
        if one_line(settings) not in seen:
            seen.add(one_line(settings))
            trials.append(settings)
            if len(trials) == num_trials:
                break
    return trials


def known_trials(search: Search, folder: Path) -> Trials:
    """Return the settings of the trials by name: the random ones, and those suggested in earlier calls.

    Suggestions of a search with another space or seed, in the folder of the matrix, are not used.
    """
    num_random = min(_MAX_RANDOM, search.trials // 2) if search.method == "bayesian" else search.trials
    trials = sampled(search, num_random)
    before = read_sweep(folder).search if search.method == "bayesian" and holds_sweep(folder) else None
    if before is not None and (before.space, before.seed) == (search.record({}).space, search.seed):
        earlier = [dict(settings) for settings in before.trials.values()]
        if earlier[:1] == trials[:1]:  # else the space has other choices or options with the same text
            num_more = max(0, num_random - len(earlier))  # there were fewer random ones before
            more = [settings for settings in trials if settings not in earlier]
            trials = [*earlier, *more[:num_more]][: search.trials]
    return named(trials)


def named(trials: Sequence[dict[str, Any]]) -> Trials:
    """Return settings by the name of the trial: t001, t002 and so on."""
    return {f"t{number:03d}": settings for number, settings in enumerate(trials, 1)}


def trial_title(name: str, settings: Mapping[str, Any]) -> str:
    """Return the title of a trial in tables: its name and its settings."""
    return f"{name} ({', '.join(f'{short(key)} {show(value)}' for key, value in settings.items())})"


def read_search_axes(
    file: MatrixFile, content: Mapping[str, Any], base: Layer, search: Search, trials: Trials
) -> tuple[MatrixAxis, ...]:
    """Return the axes of a file with the axis of trials."""
    if TRIAL in content:
        file.refuse(f"axes.{TRIAL} is the axis of the search; remove it", f"axes.{TRIAL}", "config.conflict")
    place = file.places["search"]
    for name, settings in trials.items():  # lines of their problems are those of the space
        for inner in ("", *(f".{option}" for option in settings)):
            file.places[f"axes.{TRIAL}.{name}{inner}"] = file.places.get(f"search.space{inner}", place)
    axes = read_axes(file, {**content, TRIAL: trials}, base)
    for axis in axes:
        if search.method == "bayesian" and axis.key != TRIAL and not axis.is_seed:
            message = (
                f"axes.{axis.key}: with search.method: bayesian the scores decide which trials follow, so no other "
                f"axis than seeds is allowed; put {axis.key} into search.space, or use method: random"
            )
            file.refuse(message, f"axes.{axis.key}", "config.conflict")
    titles = {name: trial_title(name, settings) for name, settings in trials.items()}
    return tuple(replace(axis, values=titles) if axis.key == TRIAL else axis for axis in axes)


def trial_scores(folder: Path, cells: Sequence[CellRecord]) -> dict[str, float]:
    """Return the mean over seeds of the metric on validation for each trial whose runs all have a finite score."""
    scores: dict[str, list[float]] = {}
    for cell in cells:
        if cell.kind == "full" and cell.repeat == 1:
            score = validation_score(folder, cell)
            scores.setdefault(cell.values[TRIAL], []).append(math.nan if score is None else score)
    return {name: statistics.fmean(known) for name, known in scores.items() if not any(map(math.isnan, known))}


def validation_score(folder: Path, cell: CellRecord) -> float | None:
    """Return the score of a finished run on validation by the metric that selects; None if there is none.

    Raises:
        CheckpointError: The record of the run is missing or damaged.
    """
    if cell.state != "finished":
        return None
    scores = read_typed(cell_run_folder(folder, cell.name), Summary).scores
    return scores.get("validation", {}).get(cell.metric)


def next_trials(search: Search, record: SweepRecord, scores: Mapping[str, float]) -> Trials:
    """Return the known trials with those that Optuna's TPE sampler suggests next; the same where all are known.

    The suggestion follows from the seed, the settings, and the scores of finished trials alone.
    """
    assert record.search is not None
    known = record.search.trials
    require_installed("optuna", extra="search")
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def distribution(option: Range) -> optuna.distributions.BaseDistribution:
        if option.choices:
            return CategoricalDistribution(range(len(option.choices)))
        kind = IntDistribution if option.is_whole else FloatDistribution
        return kind(option.low, option.high, log=option.is_log)  # type: ignore[arg-type]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=search.seed + len(known), n_startup_trials=0)
    is_max = direction(record.cells[0].metric) == "max"
    study = optuna.create_study(direction="maximize" if is_max else "minimize", sampler=sampler)
    distributions = {option.key: distribution(option) for option in search.ranges}
    for name in (name for name in known if name in scores):
        numbers = {
            option.key: option.choices.index(known[name][option.key]) if option.choices else known[name][option.key]
            for option in search.ranges
        }
        study.add_trial(optuna.trial.create_trial(params=numbers, distributions=distributions, value=scores[name]))
    trials = [dict(settings) for settings in known.values()]
    for _ in range(min(search.at_once, search.trials - len(known))):
        chosen = study.ask(distributions).params
        settings = {option.key: option.value(chosen[option.key]) for option in search.ranges}
        if one_line(settings) in map(one_line, trials):  # two runs of a matrix may not train the same
            settings = sampled(search, 1, trials)[0]
        trials.append(settings)
    return named(trials)
