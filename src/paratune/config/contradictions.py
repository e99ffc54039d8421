"""Collects problems of options that exclude each other, or that have no effect."""

from typing import Any, Final

from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.section import Section
from paratune.config.sections import Config

NOT_GIVEN: Final = object()


def given(config: Section, key: str, *, also_default: bool = False) -> Any:
    """Return the value of a dotted option; NOT_GIVEN if its section is null or lacks it, or if it is the default.

    Args:
        also_default: Return the default, too.
    """
    value: Any = config
    for name in key.split("."):
        fields = getattr(type(value), "model_fields", {})
        attribute = name if name in fields else f"{name}_"  # `global` and `class` are words of Python
        if attribute not in fields:
            return NOT_GIVEN
        value = getattr(value, attribute)
    # Not model_fields_set: the file of a run of a matrix, and that of `config show`, set every option.
    is_default = value == fields[attribute].get_default(call_default_factory=True)
    return NOT_GIVEN if is_default and not also_default else value


class Contradictions:
    """The problems between sections of one configuration that were found so far."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.problems: list[Problem] = []

    def add(self, message: str, *keys: str, code: str = "config.conflict", is_impossible: bool = False) -> None:
        """Add a problem; the first of its keys is the one to change."""
        self.problems.append(Problem(message, keys, code=code, is_impossible=is_impossible))

    def exclusive(self, key: str, *others: str) -> None:
        """Add a problem for each of `others` that is given although `key` is given."""
        value = given(self.config, key)
        for other in others:
            other_value = given(self.config, other)
            if not any(option is NOT_GIVEN or option is None for option in (value, other_value)):
                shown = f"{key}: {one_line(value)} and {other}: {one_line(other_value)}"
                self.add(f"{shown} are both given; keep one of them", key, other)

    def unused(self, keys: str | tuple[str, ...], circumstances: str, *causes: str) -> None:
        """Add a problem for each option that is given, and has no effect; see `no_effect`."""
        for key in (keys,) if isinstance(keys, str) else keys:
            if (value := given(self.config, key)) is not NOT_GIVEN:
                self.no_effect(key, value, circumstances, *causes)

    def no_effect(self, key: str, value: object, circumstances: str, *causes: str, is_impossible: bool = False) -> None:
        """Add the problem of an option without effect.

        Args:
            circumstances: Why it has no effect, such as "with train.freeze_encoder: true".
            causes: Keys of the options that cause this, the most likely cause first.
            is_impossible: As in `Problem`.
        """
        message = f"{key}: {one_line(value)} has no effect {circumstances}"
        self.add(message, key, *causes, code="config.no_effect", is_impossible=is_impossible)
