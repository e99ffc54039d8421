"""Training with weights of 16 bits gives the results of float64 up to rounding, on any number of ranks.

Bounds are those of the certificate (`paratune.records.certificate.TOLERANCES`): 32 roundings of bf16 for gradients, 8
for losses.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from half_ranks import BF16, Job, engines, jobs, one_rank, references, resumed
from safetensors.torch import load_file

from paratune.checkpoint import CheckpointReader
from paratune.records.certificate import TOLERANCES
from paratune.training.gradients import FLOORS, relative_difference

pytestmark = pytest.mark.slow
BOUND, ROUNDOFF = TOLERANCES["bf16"], 2.0**-8
SIZES = (1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("half")
    for size in SIZES:
        (root / str(size)).mkdir()
        work = [*jobs(), *(references() if size == 1 else [])]
        torch.multiprocessing.spawn(one_rank, (str(root), size, work), nprocs=size)
    return root


def steps(folder: Path, job: Job, size: int) -> dict[str, list[float]]:
    recorded: dict[str, list[float]] = json.loads((folder / str(size) / job.name / "rank0.json").read_text())
    return recorded


def tensors(folder: Path, job: Job, size: int, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / str(size) / job.name / f"{name}.safetensors")


def reference(folder: Path, job: Job) -> Job:
    return next(
        candidate
        for candidate in references()
        if (candidate.architecture, candidate.task) == (job.architecture, job.task)
    )


FULL = [job for job in jobs() if job.load_from is None]
every_job = pytest.mark.parametrize("job", FULL, ids=lambda job: job.name)
every_size = pytest.mark.parametrize("size", SIZES)


@every_job
@every_size
def test_losses_and_norms_are_those_of_float64_within_the_bound(folder: Path, job: Job, size: int):
    expected, losses = steps(folder, reference(folder, job), 1), steps(folder, job, size)
    np.testing.assert_allclose(losses["losses"], expected["losses"], rtol=BOUND.losses)
    np.testing.assert_allclose(losses["norms"], expected["norms"], rtol=BOUND.losses)
    # Values were rounded: in float32 the difference is smaller.
    assert not np.allclose(losses["norms"], expected["norms"], rtol=1e-5, atol=0)


@every_job
@every_size
def test_gradients_are_those_of_float64_within_the_bound(folder: Path, job: Job, size: int):
    expected = tensors(folder, reference(folder, job), 1, "gradients")
    gradients = tensors(folder, job, size, "gradients")
    assert sorted(gradients) == sorted(expected)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, value in expected.items():
        assert gradients[key].dtype == torch.float32
        assert relative_difference(gradients[key], value, largest, FLOORS["bf16"]) <= BOUND.gradients, key
    # Over all gradients the rounding error is much smaller: 0.003 to 0.011 were observed.
    together = [torch.cat([states[key].double().flatten() for key in expected]) for states in (gradients, expected)]
    assert float((together[0] - together[1]).norm() / together[1].norm()) < 8 * ROUNDOFF


@every_job
@every_size
def test_a_run_starts_with_the_loaded_weights_and_keeps_them_in_fp32(folder: Path, job: Job, size: int):
    expected = tensors(folder, reference(folder, job), 1, "initial")
    initial, last = (tensors(folder, job, size, name) for name in ("initial", "last"))
    for key, value in expected.items():
        if value.is_floating_point():
            assert torch.equal(initial[key], value.float()), key
    weights = {key: value for key, value in last.items() if key.startswith("model/") and value.is_floating_point()}
    assert all(value.dtype == torch.float32 for value in last.values() if value.is_floating_point())
    # Trained weights have digits that bf16 does not have.
    assert any(not torch.equal(value.bfloat16().float(), value) for value in weights.values())


@pytest.mark.parametrize("job", FULL, ids=lambda job: job.name)
def test_two_ranks_give_the_result_of_one_up_to_rounding(folder: Path, job: Job):
    alone, together = (steps(folder, job, size) for size in SIZES)
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=4 * ROUNDOFF)
    np.testing.assert_allclose(together["norms"], alone["norms"], rtol=4 * ROUNDOFF)


@pytest.mark.parametrize("way", engines(), ids=str)
@every_size
def test_a_checkpoint_contains_the_whole_state_of_training(folder: Path, way: tuple[str, Any], size: int):
    job = Job(*way, "bf16", save_at=2, micro_batches=2)
    whole, rest = steps(folder, job, size), steps(folder, resumed(job), size)
    assert rest["losses"] == whole["losses"][2:]
    assert rest["norms"] == whole["norms"][2:]
    expected, resumed_tensors = (tensors(folder, trained_job, size, "last") for trained_job in (job, resumed(job)))
    assert sorted(resumed_tensors) == sorted(expected)
    forms = [CheckpointReader(folder / str(size) / job.name / name) for name in ("checkpoint", "sharded")]
    keys = [sorted(form.keys()) for form in forms]
    assert keys[0] == keys[1]
    assert all(torch.equal(*(form.read(key) for form in forms)) for key in keys[0])
    assert all(torch.equal(resumed_tensors[key], value) for key, value in expected.items())


def test_autocast_gives_different_results(folder: Path):
    ways = [Job("zero3", options, "bf16", "modernbert-mean") for options in (BF16, {})]
    losses = [steps(folder, job, 1)["losses"] for job in ways]
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=BOUND.losses)
