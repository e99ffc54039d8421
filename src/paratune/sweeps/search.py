"""The key `search` of a matrix file: trials with sampled settings, and the runs that follow from earlier scores.

The trials are the values of the axis `trial`, so they have all features of an axis: names, resumption, clusters,
reports. Successive halving: Jamieson and Talwalkar, AISTATS 2016. The trials of a round train a number of steps; the
best continue to the next round with more steps. Each run trains from the start, because the learning rate of a step
depends on the number of steps.
"""

import itertools
import math
import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.base.text import plain
from paratune.config.metric_names import direction
from paratune.config.plain import one_line
from paratune.config.section import Positive, Section
from paratune.config.validate import describe_value
from paratune.errors import CheckpointError, require_installed
from paratune.records import SUMMARY_FILE, read_json
from paratune.records.finished import number_in
from paratune.records.sweep import CellRecord, SearchRecord, SweepRecord, cell_run_folder, holds_sweep, read_sweep
from paratune.sweeps.axes import SEEDS
from paratune.sweeps.matrix_file import MatrixFile
from paratune.sweeps.values import short, show

TRIAL = "trial"
"""Key and label of the axis of trials."""
STEPS = "train.max_steps"
"""Key of the axis of rounds of successive halving."""
NOT_NEEDED = "not needed: its trial was not among the best of a round before (search.method: halving)"
_ONLY_FOR = {"at_once": "bayesian", "steps": "halving", "keep": "halving"}
_MAX_RANDOM = 10
"""Trials of a Bayesian search before the first suggestion, if they are not more than half of the trials."""
_DIGITS = 3
"""Significant digits of a sampled number: the names and the tables of runs show it whole."""
_MAX_DRAWS = 200
Trials = dict[str, dict[str, Any]]
"""Settings by the name of the trial."""


@dataclass(frozen=True)
class Range:
    """One option of the space: a range of numbers, or choices."""

    key: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[Any, ...] = ()

    def draw(self, generator: random.Random) -> Any:
        """Return a random value."""
        if self.choices:
            return generator.choice(self.choices)
        if self.is_log:
            return self.rounded(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))
        if self.is_whole:
            return generator.randint(int(self.low), int(self.high))
        return self.rounded(generator.uniform(self.low, self.high))

    def rounded(self, value: float) -> float | int:
        """Return a number of the range with three significant digits; a whole one for a range of whole numbers."""
        value = round(value) if self.is_whole else float(f"{value:.{_DIGITS}g}")
        value = min(max(value, self.low), self.high)
        return int(value) if self.is_whole else value

    @property
    def values(self) -> Sequence[Any]:
        """All values of choices or of a range of whole numbers; empty for other ranges."""
        return self.choices or (range(int(self.low), int(self.high) + 1) if self.is_whole else ())

    def text(self) -> str:
        """Return the range for tables."""
        if self.choices:
            return f"{short(self.key)} in {show(list(self.choices))}"
        low, high = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return f"{short(self.key)} from {low} to {high}{' (log)' if self.is_log else ''}"

    def distribution(self) -> Any:
        """Return the range for Optuna, with choices as their numbers."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(range(len(self.choices)))
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.is_log)
        return FloatDistribution(self.low, self.high, log=self.is_log)


class Search(Section):
    """Trials with sampled settings."""

    method: Literal["random", "bayesian", "halving"] = "random"
    """How trials are chosen."""
    trials: Annotated[int, Field(ge=2, le=1000)]
    """Number of trials."""
    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Options with their ranges, {min: 1e-5, max: 1e-4, scale: log}, or lists of choices."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the sampling."""
    at_once: Positive = 1
    """bayesian: trials that are suggested together."""
    steps: Annotated[list[Positive], Field(min_length=2)] | None = None
    """halving: optimizer steps of a run in each round, increasing."""
    keep: Annotated[int, Field(ge=2)] = 3
    """halving: one of so many trials continues."""

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The space; only of a search without problems."""
        return tuple(
            Range(key, choices=tuple(wanted))
            if isinstance(wanted, list)
            else Range(
                key,
                wanted["min"],
                wanted["max"],
                is_log=wanted.get("scale") == "log",
                is_whole=type(wanted["min"]) is type(wanted["max"]) is int,
            )
            for key, wanted in self.space.items()
        )

    @property
    def is_adaptive(self) -> bool:
        """Whether later runs depend on the scores of earlier ones."""
        return self.method != "random"

    @property
    def num_random(self) -> int:
        """Trials that are sampled at random before the first suggestion; all except with `bayesian`."""
        return min(_MAX_RANDOM, self.trials // 2) if self.method == "bayesian" else self.trials

    def record(self, trials: Mapping[str, Mapping[str, Any]]) -> SearchRecord:
        """Return the record of the search with these trials."""
        space, keep = tuple(option.text() for option in self.ranges), self.keep if self.steps else None
        return SearchRecord(self.method, self.seed, self.trials, space, trials, tuple(self.steps or ()), keep)


def check_search(file: MatrixFile, search: Search) -> Search | None:
    """Return a search, or None where its options contradict each other: `file` collects the problems."""
    before = len(file.problems)
    for key in search.model_fields_set & _ONLY_FOR.keys():
        if search.method != _ONLY_FOR[key]:
            message = f"search.{key} has no effect with method: {search.method}; it belongs to {_ONLY_FOR[key]}"
            file.refuse(f"{message}: remove it", f"search.{key}", "config.no_effect")
    steps = search.steps or []
    if any(first >= second for first, second in itertools.pairwise(steps)) or (
        search.method == "halving" and not steps
    ):
        allowed = "two or more increasing numbers of optimizer steps, such as [50, 150, 450]"
        file.refuse(f"search.steps is {describe_value(search.steps)}; allowed: {allowed}", "search.steps")
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
    """Return what is wrong with the range of an option; None if nothing is."""
    if key in SEEDS:
        return f": trials are compared by their mean over seeds; list them: axes: {{{key}: [1, 2, 3]}}"
    if isinstance(wanted, list) and len(wanted) > 1:
        return " has a choice twice; keep one" if len({one_line(value) for value in wanted}) < len(wanted) else None
    given: dict[str, Any] = wanted if isinstance(wanted, dict) else {}
    ends: tuple[Any, Any] = (given.get("min"), given.get("max"))
    scale = given.get("scale", "linear")
    is_range = all(type(end) in (int, float) and math.isfinite(end) for end in ends) and ends[0] < ends[1]
    if not is_range or not given.keys() <= {"min", "max", "scale"} or scale not in ("linear", "log"):
        allowed = "{min: 1e-5, max: 1e-4, scale: log}, with min below max, or a list of two choices or more"
        return f" is {describe_value(wanted)}; allowed: {allowed}; scale is linear or log"
    if scale == "log" and ends[0] <= 0:
        return f".min is {ends[0]}; allowed with scale: log: above 0"
    return None


def sampled(search: Search, num_trials: int, known: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return random settings that differ from each other and from known ones; more of them start with the same.

    There are fewer where the space has no more of them.
    """
    # Another stream for each number of known trials: the same stream would first draw the known settings again.
    generator = random.Random(f"{search.seed}/{len(known)}")
    drawn = (
        {option.key: option.draw(generator) for option in search.ranges}
        for _ in range((num_trials + len(known)) * _MAX_DRAWS)
    )
    # Nearly all of a small space may be known, and the rest improbable. Lazy: a range may have a billion numbers.
    listed = (values for _ in (0,) for values in itertools.product(*(option.values for option in search.ranges)))
    rest = (dict(zip(search.space, values, strict=True)) for values in listed)
    seen = {one_line(dict(settings)) for settings in known}
    trials: list[dict[str, Any]] = []
    for settings in itertools.chain(drawn, rest):
        if len(trials) == num_trials:
            break
        if one_line(settings) not in seen:
            seen.add(one_line(settings))
            trials.append(settings)
    return trials


def known_trials(search: Search, folder: Path) -> Trials:
    """Return the settings of the trials by name: the random ones, and those that were suggested in earlier calls.

    Args:
        folder: Of the matrix. Suggestions of a search with another space or seed are not used.

    Raises:
        CheckpointError: `sweep.json` is damaged.
    """
    first = sampled(search, search.num_random)
    recorded = read_sweep(folder).search if search.method == "bayesian" and holds_sweep(folder) else None
    if recorded is None or (recorded.space, recorded.seed) != (search.record({}).space, search.seed):
        return named(first)
    earlier = [dict(settings) for settings in recorded.trials.values()]
    if earlier[:1] != first[:1]:  # the space has other choices or options with the same text
        return named(first)
    more = [settings for settings in first if settings not in earlier]
    num_more = max(0, search.num_random - len(earlier))  # there were fewer random ones before
    return named([*earlier, *more[:num_more]][: search.trials])


def named(trials: Sequence[dict[str, Any]], first: int = 1) -> Trials:
    """Return settings by the name of the trial: t001, t002 and so on."""
    return {f"t{number:03d}": settings for number, settings in enumerate(trials, first)}


def trial_title(name: str, settings: Mapping[str, Any]) -> str:
    """Return the title of a trial in tables: its name and its settings."""
    return f"{name} ({', '.join(f'{short(key)} {show(value)}' for key, value in settings.items())})"


def with_search_axes(file: MatrixFile, axes: Mapping[str, Any], search: Search, trials: Trials) -> dict[str, Any]:
    """Return the content of `axes` with the axis of trials, and that of rounds for `halving`.

    Lines of problems are those of the space.
    """
    added: dict[str, tuple[str, Trials]] = {TRIAL: ("search.space", trials)}
    if search.steps:
        rounds = {f"steps-{count}": {STEPS: count, "train.epochs": None} for count in search.steps}
        added[STEPS] = ("search.steps", rounds)
    for key, (at, values) in added.items():
        if key in axes:
            file.refuse(f"axes.{key} is an axis of the search; remove it", f"axes.{key}", "config.conflict")
        place = file.places.get(at, file.places["search"])
        for name, settings in values.items():
            for inner in ("", *(f".{option}" for option in settings)):
                file.places[f"axes.{key}.{name}{inner}"] = file.places.get(f"{at}{inner}", place)
    return {**axes, **{key: dict(values) for key, (_, values) in added.items()}}


def halving_needs(
    folder: Path, record: SweepRecord, search: Search, todo: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the runs of the first round that has runs to train, and of those that no round needs.

    Args:
        todo: Names of the runs that are not tried yet.
    """
    trials = list(record.search.trials if record.search else ())
    never: set[str] = set()
    for steps in search.steps or ():
        cells = [cell for cell in record.cells if cell.values[short(STEPS)] == f"steps-{steps}"]
        never |= {cell.name for cell in cells if cell.values[TRIAL] not in trials}
        cells = [cell for cell in cells if cell.values[TRIAL] in trials]
        now = frozenset(cell.name for cell in cells if cell.name in todo)
        if now:
            return now, frozenset(never)
        scores = trial_scores(folder, cells)
        trials = best_trials(scores, cells[0].metric, math.ceil(len(trials) / search.keep)) if scores else []
    return frozenset(), frozenset(never)


def skip_not_needed(record: SweepRecord, never: Collection[str]) -> SweepRecord:
    """Return the record with the runs that no round of successive halving needs as skipped."""
    for cell in record.cells:
        if cell.name in never and cell.state == "pending":
            record = record.with_cell(replace(cell, state="skipped", reason=NOT_NEEDED, is_needed=False))
    return record


def num_runs_of_halving(search: Search) -> int:
    """Return the number of runs of one seed, where no run fails."""
    total, count = 0, search.trials
    for _ in search.steps or ():
        total, count = total + count, math.ceil(count / search.keep)
    return total


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
    values: dict[str, list[float | None]] = {}
    for cell in cells:
        if cell.kind == "full" and cell.repeat == 1:
            values.setdefault(cell.values[TRIAL], []).append(validation_score(folder, cell))
    known = {name: [score for score in scores if score is not None] for name, scores in values.items()}
    return {name: statistics.fmean(scores) for name, scores in known.items() if len(scores) == len(values[name])}


def validation_score(folder: Path, cell: CellRecord) -> float | None:
    """Return the score of a finished run on validation by the metric that selects; None if there is none.

    Args:
        folder: Of the matrix.

    Raises:
        CheckpointError: The record of the run is missing or damaged.
    """
    if cell.state != "finished":
        return None
    path = cell_run_folder(folder, cell.name) / SUMMARY_FILE
    try:
        return number_in((read_json(path)["scores"].get("validation") or {}).get(cell.metric))
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{plain(path)} is damaged: {error!r}", code="run.damaged", path=path) from error


def require_search(search: Search | None) -> None:
    """Check that the package of a search is installed.

    Raises:
        MissingDependency: It is not.
    """
    if search is not None and search.method == "bayesian":
        require_installed("optuna", extra="search")


def next_trials(search: Search, record: SweepRecord, scores: Mapping[str, float]) -> Trials:
    """Return the known trials with those that Optuna's TPE sampler suggests next; the same where all are known.

    The suggestion follows from the seed, the settings and the scores alone.

    Args:
        scores: Of the trials that are finished, by name.

    Raises:
        MissingDependency: Optuna is not installed.
    """
    assert record.search is not None
    known = {name: dict(settings) for name, settings in record.search.trials.items()}
    count = min(search.at_once, search.trials - len(known))
    if count <= 0:
        return known
    suggested = list(_suggestions(search, known, scores, record.cells[0].metric, count))
    return known | named(suggested, len(known) + 1)


def _suggestions(
    search: Search, known: Trials, scores: Mapping[str, float], metric: str, count: int
) -> Iterator[dict[str, Any]]:
    require_search(search)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=search.seed + len(known), n_startup_trials=0)
    study = optuna.create_study(direction="maximize" if direction(metric) == "max" else "minimize", sampler=sampler)
    distributions = {option.key: option.distribution() for option in search.ranges}
    for name, settings in known.items():
        if name in scores:
            parameters = {
                option.key: option.choices.index(settings[option.key]) if option.choices else settings[option.key]
                for option in search.ranges
            }
            trial = optuna.trial.create_trial(params=parameters, distributions=distributions, value=scores[name])
            study.add_trial(trial)
    taken = list(known.values())
    for _ in range(count):
        chosen = study.ask(distributions).params
        settings = {
            option.key: option.choices[chosen[option.key]] if option.choices else option.rounded(chosen[option.key])
            for option in search.ranges
        }
        if one_line(settings) in map(one_line, taken):  # two runs of a matrix may not train the same
            settings = sampled(search, 1, taken)[0]
        taken.append(settings)
        yield settings
