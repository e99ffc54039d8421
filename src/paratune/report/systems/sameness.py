"""Whether configurations compare: what another one trained, and on what machine; marks say so in tables and figures."""

from collections.abc import Iterable
from dataclasses import replace
from string import ascii_lowercase

from paratune.report.differing import allowed_by_axes, differs_of
from paratune.report.machine import on_same_machines
from paratune.report.read import RunRecord
from paratune.report.systems.configurations import Configuration
from paratune.verdicts import Differs


class Notes:
    """The notes of one table: each text once, with the letter that marks its cells."""

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


def notes_of(differs: Differs, base: str = "the baseline") -> tuple[str, ...]:
    """Return what is to be said of a configuration, against one that is called `base`."""
    refused, allowed = (
        ", ".join(label.removeprefix("the ") for label in labels) for labels in (differs.refused, differs.allowed)
    )
    texts = []
    if refused:
        texts.append(f"not comparable with {base}: other {refused}, which is not on an axis")
    if allowed:
        texts.append(f"trained otherwise than {base}: other {allowed}")
    if differs.elsewhere:
        texts.append(f"ran on another machine than {base}: times and memory do not compare")
    return tuple(texts)


def what_differs(one: Configuration, base: Configuration, axis_keys: Iterable[str]) -> Differs:
    """Return in what a configuration differs from the one that it is compared with, as a run of each tells.

    Args:
        one: Which is marked.
        base: What it is compared with.
        axis_keys: Dotted keys that axes of the matrix set: what follows from them is what is compared.
    """
    if one is base or not one.runs or not base.runs:
        return Differs()
    allowed = allowed_by_axes(axis_keys) | ({"steps"} if one.is_probe != base.is_probe else frozenset())
    first, second = _pair(base, one)
    return replace(differs_of([first], [second], allowed), elsewhere=not on_same_machines(base.runs, one.runs))


def _pair(base: Configuration, other: Configuration) -> tuple[RunRecord, RunRecord]:
    """Return a run of each, of the same seed where there is one."""
    seeds = {str(run.get("run.seed")): run for run in reversed(base.runs)}
    found = ((seeds[seed], run) for run in other.runs if (seed := str(run.get("run.seed"))) in seeds)
    return next(found, (base.runs[0], other.runs[0]))
