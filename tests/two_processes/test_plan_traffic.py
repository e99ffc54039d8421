"""DeepSpeed's collectives on two real processes: the same on both, with the planned bytes per step.

Its ranks cannot be threads, unlike those of `tests/unit/planning/test_traffic.py`: DeepSpeed has state per process.
"""

import importlib.util
import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
import torch.multiprocessing
from ranks import Job
from tiny import tiny_config
from traffic_ranks import Call, one_rank

from paratune.config.strategy_sections import DeepSpeedOptions
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.planning.kinds import step_transfers
from paratune.planning.profile import Shape, profile
from paratune.planning.states import PredictionSetup
from paratune.planning.work import Transfer
from paratune.precision import POLICIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("deepspeed"), reason="the extra deepspeed is not installed"),
]
WORLD_SIZE, NUM_MICRO_STEPS = 2, 2
OPTIONS: list[dict[str, Any]] = [
    *({"stage": stage} for stage in range(4)),
    {"stage": 3, "param_persistence_threshold": 0},
    # As with the defaults for 16-bit weights: the whole model stays gathered until the update.
    {"stage": 3, "param_persistence_threshold": 0, "max_live_parameters": 10**9, "prefetch_bucket_size": 10**6},
]
JOBS = [
    Job(json.dumps(options), strategy="deepspeed", options=options, accumulation=NUM_MICRO_STEPS) for options in OPTIONS
]
KINDS = {"allreduce_": "all_reduce", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Call]]]:
    """Return the collectives of the second step of each job, rank by rank."""
    folder = tmp_path_factory.mktemp("traffic")
    jobs = [asdict(job) for job in JOBS]
    torch.multiprocessing.spawn(one_rank, (str(folder), jobs, WORLD_SIZE), nprocs=WORLD_SIZE)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    return [{name: [Call(**call) for call in calls] for name, calls in rank.items()} for rank in ranks]


def _planned(job: Job) -> list[Transfer]:
    traits = strategy_traits("deepspeed", job.options)
    assert traits is not None
    setup = PredictionSetup(
        strategy=DeepSpeedOptions(kind="deepspeed", **job.options),
        traits=traits,
        precision=POLICIES["fp32"],
        num_ranks=WORLD_SIZE,
        ranks_per_node=WORLD_SIZE,
        micro_batch_size=2,
        grad_accum_steps=NUM_MICRO_STEPS,
    )
    task = ClassificationTask(kind="classification", labels=["a", "b", "c"])
    config = tiny_config(num_labels=3, num_layers=4)
    return step_transfers(profile(config, task, Shape((5, 5)), POLICIES["fp32"], on_cuda=False), setup)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_both_ranks_call_the_same_collectives(job: Job, calls: list[dict[str, list[Call]]]):
    first, second = (of_rank[job.name] for of_rank in calls)
    assert len(first) > 0
    assert second == first


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_step_sends_the_planned_bytes(job: Job, calls: list[dict[str, list[Call]]]):
    sent: Counter[str] = Counter()
    for call in calls[0][job.name]:
        if call.num_numbers > 1:  # no norms, no votes on overflows
            assert call.dtype == "torch.float32"
            sent[KINDS[call.name]] += 4 * call.num_numbers
    planned: Counter[str] = Counter()
    for transfer in _planned(job):
        planned[transfer.collective] += transfer.num_calls * transfer.num_bytes
    # Flat tensors are padded to a multiple of the number of ranks.
    assert sent == pytest.approx(planned, rel=1e-4)
