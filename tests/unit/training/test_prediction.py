"""What a run writes of its prediction, and why it writes none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from paratune.config.batch_size import ResolvedBatch
from paratune.config.load import load_config
from paratune.config.traits import TRAITS
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel
from paratune.planning.constants import KINDS, Bounded, Constants
from paratune.planning.machine import Machine, find_machine
from paratune.planning.time import REMEDY
from paratune.precision import POLICIES
from paratune.training import prediction
from paratune.training.prediction import prediction_record

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "single.yaml"
ROUND = {
    name: Bounded(value, value / 2, value * 2)
    for name, meaning in KINDS.items()
    for value in (1e-6 if meaning.startswith("seconds") else 1.0 if meaning.startswith(("share", "mea")) else 1e9,)
}
CPU = Machine("a CPU", None, is_cuda=False, memory_bytes=2**30, constants=Constants(ROUND), num_cores=1)
SIZES = ResolvedBatch(global_batch_size=8, micro_batch_size=4, grad_accum_steps=2)


def prepared(*overrides: str) -> Any:
    lengths = np.array([5, 9, 30] * 20)
    store = SimpleNamespace(sequence_lengths=lengths, lengths=lengths, num_sequences=np.ones(60, dtype=np.int64))
    return SimpleNamespace(
        config=load_config(CONFIG, overrides).config,
        place=SimpleNamespace(rank=0, world_size=1),
        device=torch.device("cpu"),
        precision=POLICIES["fp32"],
        traits=TRAITS["single"],
        splits={"train": SimpleNamespace(store=store, num_samples=60)},
    )


def recorded(monkeypatch: pytest.MonkeyPatch, machine: Machine, *overrides: str) -> dict[str, Any]:
    monkeypatch.setattr(prediction, "this_machine", lambda: machine)
    model = TaskModel(tiny_model(), "classification")
    enable_packed_batches(model)
    assert model.entry is not None
    return prediction_record(prepared(*overrides), model, SIZES)


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_a_run_on_a_measured_machine_has_a_prediction(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    record = recorded(monkeypatch, CPU, f"batch.layout={layout}")
    assert record["reason"] is None
    value, low, high = record["step_s"]
    assert 0 < low < value < high
    assert sum(record["terms_s"].values()) == pytest.approx(value)
    assert record["memory_bytes"] == sum(record["memory_terms"].values())
    assert record["machine"] == "a CPU"
    assert record["cost_s"] > 0


def test_a_run_on_another_device_has_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Machine("a CPU", None, is_cuda=False, memory_bytes=2**30, constants=None, num_cores=1)
    assert recorded(monkeypatch, unknown) == {"reason": f"the speed of a CPU is unknown; {REMEDY}"}
    assert "on a machine with a GPU" in recorded(monkeypatch, find_machine("t4"))["reason"]
    assert recorded(monkeypatch, CPU, "measure.plan=false") == {"reason": "measure.plan: false"}


def test_a_model_that_cannot_be_traced_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NotImplementedError("no meta")

    monkeypatch.setattr(prediction.JobPredictor, "predict", fails)
    assert recorded(monkeypatch, CPU) == {"reason": "NotImplementedError: no meta"}
