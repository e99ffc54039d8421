"""The fullest moment that `plan.memory` predicts is the one that the ranks of a real step on CPUs have."""

import json
from functools import cache

import pytest
import torch.multiprocessing
from peak_ranks import CASES, FP32, LENGTH, ROWS, WORLD_SIZE, Case, config, one_rank

from paratune.config.task_sections import ClassificationTask
from paratune.plan.memory import peak_of_rank
from paratune.plan.profile import Profile, Shape, profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    folder = tmp_path_factory.mktemp("peaks")
    torch.multiprocessing.spawn(one_rank, (str(folder),), nprocs=WORLD_SIZE)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


@cache
def _profile() -> Profile:
    task = ClassificationTask(kind="classification", labels=["no", "yes"])
    return profile(config(), task, Shape((LENGTH,) * ROWS), FP32, on_cuda=False, with_division=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fullest_moment_is_as_predicted(case: Case, measured: list[dict[str, int]]) -> None:
    for rank in range(WORLD_SIZE):
        found = peak_of_rank(_profile(), case.setup, rank, on_cuda=False)
        assert found.total == pytest.approx(measured[rank][case.name], rel=case.tolerance), f"rank {rank}: {found}"
