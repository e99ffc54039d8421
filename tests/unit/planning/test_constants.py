"""Constants of a machine: curves, bounds, and reading them from JSON."""

import json

import pytest

from paratune.planning.constants import BoundedConstant, Constants


def test_a_rate_is_interpolated_linearly_in_logarithms() -> None:
    rate = BoundedConstant(8.0, 4.0, 16.0, "test", curve=((1.0, 2.0), (100.0, 8.0)))
    assert rate.at(0.1) == 2.0
    assert rate.at(1.0) == 2.0
    assert rate.at(10.0) == pytest.approx(4.0)  # half way in the logarithms, between 2 and 8
    assert rate.at(100.0) == 8.0
    assert rate.at(1e9) == 8.0
    assert BoundedConstant(3.0, 1.0, 5.0, "test").at(7.0) == 3.0


def test_bound_moves_the_whole_curve() -> None:
    constants = Constants({"elementwise": BoundedConstant(8.0, 4.0, 16.0, "test", curve=((1.0, 2.0), (100.0, 8.0)))})
    assert constants.at_bound("elementwise", "low")["elementwise"].at(1.0) == 1.0
    assert constants.at_bound("elementwise", "high")["elementwise"].at(100.0) == 16.0
    zero = Constants({"overlap": BoundedConstant(0.0, 0.0, 1.0, "test")})
    assert zero.at_bound("overlap", "high")["overlap"].value == 1.0


def test_constants_survive_a_round_trip() -> None:
    constants = Constants({"link": BoundedConstant(8.0, 4.0, 16.0, "test", curve=((1.0, 2.0), (100.0, 8.0)))})
    assert Constants.from_json(json.loads(json.dumps(constants.as_json()))) == constants


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "a mapping of names"),
        ({"speed": {}}, "speed is not a constant"),
        ({"link": {"value": 1}}, "link is not a value with low, high and source"),
        ({"link": {"value": 3, "low": 4, "high": 5, "source": ""}}, "link is 3.0 between 4.0 and 5.0"),
        ({"link": {"value": 4, "low": 4, "high": 5, "source": "", "curve": [[2, 1], [1, 1]]}}, "which cannot be"),
        ({"link": {"value": "nan", "low": 4, "high": 5, "source": ""}}, "which cannot be"),
    ],
)
def test_invalid_constants_are_refused(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Constants.from_json(values)
