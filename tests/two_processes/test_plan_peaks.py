"""The memory peak that `planning.memory` predicts is the peak of a real step on CPUs."""

import json
from functools import cache

import pytest
import torch.multiprocessing
from peak_ranks import CASES, LENGTH, ROWS, WORLD_SIZES, Case, config, one_rank

from paratune.config.task_sections import ClassificationTask
from paratune.planning.memory import peak_of_rank
from paratune.planning.profile import Profile, Shape, profile
from paratune.precision import Precision

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, int]]:
    """Return the bytes of each case, by the number of ranks and the rank."""
    folder = tmp_path_factory.mktemp("peaks")
    torch.multiprocessing.spawn(one_rank, (str(folder),), nprocs=max(WORLD_SIZES))
    return {
        (size, rank): json.loads((folder / f"{size}.{rank}.json").read_text())
        for size in WORLD_SIZES
        for rank in range(size)
    }


@cache
def _profile(precision: Precision) -> Profile:
    task = ClassificationTask(kind="classification", labels=["no", "yes"])
    return profile(config(), task, Shape((LENGTH,) * ROWS), precision, on_cuda=False, with_division=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_memory_peak_is_as_predicted(case: Case, measured: dict[tuple[int, int], dict[str, int]]) -> None:
    for rank in range(case.world_size):
        planned = peak_of_rank(_profile(case.precision), case.setup, rank, on_cuda=False)
        # On a CPU, offloaded tensors are in the same memory as all others. FSDP2 has no gradient shards yet.
        everywhere = planned.total + planned.host_total
        has_shards = "cpu_offload" not in case.options or "reduce_each_micro_step" in case.options
        everywhere -= 0 if has_shards else planned.host_terms["gradients"]
        real = measured[case.world_size, rank][case.name]
        assert everywhere == pytest.approx(real, rel=case.tolerance), f"rank {rank}: {planned}"
