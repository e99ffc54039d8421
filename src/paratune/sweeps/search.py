"""The key `search` of a matrix file: trials with sampled settings, also those that follow from earlier scores.

The trials are the values of the axis `trial`, so they have all features of an axis: names, resumption, clusters,
reports.
"""

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.config.layers import Layer
from paratune.config.metric_names import direction
from paratune.config.plain import one_line
from paratune.config.section import Positive, Section
from paratune.config.validate import describe_value
from paratune.errors import require
from paratune.records.finished import read_typed
from paratune.records.sweep import SWEEP_FILE, CellRecord, SearchRecord, SweepRecord, cell_run_folder, read_sweep
from paratune.records.typed import Summary
from paratune.sweeps.axes import SEEDS, MatrixAxis, MatrixFile, read_axes, short, show

TRIAL = "trial"
"""Key and label of the axis of trials."""
_MAX_RANDOM = 10
"""Random trials of a Bayesian search, or half of its trials if that is less."""
_MAX_DRAWS = 200
"""For each trial: so many draws find nearly all of a small space."""
_DIGITS = 3
"""Significant digits of a sampled number: the names and the tables of runs show it whole."""
Trials = dict[str, dict[str, Any]]
"""Settings by the name of the trial: t001, t002 and so on."""


class Search(Section):
    """Trials with sampled settings."""

    method: Literal["random", "bayesian"] = "random"
    """How trials are chosen: at random, or by Optuna from the scores of the earlier ones."""
    trials: Annotated[int, Field(ge=2, le=1000)]
    """Number of trials."""
    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Options with their ranges, {min: 1e-5, max: 1e-4, scale: log}, or lists of choices."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the sampling."""
    at_once: Positive = 1
    """bayesian: trials that are suggested together."""

    def record(self, trials: Mapping[str, Mapping[str, Any]]) -> SearchRecord:
        """Return the record of the search with these trials."""
        space = []
        for key, wanted in self.space.items():
            if isinstance(wanted, list):
                space.append(f"{short(key)} in {show(wanted)}")
            else:
                is_log = " (log)" if wanted.get("scale") == "log" else ""
                space.append(f"{short(key)} from {wanted['min']} to {wanted['max']}{is_log}")
        return SearchRecord(self.method, self.seed, self.trials, tuple(space), trials)


def read_search(file: MatrixFile, search: Search, folder: Path) -> Trials:
    """Return the trials of a search; none where it has problems, which `file` collects.

    Those of a Bayesian search are the random ones, and those that `sweep.json` in the folder of the matrix has.
    """
    before = len(file.problems)
    if "at_once" in search.model_fields_set and search.method != "bayesian":
        message = "search.at_once has no effect with method: random, which needs no scores: remove it"
        file.refuse(message, "search.at_once", "config.no_effect")
    for key, wanted in search.space.items():
        given: dict[str, Any] = wanted if isinstance(wanted, dict) else {}
        ends: tuple[Any, Any] = (given.get("min"), given.get("max"))
        (low, high), scale, problem = ends, given.get("scale", "linear"), None
        is_range = all(type(end) in (int, float) and math.isfinite(end) for end in ends) and low < high
        if key in SEEDS:
            problem = f": trials are compared by their mean over seeds; list them: axes: {{{key}: [1, 2, 3]}}"
        elif isinstance(wanted, list) and len(wanted) > 1:
            if len({one_line(value) for value in wanted}) < len(wanted):
                problem = " has a choice twice; keep one"
        elif not is_range or not given.keys() <= {"min", "max", "scale"} or scale not in ("linear", "log"):
            allowed = "{min: 1e-5, max: 1e-4, scale: log}, with min below max, or a list of two choices or more"
            problem = f" is {describe_value(wanted)}; allowed: {allowed}; scale is linear or log"
        elif scale == "log" and low <= 0:
            problem = f".min is {low}; allowed with scale: log: above 0"
        if problem is not None:
            file.refuse(f"search.space.{key}{problem}", f"search.space.{key}")
    if len(file.problems) > before:
        return {}
    trials = sampled(search)
    if len(trials) < search.trials:
        file.refuse(
            f"search.trials is {search.trials}, and the space has {len(trials)} combinations of values (numbers with "
            f"{_DIGITS} significant digits); list them below axes:",
            "search.trials",
        )
    if search.method == "random":
        return trials
    drawn, num_random, earlier = list(trials.values()), min(_MAX_RANDOM, search.trials // 2), []
    old = read_sweep(folder).search if (folder / SWEEP_FILE).is_file() else None
    if old is not None and (old.space, old.seed) == (search.record({}).space, search.seed):
        earlier = [dict(settings) for settings in old.trials.values()]
    # With other first settings, the space has other choices or options with the same text.
    earlier = earlier if earlier[:1] == drawn[:1] else []
    known = [*earlier, *(settings for settings in drawn if settings not in earlier)]
    return _named(known[: min(max(num_random, len(earlier)), search.trials)])


def sampled(search: Search) -> Trials:
    """Return random settings, no two the same; fewer than wanted where the space has no more of them.

    A larger number of trials keeps the first ones.
    """
    generator = random.Random(f"{search.seed}/0")
    trials: dict[str, dict[str, Any]] = {}
    for _ in range(search.trials * _MAX_DRAWS):
        settings: dict[str, Any] = {}
        for key, wanted in search.space.items():
            if isinstance(wanted, list):
                number: float = generator.randint(0, len(wanted) - 1)
            elif wanted.get("scale") == "log":
                number = math.exp(generator.uniform(math.log(wanted["min"]), math.log(wanted["max"])))
            else:
                ends = wanted["min"], wanted["max"]
                number = generator.randint(*ends) if isinstance(sum(ends), int) else generator.uniform(*ends)
            settings[key] = _value(wanted, number)
        trials.setdefault(one_line(settings), settings)
        if len(trials) == search.trials:
            break
    return _named(list(trials.values()))


def _named(trials: list[dict[str, Any]]) -> Trials:
    return {f"t{number:03d}": settings for number, settings in enumerate(trials, 1)}


def _value(wanted: Any, number: float) -> Any:
    """Return a choice by its number, or a number of a range, whole or with three significant digits."""
    if isinstance(wanted, list):
        return wanted[int(number)]
    ends = wanted["min"], wanted["max"]
    number = round(number) if isinstance(sum(ends), int) else float(f"{number:.{_DIGITS}g}")
    return min(max(number, ends[0]), ends[1])


def validation_score(folder: Path, cell: CellRecord) -> float | None:
    """Return the score of a finished run on validation by the metric that selects; None if there is none.

    Args:
        folder: Of the matrix.

    Raises:
        CheckpointError: The record of the run is missing or damaged.
    """
    if cell.state != "finished" or cell.kind != "full":
        return None
    scores = read_typed(cell_run_folder(folder, cell.name), Summary).scores
    return scores.get("validation", {}).get(cell.metric)


def next_trials(search: Search, folder: Path, record: SweepRecord) -> Trials | None:
    """Return the known trials with those that Optuna's TPE sampler suggests next.

    They follow from the seed, the settings, and the mean scores over seeds of the trials whose runs all have one. None
    where no trial follows: the search has all of them, or is random, or runs of known ones have not ended.

    Args:
        folder: Of the matrix.
        record: With the present states of the runs.

    Raises:
        CheckpointError: The record of a run is missing or damaged.
    """
    known = {} if record.search is None else record.search.trials
    has_ended = all(cell.state in ("finished", "failed", "skipped") for cell in record.cells)
    if search.method == "random" or len(known) >= search.trials or not has_ended:
        return None
    scores: dict[str, list[float]] = {}
    for cell in record.cells:
        if cell.repeat == 1:
            score = validation_score(folder, cell)
            scores.setdefault(cell.values[TRIAL], []).append(math.nan if score is None else score)
    optuna = require("optuna", extra="search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=search.seed + len(known), n_startup_trials=0)
    is_max = direction(record.cells[0].metric) == "max"
    study = optuna.create_study(direction="maximize" if is_max else "minimize", sampler=sampler)
    kinds = optuna.distributions
    distributions: dict[str, Any] = {}
    for key, wanted in search.space.items():
        if isinstance(wanted, list):
            distributions[key] = kinds.CategoricalDistribution(range(len(wanted)))
        else:
            ends = wanted["min"], wanted["max"]
            kind = kinds.IntDistribution if isinstance(sum(ends), int) else kinds.FloatDistribution
            distributions[key] = kind(*ends, log=wanted.get("scale") == "log")
    for name, settings in known.items():
        mean = statistics.fmean(scores.get(name, [math.nan]))
        if math.isfinite(mean):
            numbers = {
                key: wanted.index(settings[key]) if isinstance(wanted, list) else settings[key]
                for key, wanted in search.space.items()
            }
            study.add_trial(optuna.trial.create_trial(params=numbers, distributions=distributions, value=mean))
    trials = [dict(settings) for settings in known.values()]
    for _ in range(min(search.at_once, search.trials - len(known))):
        numbers = study.ask(distributions).params
        trial = {key: _value(wanted, numbers[key]) for key, wanted in search.space.items()}
        seen = {*map(one_line, trials)}
        if one_line(trial) in seen:  # two runs of a matrix may not train the same
            trial = next(drawn for drawn in sampled(search).values() if one_line(drawn) not in seen)
        trials.append(trial)
    return _named(trials)


def read_search_axes(
    file: MatrixFile, content: Mapping[str, Any], base: Layer, trials: Trials
) -> tuple[MatrixAxis, ...]:
    """Return the axes of a file with the axis of trials."""
    if TRIAL in content:
        file.refuse(f"axes.{TRIAL} is the axis of the search; remove it", f"axes.{TRIAL}", "config.conflict")
    place = file.places["search"]
    for name, settings in trials.items():  # lines of their problems are those of the space
        for inner in ("", *(f".{option}" for option in settings)):
            file.places[f"axes.{TRIAL}.{name}{inner}"] = file.places.get(f"search.space{inner}", place)
    titles = {
        name: f"{name} ({', '.join(f'{short(key)} {show(value)}' for key, value in settings.items())})"
        for name, settings in trials.items()
    }
    axes = read_axes(file, {**content, TRIAL: trials}, base)
    return tuple(replace(axis, values=titles) if axis.key == TRIAL else axis for axis in axes)
