"""The key `search` of a matrix file: trials with sampled settings, which become the values of the axis `trial`.

Trials have all features of an axis: names, resumption, clusters, reports.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from paratune.config.plain import one_line
from paratune.config.validate import describe_value
from paratune.records.sweep import SearchRecord, holds_sweep, read_sweep
from paratune.sweeps.axes import SEEDS
from paratune.sweeps.matrix_file import MatrixFile
from paratune.sweeps.values import short, show

Method = Literal["random", "bayesian", "halving"]
METHODS: tuple[Method, ...] = get_args(Method)
TRIAL = "trial"
"""Key and label of the axis of trials."""
STEPS = "train.max_steps"
"""Key of the axis of rounds of successive halving."""
KEYS = {
    "method": "random, bayesian or halving",
    "trials": "number of trials",
    "space": "options with their ranges or choices",
    "seed": "of the sampling; 0 when not given",
    "random_trials": "bayesian: trials before the first suggestion; 10, or half of the trials if that is less",
    "at_once": "bayesian: trials that are suggested together; 1 when not given",
    "steps": "halving: optimizer steps of a run in each round, increasing",
    "keep": "halving: one of so many trials continues; 3 when not given",
}
_ONLY_FOR = {"random_trials": "bayesian", "at_once": "bayesian", "steps": "halving", "keep": "halving"}
MAX_TRIALS = 1000
_DIGITS = 3
"""Significant digits of a sampled number: the names and the tables of runs show it whole."""
_MAX_DRAWS = 200


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
    def is_listable(self) -> bool:
        """Whether it is of choices or of whole numbers."""
        return bool(self.choices) or self.is_whole

    @property
    def values(self) -> Sequence[Any]:
        """All values of choices or of a range of whole numbers."""
        return self.choices or range(int(self.low), int(self.high) + 1)

    def text(self) -> str:
        """Return the range for tables."""
        if self.choices:
            return f"{short(self.key)} in {show(list(self.choices))}"
        low, high = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return f"{short(self.key)} from {low} to {high}{' (log)' if self.is_log else ''}"


@dataclass(frozen=True)
class Search:
    """The search of a matrix."""

    method: Method
    num_trials: int
    space: tuple[Range, ...]
    seed: int
    num_random: int
    """Trials that are sampled at random before the first suggestion; all except with `bayesian`."""
    num_at_once: int
    steps: tuple[int, ...]
    """Optimizer steps of the rounds of `halving`; empty with other methods."""
    keep: int

    @property
    def is_adaptive(self) -> bool:
        """Whether later runs depend on the scores of earlier ones."""
        return self.method != "random"

    @property
    def space_text(self) -> tuple[str, ...]:
        """The space for records and tables, one text for each option."""
        return tuple(dimension.text() for dimension in self.space)

    def record(self, trials: Mapping[str, Mapping[str, Any]]) -> SearchRecord:
        """Return the record of the search with these trials."""
        return SearchRecord(
            self.method,
            self.seed,
            self.num_trials,
            self.space_text,
            trials,
            self.steps,
            self.keep if self.steps else None,
        )


def read_search(file: MatrixFile, content: Any) -> Search | None:
    """Return the value of `search`; None when it is absent or has problems, which `file` collects."""
    if content is None:
        return None
    before = len(file.problems)
    space = "{train.learning_rate: {min: 1e-5, max: 1e-4, scale: log}}"
    allowed = f"a mapping, such as {{method: random, trials: 20, space: {space}}}"
    if (content := file.mapping(content, "search", allowed, tuple(KEYS))) is None:
        return None
    method = content.get("method", "random")
    if method not in METHODS:
        file.refuse(f"search.method is {describe_value(method)}; allowed: {', '.join(METHODS)}", "search.method")
        method = "random"
    for key in content:
        if key in _ONLY_FOR and method != _ONLY_FOR[key]:
            message = f"search.{key} has no effect with method: {method}; it belongs to {_ONLY_FOR[key]}: remove it"
            file.refuse(message, f"search.{key}", "config.no_effect")
    num_trials = file.count(content.get("trials"), "search.trials", least=2)
    if num_trials > MAX_TRIALS:
        file.refuse(f"search.trials is {num_trials}; allowed: at most {MAX_TRIALS}", "search.trials")
    seed = file.count(content.get("seed", 0), "search.seed", least=0)
    ranges = tuple(_read_space(file, content.get("space")))
    num_random = num_trials
    if method == "bayesian":
        default = min(10, max(1, num_trials // 2))
        num_random = file.count(content.get("random_trials", default), "search.random_trials")
        if num_random >= num_trials:
            message = f"search.random_trials is {num_random}; allowed: fewer than trials: {num_trials}"
            file.refuse(message, "search.random_trials")
    steps = tuple(_read_steps(file, content.get("steps"))) if method == "halving" else ()
    keep = file.count(content.get("keep", 3), "search.keep", least=2)
    at_once = file.count(content.get("at_once", 1), "search.at_once")
    search = Search(method, num_trials, ranges, seed, num_random, at_once, steps, keep)
    if len(file.problems) == before and (num_found := len(sampled(search, num_trials))) < num_trials:
        file.refuse(
            f"search.trials is {num_trials}, and the space has {num_found} combinations of values (numbers with "
            f"{_DIGITS} significant digits); list them below axes:",
            "search.trials",
        )
    return search if len(file.problems) == before else None


def _read_space(file: MatrixFile, content: Any) -> Iterator[Range]:
    if not isinstance(content, dict) or not content:
        message = "search.space is required: a mapping of options to {min: ..., max: ...} or to a list of choices"
        file.refuse(message, "search.space", "config.required")
        return
    for key, wanted in content.items():
        at = f"search.space.{key}"
        if key in SEEDS:
            file.refuse(
                f"{at}: trials are compared by their mean over seeds; list them: axes: {{{key}: [1, 2, 3]}}", at
            )
            continue
        if isinstance(wanted, list) and len(wanted) > 1:
            if len({one_line(value) for value in wanted}) < len(wanted):
                file.refuse(f"{at} has a choice twice; keep one", at)
            yield Range(str(key), choices=tuple(wanted))
            continue
        ends: list[Any] = [wanted.get(end) if isinstance(wanted, dict) else None for end in ("min", "max")]
        low, high = ends
        if not (_is_number(low) and _is_number(high) and low < high):
            file.refuse(
                f"{at} is {describe_value(wanted)}; allowed: {{min: 1e-5, max: 1e-4, scale: log}}, with min below max, "
                "or a list of two choices or more",
                at,
            )
            continue
        scale = wanted.get("scale", "linear")
        unknown = [name for name in wanted if name not in ("min", "max", "scale")]
        if unknown or scale not in ("linear", "log"):
            file.refuse(f"{at} has {one_line(wanted)}; allowed: min, max, and scale: linear or log", at)
        elif scale == "log" and low <= 0:
            file.refuse(f"{at}.min is {low}; allowed with scale: log: above 0", at)
        else:
            yield Range(str(key), low, high, scale == "log", type(low) is int and type(high) is int)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _read_steps(file: MatrixFile, content: Any) -> Iterator[int]:
    steps = content if isinstance(content, list) else []
    is_right = len(steps) > 1 and all(type(count) is int and count > 0 for count in steps)
    if not is_right or any(first >= second for first, second in itertools.pairwise(steps)):
        file.refuse(
            f"search.steps is {describe_value(content)}; allowed: two or more increasing numbers of optimizer steps, "
            "such as [50, 150, 450]",
            "search.steps",
        )
        return
    yield from steps


def sampled(search: Search, num_trials: int, known: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return random settings that differ from each other and from known ones; more of them start with the same.

    There are fewer where the space has no more of them.
    """
    # Another stream for each number of known trials: the same stream would first draw the known settings again.
    generator = random.Random(f"{search.seed}/{len(known)}")
    seen = {one_line(dict(settings)) for settings in known}
    trials: list[dict[str, Any]] = []
    for _ in range((num_trials + len(known)) * _MAX_DRAWS):
        if len(trials) == num_trials:
            break
        settings = {dimension.key: dimension.draw(generator) for dimension in search.space}
        if one_line(settings) not in seen:
            seen.add(one_line(settings))
            trials.append(settings)
    if len(trials) < num_trials and all(dimension.is_listable for dimension in search.space):  # nearly all is known
        for values in itertools.product(*(dimension.values for dimension in search.space)):
            settings = {dimension.key: value for dimension, value in zip(search.space, values, strict=True)}
            if len(trials) < num_trials and one_line(settings) not in seen:
                trials.append(settings)
    return trials


def known_trials(search: Search, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of the trials by name: the random ones, and those that were suggested in earlier calls.

    Args:
        folder: Of the matrix. Suggestions of a search with another space or seed are not used.

    Raises:
        CheckpointError: `sweep.json` is damaged.
    """
    trials = named(sampled(search, search.num_random))
    recorded = read_sweep(folder).search if search.method == "bayesian" and holds_sweep(folder) else None
    if recorded is None or (recorded.space, recorded.seed) != (search.space_text, search.seed):
        return trials
    earlier = [dict(settings) for settings in recorded.trials.values()]
    if earlier[:1] != list(trials.values())[:1]:  # the space has other choices or options with the same text
        return trials
    more = [settings for settings in trials.values() if settings not in earlier]
    num_more = max(0, search.num_random - len(earlier))  # there were fewer random ones before
    return named([*earlier, *more[:num_more]][: search.num_trials])


def named(trials: Sequence[dict[str, Any]], first: int = 1) -> dict[str, dict[str, Any]]:
    """Return settings by the name of the trial: t001, t002 and so on."""
    return {f"t{number:03d}": settings for number, settings in enumerate(trials, first)}


def trial_title(name: str, settings: Mapping[str, Any]) -> str:
    """Return the title of a trial in tables: its name and its settings."""
    return f"{name} ({', '.join(f'{short(key)} {show(value)}' for key, value in settings.items())})"


def with_search_axes(file: MatrixFile, axes: Any, search: Search, trials: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the content of `axes` with the axis of trials, and that of rounds for `halving`.

    Lines of problems are those of the space. A value that is not a mapping is returned as it is, for `read_axes`.
    """
    if axes is not None and not isinstance(axes, dict):
        return axes
    content = dict(axes or {})
    for key in (TRIAL, *([STEPS] if search.steps else [])):
        if key in content:
            file.refuse(f"axes.{key} is an axis of the search; remove it", f"axes.{key}", "config.conflict")
    place = file.places.get("search.space", file.places["search"])
    for name, settings in trials.items():
        for key in ("", *(f".{key}" for key in settings)):
            file.places[f"axes.{TRIAL}.{name}{key}"] = file.places.get(f"search.space{key}", place)
    content[TRIAL] = {name: dict(settings) for name, settings in trials.items()}
    if search.steps:
        content[STEPS] = {f"steps-{count}": {STEPS: count, "train.epochs": None} for count in search.steps}
        for name in content[STEPS]:
            for key in ("", f".{STEPS}", ".train.epochs"):
                file.places[f"axes.{STEPS}.{name}{key}"] = file.places.get("search.steps", place)
    return content
