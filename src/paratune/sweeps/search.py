"""The key `search` of a matrix file: trials with sampled settings.

The trials are the values of the axis `trial`, so they have all features of an axis: names, resumption, clusters,
reports.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from paratune.config.layers import Layer
from paratune.config.plain import one_line
from paratune.config.section import Section
from paratune.config.validate import describe_value
from paratune.records.sweep import SearchRecord
from paratune.sweeps.axes import SEEDS, MatrixAxis, read_axes, short, show
from paratune.sweeps.matrix_file import MatrixFile

TRIAL = "trial"
"""Key and label of the axis of trials."""
_MAX_DRAWS = 200
"""For each trial: so many draws find nearly all of a small space."""
_DIGITS = 3
"""Significant digits of a sampled number: the names and the tables of runs show it whole."""
Trials = dict[str, dict[str, Any]]
"""Settings by the name of the trial: t001, t002 and so on."""


class Search(Section):
    """Trials with sampled settings."""

    trials: Annotated[int, Field(ge=2, le=1000)]
    """Number of trials."""
    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Options with their ranges, {min: 1e-5, max: 1e-4, scale: log}, or lists of choices."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the sampling."""

    def record(self, trials: Mapping[str, Mapping[str, Any]]) -> SearchRecord:
        """Return the record of the search with these trials."""
        space = []
        for key, wanted in self.space.items():
            if isinstance(wanted, list):
                space.append(f"{short(key)} in {show(wanted)}")
            else:
                is_log = " (log)" if wanted.get("scale") == "log" else ""
                space.append(f"{short(key)} from {wanted['min']} to {wanted['max']}{is_log}")
        return SearchRecord(self.seed, self.trials, tuple(space), trials)


def read_search(file: MatrixFile, search: Search) -> Trials:
    """Return the trials of a search; none where its space has problems, which `file` collects."""
    before = len(file.problems)
    for key, wanted in search.space.items():
        if (problem := _problem_of_range(key, wanted)) is not None:
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
    return trials


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


def sampled(search: Search) -> Trials:
    """Return random settings, no two the same; fewer than wanted where the space has no more of them.

    A larger number of trials keeps the first ones.
    """
    generator = random.Random(f"{search.seed}/0")
    trials: dict[str, dict[str, Any]] = {}
    for _ in range(search.trials * _MAX_DRAWS):
        settings = {key: _draw(wanted, generator) for key, wanted in search.space.items()}
        trials.setdefault(one_line(settings), settings)
        if len(trials) == search.trials:
            break
    return {f"t{number:03d}": settings for number, settings in enumerate(trials.values(), 1)}


def _draw(wanted: Any, generator: random.Random) -> Any:
    """Return a random choice, or a number of a range, whole or with three significant digits."""
    if isinstance(wanted, list):
        return wanted[generator.randint(0, len(wanted) - 1)]
    low, high = wanted["min"], wanted["max"]
    is_whole = type(low) is type(high) is int
    if wanted.get("scale") == "log":
        number = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        number = generator.randint(low, high) if is_whole else generator.uniform(low, high)
    number = round(number) if is_whole else float(f"{number:.{_DIGITS}g}")
    return min(max(number, low), high)


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
