"""`scipy.special`, imported at its first use: it loads for a quarter of a second."""

from typing import Any


def __getattr__(name: str) -> Any:
    from scipy import special

    function = globals()[name] = getattr(special, name)  # found without this function from now on
    return function
