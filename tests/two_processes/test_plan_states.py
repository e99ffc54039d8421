"""The bytes that `planning.kinds` counts are those of the storages behind the tensors of a real run's ranks.

Each rank runs one step, so that optimizer states exist, and computes the gradients of another; then each storage is
counted once.
"""

import json
from functools import cache

import pytest
import torch.multiprocessing
from ranks import Job
from state_ranks import JOBS, one_rank, precision_of
from tiny import tiny_config

from paratune.config import strategy_sections as sections
from paratune.config.sections import Train
from paratune.config.task_sections import ClassificationTask, MaskedLMTask, Task
from paratune.config.traits import strategy_traits
from paratune.planning.kinds import states_of_rank
from paratune.planning.profile import Profile, Shape, profile
from paratune.planning.states import PredictionSetup, States
from paratune.precision import Precision

pytestmark = pytest.mark.slow
SECTIONS = {
    "ddp": sections.DDPOptions,
    "zero1": sections.Zero1Options,
    "zero2": sections.Zero2Options,
    "zero3": sections.Zero3Options,
    "hsdp": sections.HSDPOptions,
    "pipeline": sections.PipelineOptions,
    "deepspeed": sections.DeepSpeedOptions,
}


@pytest.fixture(scope="module")
def bytes_by_rank(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[int, int], dict[str, dict[str, int]]]:
    """Return the bytes of each rank of each world size, by job."""
    folder = tmp_path_factory.mktemp("states")
    torch.multiprocessing.spawn(one_rank, (str(folder),), nprocs=max(JOBS))
    return {
        (size, rank): json.loads((folder / f"{size}.{rank}.json").read_text()) for size in JOBS for rank in range(size)
    }


@cache
def _profile(task_kind: str, freeze: bool, precision: Precision) -> Profile:
    labels = ["a", "b", "c"]
    task: Task = (
        MaskedLMTask(kind="mlm") if task_kind == "mlm" else ClassificationTask(kind="classification", labels=labels)
    )
    config = tiny_config(num_labels=3, num_layers=4)
    return profile(
        config, task, Shape((5, 5)), precision, on_cuda=False, train=Train(freeze_encoder=freeze), with_division=True
    )


def _planned(job: Job, rank: int, world_size: int) -> States:
    traits = strategy_traits(job.strategy, job.options)
    assert traits is not None
    setup = PredictionSetup(
        strategy=SECTIONS[job.strategy](kind=job.strategy, **job.options),
        traits=traits,
        precision=precision_of(job.options),
        num_ranks=world_size,
        ranks_per_node=world_size,
        micro_batch_size=2,
        grad_accum_steps=2,
    )
    return states_of_rank(_profile(job.task, job.freeze, setup.precision), setup, rank)


@pytest.mark.parametrize("job", [pytest.param((s, job), id=job.name) for s, jobs in JOBS.items() for job in jobs])
def test_every_rank_holds_the_planned_bytes(
    job: tuple[int, Job], bytes_by_rank: dict[tuple[int, int], dict[str, dict[str, int]]]
) -> None:
    world_size, case = job
    for rank in range(world_size):
        planned = _planned(case, rank, world_size)
        # On a CPU, offloaded tensors are in the same memory as all others.
        everywhere = {
            "weights": planned.weights + planned.host_weights,
            "gradients": planned.gradients + planned.host_gradients,
            "optimizer": planned.optimizer + planned.host_optimizer,
        }
        assert bytes_by_rank[world_size, rank][case.name] == everywhere, f"rank {rank}"
