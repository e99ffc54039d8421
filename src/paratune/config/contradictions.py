"""Problems of options that exclude each other, or that have no effect."""

from collections.abc import Iterator
from typing import Any, Final

from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.section import Section

NOT_GIVEN: Final = object()


def given(config: Section, key: str) -> Any:
    """Return the value of a dotted option; NOT_GIVEN if it is the default, or if the section is null or lacks it."""
    value: Any = config
    for name in key.split("."):
        fields = getattr(type(value), "model_fields", {})
        attribute = name if name in fields else f"{name}_"  # `global` and `class` are words of Python
        if attribute not in fields:
            return NOT_GIVEN
        value = getattr(value, attribute)
    # Not model_fields_set: the file of a run of a matrix, and that of `config show`, set every option.
    return NOT_GIVEN if value == fields[attribute].get_default(call_default_factory=True) else value


def exclusive(config: Section, key: str, *others: str) -> Iterator[Problem]:
    """Yield a problem for each of `others` that is given although `key` is given."""
    value = given(config, key)
    for other in others:
        other_value = given(config, other)
        if not any(option is NOT_GIVEN or option is None for option in (value, other_value)):
            yield conflict(key, value, other, other_value)


def conflict(key: str, value: object, other: str, other_value: object) -> Problem:
    """Return the problem of two options that exclude each other."""
    shown = f"{key}: {one_line(value)} and {other}: {one_line(other_value)}"
    return Problem(f"{shown} are both given; keep one of them", (key, other), code="config.conflict")


def unused(config: Section, keys: str | tuple[str, ...], circumstances: str, *causes: str) -> Iterator[Problem]:
    """Yield a problem for each option that is given, and has no effect; see `no_effect`."""
    for key in (keys,) if isinstance(keys, str) else keys:
        if (value := given(config, key)) is not NOT_GIVEN:
            yield no_effect(key, value, circumstances, *causes)


def no_effect(key: str, value: object, circumstances: str, *causes: str) -> Problem:
    """Return the problem of an option without effect.

    Args:
        circumstances: Why it has no effect, such as "with train.freeze_encoder: true".
        causes: Keys of the options that cause this, the most likely cause first.
    """
    return Problem(f"{key}: {one_line(value)} has no effect {circumstances}", (key, *causes), code="config.no_effect")
