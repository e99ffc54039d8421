"""Factors after runs, by the arithmetic of a normal prior; and runs from their records."""

import json
import math
from pathlib import Path

import pytest
from raised import raises_code

from paratune.config.traits import TRAITS
from paratune.planning.constants import BoundedConstant, Constants, communication_factor
from paratune.planning.refinement import Observation, observation, posterior, refine
from paratune.planning.time import TERMS, StepTime

SURE = 1.645
PRIOR = BoundedConstant(1.0, math.exp(-0.2 * SURE), math.exp(0.2 * SURE), "assumed")
"""A standard deviation of 0.2 in logarithms."""
NAMES = ("run", "forward", "backward", "optimizer", "communication", "sharding", "pipeline")
FACTORS = Constants({f"factor.{name}": PRIOR for name in NAMES})


def run(kind: str = "single", total_s: float | None = None, **measured: float) -> Observation:
    """Return a run of which each local phase was predicted to take 1 s, and the wait for other ranks 1 s."""
    predicted = dict.fromkeys(TERMS, 0.0) | {"forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    if kind in ("ddp", "zero3"):
        predicted["communication_exposed"] = 1.0
    if kind == "pipeline":
        predicted["bubble"] = 1.0
    phases = {"get_batch": 0.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0, "other": 0.0} | measured
    factor = communication_factor(TRAITS[kind].shards)
    return Observation(predicted, phases, total_s or sum(phases.values()), TRAITS[kind].own_phases, factor)


def test_posterior_is_the_weighted_mean() -> None:
    # One run weighs 1 / 0.1^2 = 100, the prior 1 / 0.2^2 = 25: four fifths of ln 1.5.
    factor = posterior(PRIOR, [1.5])
    assert factor.value == pytest.approx(math.exp(0.8 * math.log(1.5)))
    reach = SURE / math.sqrt(125)
    assert factor.low == pytest.approx(factor.value * math.exp(-reach))
    assert factor.high == pytest.approx(factor.value * math.exp(reach))
    assert "1 run on it" in factor.source
    # Four runs that agree to within 5%: 4 / 0.05^2 = 1600 against 25.
    many = posterior(PRIOR, [1.5] * 4)
    assert many.value == pytest.approx(math.exp(1600 / 1625 * math.log(1.5)))
    assert many.high / many.low < factor.high / factor.low


def test_a_second_refinement_begins_where_the_first_ended() -> None:
    once = posterior(PRIOR, [1.5])
    # With the factor in it, the prediction is right now: the factor stays where it is.
    assert posterior(once, [1.0]).value == pytest.approx(once.value)


def test_runs_of_one_rank_refine_the_factors_of_phases() -> None:
    refined = refine(FACTORS, [run(forward=1.2, backward=0.9), run(forward=1.2, backward=0.9)])
    assert refined["factor.forward"].value > 1.1
    assert refined["factor.backward"].value < 0.95
    assert refined["factor.optimizer"].value == pytest.approx(1.0)
    assert refined["factor.communication"] == PRIOR
    assert refined["factor.run"].high < PRIOR.high


def test_rest_of_a_step_refines_communication() -> None:
    # DDP: forward and optimizer are the rank's own; backward is 1.0 of computing and 3.0 of an all-reduce.
    refined = refine(FACTORS, [run("ddp", backward=4.0)] * 8)
    assert refined["factor.backward"] == PRIOR
    assert refined["factor.communication"].value == pytest.approx(3.0, rel=0.05)
    # The rest of a step of a pipeline is its waiting.
    waiting = refine(FACTORS, [run("pipeline", other=2.0)] * 8)
    assert waiting["factor.pipeline"].value == pytest.approx(2.0, rel=0.05)
    assert waiting["factor.communication"] == PRIOR


def test_sharded_runs_do_not_share_their_factor_with_ddp() -> None:
    # Waiting for other ranks took 2 s of ZeRO-3 and 0.5 s of DDP, 1 s predicted: with one factor the mean stays at 1.
    runs = [run("zero3", total_s=5.0)] * 4 + [run("ddp", total_s=3.5)] * 4
    refined = refine(FACTORS, runs)
    assert refined["factor.sharding"].value == pytest.approx(2.0, rel=0.05)
    assert refined["factor.communication"].value == pytest.approx(0.5, rel=0.05)
    assert refined["factor.run"].high < PRIOR.high


def test_runs_that_differ_widen_the_bounds_of_a_run() -> None:
    runs = [run(total_s=total) for total in (2.0, 3.0, 4.5)]
    factor = refine(FACTORS, runs)["factor.run"]
    assert factor.value == 1.0
    # ln(2/3), 0 and ln(1.5), and three times 0.2^2 of the prior, over six.
    spread = math.sqrt((2 * math.log(1.5) ** 2 + 3 * 0.2**2) / 6)
    assert factor.high == pytest.approx(math.exp(SURE * spread))


def test_without_runs_nothing_changes() -> None:
    assert refine(FACTORS, []) == FACTORS


def test_a_run_is_read_from_its_record(tmp_path: Path) -> None:
    phases = {name: {"median_ms": 10.0} for name in ("get_batch", "forward", "backward", "optimizer", "other")}
    (tmp_path / "summary.json").write_text(json.dumps({"phases": phases, "step_ms": {"median": 50.0}}))
    predicted = StepTime(dict.fromkeys(TERMS, 1.0), 8.0, 7.0, 9.0, "compute", (), {})
    observed = observation(tmp_path, predicted, TRAITS["ddp"])
    assert observed.total_s == 0.05
    assert observed.measured["backward"] == 0.01
    assert observed.own_phases == TRAITS["ddp"].own_phases
    (tmp_path / "summary.json").write_text(json.dumps({"phases": {}, "step_ms": {"median": None}}))
    with pytest.raises(ValueError, match="no measured step"):
        observation(tmp_path, predicted, TRAITS["ddp"])
    with raises_code("run.file_not_found"):
        observation(tmp_path / "nowhere", predicted, TRAITS["ddp"])
