"""Whether configurations are comparable: differences in experiment and machine, as marks in tables and figures."""

from collections.abc import Iterable
from dataclasses import replace
from string import ascii_lowercase

from paratune.reports.runs.differing import allowed_by_axes, differs_of
from paratune.reports.runs.machine import on_same_machines
from paratune.reports.runs.read import RunRecord
from paratune.reports.systems.configurations import Configuration
from paratune.verdicts import Differs


class Notes:
    """The notes of a table: each text once, with the letter of its mark."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """Return the letter of a note."""
        return self._letters.setdefault(text, _letter(len(self._letters)))

    def marks(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.mark(text) for text in texts)

    @property
    def lines(self) -> tuple[str, ...]:
        """The notes in the order of their letters."""
        return tuple(f"[{letter}] {text}" for text, letter in self._letters.items())


def _letter(number: int) -> str:
    more, last = divmod(number, 26)
    return (_letter(more - 1) if more else "") + ascii_lowercase[last]


def comparison_notes(differs: Differs, base: str = "the baseline") -> tuple[str, ...]:
    """Return the remarks on the differences of a configuration; `base` names the other one."""
    refused, allowed = (
        ", ".join(label.removeprefix("the ") for label in labels) for labels in (differs.refused, differs.allowed)
    )
    texts = []
    if refused:
        texts.append(f"not comparable with {base}: different {refused}, which is not on an axis")
    if allowed:
        texts.append(f"trained differently from {base}: different {allowed}")
    if differs.elsewhere:
        texts.append(f"ran on a different machine from {base}: do not compare times and memory")
    return tuple(texts)


def configuration_differs(configuration: Configuration, base: Configuration, axis_keys: Iterable[str]) -> Differs:
    """Return the differences between a configuration and its baseline, by a run of each.

    Differences that axes with these dotted keys make are allowed.
    """
    if configuration is base or not configuration.runs or not base.runs:
        return Differs()
    allowed = allowed_by_axes(axis_keys) | ({"steps"} if configuration.is_probe != base.is_probe else frozenset())
    first, second = _pair(base, configuration)
    return replace(
        differs_of([first], [second], allowed), elsewhere=not on_same_machines(base.runs, configuration.runs)
    )


def _pair(base: Configuration, other: Configuration) -> tuple[RunRecord, RunRecord]:
    """Return a run of each configuration, with the same seed if possible."""
    seeds = {str(run.get("run.seed")): run for run in reversed(base.runs)}
    pairs = ((seeds[seed], run) for run in other.runs if (seed := str(run.get("run.seed"))) in seeds)
    return next(pairs, (base.runs[0], other.runs[0]))
