"""Every strategy of the package has its own plan functions; what DeepSpeed's stage 3 gathers."""

import pytest
from tiny import tiny_config

from paratune.config.strategy_sections import DeepSpeedOptions
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import TRAITS, strategy_traits
from paratune.planning.kinds import KINDS, step_transfers
from paratune.planning.profile import Profile, Shape, profile
from paratune.planning.states import PredictionSetup
from paratune.precision import POLICIES


def test_every_strategy_of_the_package_is_planned() -> None:
    assert set(KINDS) == set(TRAITS)


def gathered_bytes(model: Profile, steps: int, num_ranks: int = 2, **limits: int) -> float:
    """Return the bytes that a step of stage 3 gathers."""
    options = {"stage": 3, "param_persistence_threshold": 0, **limits}
    traits = strategy_traits("deepspeed", options)
    assert traits is not None
    strategy = DeepSpeedOptions(kind="deepspeed", **options)
    setup = PredictionSetup(strategy, traits, POLICIES["fp32"], num_ranks, num_ranks, 2, steps)
    calls = [transfer for transfer in step_transfers(model, setup) if transfer.collective == "all_gather"]
    return sum(call.num_calls * call.num_bytes for call in calls)


def test_stage_3_gathers_a_model_once_for_both_passes_or_again_for_each() -> None:
    task = ClassificationTask(kind="classification", labels=["a", "b", "c"])
    config = tiny_config(num_labels=3, num_layers=4)
    model = profile(config, task, Shape((5, 5)), POLICIES["fp32"], on_cuda=False)
    whole = 4 * model.num_parameters
    everything = {"max_live_parameters": 10**9, "prefetch_bucket_size": 10**6}
    # The last use of a weight in the backward pass releases it; counted in tests/two_processes/test_plan_traffic.py.
    for steps in (1, 2, 5):
        assert gathered_bytes(model, steps, **everything) == pytest.approx(steps * whole)
    nothing = {"max_live_parameters": 0, "max_reuse_distance": 0, "prefetch_bucket_size": 0}
    for steps in (1, 3):
        assert gathered_bytes(model, steps, **nothing) == pytest.approx(2 * steps * whole, rel=0.01)
    assert gathered_bytes(model, 1, num_ranks=1, **everything) == 0
