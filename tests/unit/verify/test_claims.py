"""Claims of records, and the cheapest runs that decide them."""

import math
import random
import sys
from pathlib import Path

import pytest

from paratune.reports.comparison import systems_of_runs
from paratune.verdicts.speeds import ratio
from paratune.verify.claims import agreement, changed_claims, choose_runs, find_claims

sys.path.insert(0, str(Path(__file__).parents[1] / "verdicts"))
from fake_run import make_run

SPREAD = 0.02


def runs_of(name: str, workers: int, rate: float, num_runs: int, draw: random.Random) -> list:
    return [
        make_run(
            f"{name}_seed{seed}", seed, rate * math.exp(draw.gauss(0, SPREAD)),
            run__config={"data": {"num_workers": workers}},
            summary__time__total_s=100.0,
        )
        for seed in range(num_runs)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def systems():
    draw = random.Random(5)
    groups = (("base", 0, 100.0), ("near", 1, 104.5), ("far", 2, 150.0))
    return systems_of_runs([run for name, workers, rate in groups for run in runs_of(name, workers, rate, 12, draw)])


def speed_claims(systems):
    return {claim.configuration: (claim, one) for claim, one in find_claims(systems) if claim.measure == "speed"}


def test_the_records_give_their_own_claims_and_no_other(systems):
    decided = find_claims(systems)
    claims = [claim for claim, _ in decided]
    assert changed_claims(claims, decided) == []
    far = next(claim for claim in claims if claim.configuration == "far" and claim.measure == "speed")
    assert (far.result, far.outcome) == ("holds", "better")
    for change in ({"change": 3.0}, {"outcome": "worse"}, {"claim": "far is best"}, {"measure": "f1"}):
        other = far.model_copy(update=change)
        assert changed_claims([other if one is far else one for one in claims], decided)
    assert len(changed_claims(claims[1:], decided)) == 1


def test_a_claim_agrees_only_with_the_same_decided_result(systems):
    far = speed_claims(systems)["far"][0]
    assert agreement(far, far) == "yes"
    assert agreement(far, far.model_copy(update={"outcome": "worse"})) == "no"
    assert agreement(far, far.model_copy(update={"result": "cannot tell", "outcome": "cannot tell"})) == "cannot tell"
    assert agreement(far, None) == "cannot tell"


def test_the_cheapest_claim_comes_first_and_both_sides_are_in_turn(systems):
    decided = [*speed_claims(systems).values()]
    names, claims, left_out, seconds = choose_runs(decided, systems, lambda name: 100.0, 500.0)
    assert [claim.configuration for claim in claims] == ["far"]
    assert names == ["base_seed0", "far_seed0", "base_seed1", "far_seed1"]  # a change of 50% needs two runs a side
    assert seconds == 400.0
    assert len(left_out) == 1
    assert choose_runs(decided, systems, lambda name: None, math.inf)[0] == []
    assert choose_runs(decided, systems, lambda name: 100.0, 0.0)[0] == []


def test_the_chosen_number_of_runs_finds_the_change_in_four_of_five_repetitions(systems):
    claim, found = speed_claims(systems)["near"]
    names, *_ = choose_runs([(claim, found)], systems, lambda name: 1.0, math.inf)
    number = len(names) // 2
    assert 2 < number < 12
    deviation = math.sqrt(sum(side.mean_square for side in found.estimate.sides) / 2)
    draw, decided = random.Random(11), 0
    groups = [member.group for member in systems.measured if member.label in ("base", "near")]
    for _ in range(1000):
        rates = [
            [math.exp(mean + draw.gauss(0, deviation)) for _ in range(number)] for mean in (0.0, found.estimate.value)
        ]
        groups = [type(one)(one.label, one.runs[:number]) for one in groups]
        decided += ratio("speed", *groups, *rates).estimate.p_different() <= 0.05
    # Here with two configurations; the binomial deviation of 1,000 repetitions at 80% is 1.3%.
    assert decided / 1000 >= 0.76
