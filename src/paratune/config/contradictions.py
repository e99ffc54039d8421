"""Options that exclude each other, or that have no effect where they stand.

Floor 1.
"""

from paratune.config.plain import one_line
from paratune.config.problems import Problem


def both(key: str, value: object, other: str, other_value: object) -> Problem:
    """Return the problem of two options that exclude each other."""
    shown = f"{key}: {one_line(value)} and {other}: {one_line(other_value)}"
    return Problem(f"{shown} are both given; keep one of them", (key, other), code="config.conflict")


def no_effect(key: str, value: object, circumstances: str, also: tuple[str, ...]) -> Problem:
    """Return the problem of an option that nothing asks for.

    Args:
        key: The option, dotted.
        value: Of it.
        circumstances: When it has none, such as "with train.freeze_encoder: true".
        also: Keys of the options that make it so, the nearest first.
    """
    return Problem(f"{key}: {one_line(value)} has no effect {circumstances}", (key, *also), code="config.no_effect")
