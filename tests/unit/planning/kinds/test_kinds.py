"""Every strategy of the package has its own plan functions."""

from paratune.config.traits import TRAITS
from paratune.planning.kinds import KINDS


def test_every_strategy_of_the_package_is_planned() -> None:
    assert set(KINDS) == set(TRAITS)
