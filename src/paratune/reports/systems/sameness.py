"""Whether configurations are comparable: differences in experiment and machine, as marks in tables and figures."""

from collections.abc import Iterable
from string import ascii_lowercase

from paratune.reports.runs.sameness import allowed_by_axes, differs_of
from paratune.reports.systems.configurations import Configuration
from paratune.verdicts import Differs


class Notes:
    """The notes of a table: each text once, with the letter of its mark."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """Return the letter of a note."""
        number, letters = len(self._letters), ""
        while number >= 0:  # a to z, then aa, ab, ...
            number, last = number // 26 - 1, number % 26
            letters = ascii_lowercase[last] + letters
        return self._letters.setdefault(text, letters)

    def marks(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.mark(text) for text in texts)

    @property
    def lines(self) -> tuple[str, ...]:
        """The notes in the order of their letters."""
        return tuple(f"[{letter}] {text}" for text, letter in self._letters.items())


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
    if differs.samples is not None:
        texts.append(f"another training budget than {base}: do not compare scores and times of whole runs")
    if differs.elsewhere:
        texts.append(f"ran on a different machine from {base}: do not compare times and memory")
    return tuple(texts)


def configuration_differs(configuration: Configuration, base: Configuration, axis_keys: Iterable[str]) -> Differs:
    """Return the differences between a configuration and its baseline; those that these axes make are allowed."""
    if configuration is base or not configuration.runs or not base.runs:
        return Differs()
    of_probe = {"steps"} if configuration.is_probe != base.is_probe else set()
    return differs_of(base.runs, configuration.runs, allowed_by_axes(axis_keys) | of_probe)
