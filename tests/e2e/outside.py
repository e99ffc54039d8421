"""Strategies of a user's own, right and wrong, named in configurations as outside:Class."""

from paratune.config.traits import TRAITS


class Refuses:
    """Takes any option and refuses it in its own way."""

    traits = TRAITS["single"]

    def __init__(self, **options: object) -> None:
        raise KeyError("speed")
