"""Whether configurations compare: what another one trained, and on what machine; marks say so in tables and figures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from paratune.report.compare import Difference, compare, decides_what_is_trained
from paratune.report.machine import machine_of
from paratune.report.read import RunRecord
from paratune.report.systems.configurations import Configuration

_OF_THE_SEED = {"seed", "initial_weights"}
_EXPLAINS = {
    "task": ("task", "train_data", "validation_data", "test_data", "tokens", "initial_weights", "plan", "kept_model"),
    "data": ("task", "train_data", "validation_data", "test_data", "tokens", "plan"),
    "model": ("initial_weights", "model_overrides", "tokens"),
    "train": ("train_settings", "plan"),
    "evaluate": ("kept_model", "plan"),
    "batch": ("global_batch_size", "plan"),
    "nproc": ("global_batch_size", "plan"),
    "probe": ("plan",),
}
"""What settings of a section make different of what `compare` looks at."""


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


@dataclass(frozen=True)
class Differs:
    """In what a configuration is another experiment than the one that it is compared with."""

    by_axis: tuple[str, ...]
    """What an axis of the matrix makes different, in words."""
    unexplained: tuple[str, ...]
    """What no axis says: such configurations are not ranked beside each other."""
    elsewhere: bool
    """Whether it ran on another machine."""
    unknown: tuple[str, ...] = ()
    """What cannot be told because a run does not record it."""
    batch: bool = False
    """Whether the global batch size differs."""

    def notes(self, base: str = "the baseline") -> tuple[str, ...]:
        """Return what is to be said of it, against a configuration that is called so."""
        texts = []
        if self.unexplained:
            texts.append(f"not comparable with {base}: other {', '.join(self.unexplained)}, which no axis says")
        if self.by_axis:
            texts.append(f"trained otherwise than {base}: other {', '.join(self.by_axis)}")
        if self.elsewhere:
            texts.append(f"ran on another machine than {base}: times and memory do not compare")
        return tuple(texts)


def what_differs(one: Configuration, base: Configuration, axis_keys: Iterable[str]) -> Differs:
    """Return in what a configuration differs from the one that it is compared with.

    Args:
        one: Which is marked.
        base: What it is compared with.
        axis_keys: Dotted keys that axes of the matrix set.
    """
    if one is base or not one.runs or not base.runs:
        return Differs((), (), elsewhere=False)
    pair = _pair(one, base)
    left_out = set(_OF_THE_SEED) if pair[0].get("run.seed") != pair[1].get("run.seed") else set()
    sections = {key.partition(".")[0] for key in axis_keys if decides_what_is_trained(key)}
    explained = {key for section in sections for key in _EXPLAINS.get(section, ())}
    if one.is_probe != base.is_probe:
        explained.add("plan")
    same = compare(pair)
    differ = [each for each in same.differ if each.key not in left_out]
    return Differs(
        tuple(_in_words(each, pair) for each in differ if each.key in explained),
        tuple(_in_words(each, pair) for each in differ if each.key not in explained),
        elsewhere={machine_of(run) for run in one.runs} != {machine_of(run) for run in base.runs},
        unknown=same.unknown,
        batch=any(each.key == "global_batch_size" for each in differ),
    )


def _pair(one: Configuration, other: Configuration) -> tuple[RunRecord, RunRecord]:
    """Return a run of each, of the same seed where there is one."""
    seeds = {str(run.get("run.seed")): run for run in reversed(other.runs)}
    for run in one.runs:
        if str(run.get("run.seed")) in seeds:
            return run, seeds[str(run.get("run.seed"))]
    return one.runs[0], other.runs[0]


def _in_words(found: Difference, pair: Sequence[RunRecord]) -> str:
    label = found.label.removeprefix("the ")
    own, base = (found.values.get(run.name) for run in pair)
    if isinstance(own, int | float) and isinstance(base, int | float):
        return f"{label} ({own:,} against {base:,})"
    return label
