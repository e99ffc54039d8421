"""Problems of options that exclude each other, or that have no effect."""

from paratune.config.plain import one_line
from paratune.config.problems import Problem


def conflict(key: str, value: object, other: str, other_value: object) -> Problem:
    """Return the problem of two options that exclude each other."""
    shown = f"{key}: {one_line(value)} and {other}: {one_line(other_value)}"
    return Problem(f"{shown} are both given; keep one of them", (key, other), code="config.conflict")


def no_effect(key: str, value: object, circumstances: str, also: tuple[str, ...]) -> Problem:
    """Return the problem of an option without effect.

    Args:
        circumstances: Why it has no effect, such as "with train.freeze_encoder: true".
        also: Keys of the options that cause this, the most likely cause first.
    """
    return Problem(f"{key}: {one_line(value)} has no effect {circumstances}", (key, *also), code="config.no_effect")
