"""`train.compile` with the strategies that support it: losses, weights and names equal those of one process without it.

Two processes with gloo, in float64; the jobs are those of the contract (`ranks`). Graphs are compiled to C++ here,
which takes minutes, so only `make test-all` runs these tests.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Job, Meeting, Outcome, run_meetings, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
RTOL = 1e-9
"""As in the contract: graphs also change only the order of sums."""
ALONE = Job("alone", task="mlm", packed=True, accumulation=2, num_steps=6, save_at=3)
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "zero1": ("zero1", {}),
    "zero2": ("zero2", {}),
    "zero3": ("zero3", {}),
    "hsdp": ("hsdp", {"shard_size": 1}),
    "deepspeed 1": ("deepspeed", {"stage": 1}),
    "deepspeed 2": ("deepspeed", {"stage": 2}),
}
if importlib.util.find_spec("deepspeed") is None:
    STRATEGIES = {name: row for name, row in STRATEGIES.items() if row[0] != "deepspeed"}
MOVERS = ("ddp", "zero3")


def _jobs() -> list[Job]:
    jobs = []
    for name, (kind, options) in STRATEGIES.items():
        job = replace(ALONE, strategy=kind, options=options, save_at=None)
        jobs.append(replace(job, name=name, until=3, compiles=True))
        if name in MOVERS:
            jobs.append(replace(job, name=f"{name}, then eager", load_from=name))
            again = replace(job, load_from="alone", compiles=True, activation_checkpointing=1)
            jobs.append(replace(again, name=f"{name}, continues from eager"))
    return jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compile")
    (root / "alone").mkdir()
    train(ALONE, 0, 1, root / "alone")
    run_meetings(root, [Meeting(2, _jobs())], limit_s=1700)
    return root


@pytest.mark.parametrize("name", STRATEGIES)
def test_losses_and_weights_are_those_of_eager_blocks(folder: Path, name: str):
    alone, compiled = Outcome(folder / "alone"), Outcome(folder / name)
    for rank in range(2):
        outcome = compiled.rank(rank)
        np.testing.assert_allclose(outcome["losses"], alone.rank()["losses"][:3], rtol=RTOL)
        np.testing.assert_allclose(outcome["norms"], alone.rank()["norms"][:3], rtol=RTOL)
        assert outcome["num_graphs"] > 0
    saved, expected = compiled.tensors("last"), alone.tensors("last")
    assert sorted(saved) == sorted(expected)
    assert not [key for key in saved if "_orig_mod" in key]


@pytest.mark.parametrize("order", ["then eager", "continues from eager"])
@pytest.mark.parametrize("name", MOVERS)
def test_a_training_resumes_with_or_without_graphs(folder: Path, name: str, order: str):
    """The second case also uses activation checkpointing, with graphs in the recomputed blocks."""
    alone, later = Outcome(folder / "alone"), Outcome(folder / f"{name}, {order}")
    np.testing.assert_allclose(later.rank()["losses"], alone.rank()["losses"][3:], rtol=RTOL)
    assert (later.rank().get("num_graphs", 0) > 0) == (order == "continues from eager")
    expected = alone.tensors("last")
    for key, value in later.tensors("last").items():
        if key.startswith("model/"):
            torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-8, msg=key)
