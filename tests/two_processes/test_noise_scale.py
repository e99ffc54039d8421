"""The noise scale with every strategy: the sums equal those of one process with the same micro-batches.

The preconditioned estimate uses P after one step: v / (1 - beta2) = g^2, so P = 1 / (|g| + eps).

Tolerance: as in the contract, for the same reasons (see test_contract).
"""

import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from exact import no_clock
from ranks import CPU
from tiny import tiny_masked_lm, tiny_model
from tiny_data import tiny_collator, tiny_masking

from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.config.traits import strategy_traits
from paratune.engine.noise import NoiseMeter, noise_event
from paratune.engine.optim import OptimizerFactory
from paratune.models.blocks import checkpoint_blocks
from paratune.models.task_model import TaskModel, find_blocks
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import adam_preconditioner, strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

RTOL = 1e-9
EPS = 1e-6
SHARDED = ("zero1", "zero2", "zero3", "hsdp", "gathered one by one", *(f"deepspeed-{stage}" for stage in (1, 2, 3)))
PARTS = ((0, 3), (3, 4), (4, 6), (6, 8))
"""The micro-batches of a step of 8 samples, of unequal sizes; rank r of w takes every w-th."""

STRATEGIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "ddp": ("ddp", {}, 2),
    "zero1": ("zero1", {}, 2),
    "zero2": ("zero2", {}, 2),
    "zero3": ("zero3", {}, 2),
    "pipeline": ("pipeline", {"stages": 2}, 2),
    "interleaved": ("pipeline", {"stages": 2, "schedule": "interleaved"}, 2),
    **{f"deepspeed-{stage}": ("deepspeed", {"stage": stage}, 2) for stage in range(4)},
    "gathered one by one": ("deepspeed", {"stage": 3, "param_persistence_threshold": 0}, 2),
    "hsdp": ("hsdp", {"shard_size": 2}, 4),
    "pipeline x2": ("pipeline", {"stages": 2}, 4),
}
VARIANTS = ("classification", "mlm", "scaled", "computed again")
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


def _runs(world_size: int) -> list[str]:
    return [
        name
        for name, (kind, _, size) in STRATEGIES.items()
        if size == world_size and (HAS_DEEPSPEED or kind != "deepspeed")
    ]


def _model(variant: str) -> Any:
    if variant == "mlm":
        return TaskModel(tiny_masked_lm(num_layers=4), "mlm").double()
    model = TaskModel(tiny_model(num_labels=3, dropout=0.0, num_layers=4), "classification").double()
    if variant == "computed again":
        checkpoint_blocks(find_blocks(model), 1)
    return model


def _batches(variant: str, rank: int, world_size: int, *, equal_shapes: bool = False) -> list[Batch]:
    collator = tiny_masking(27, seed=3) if variant == "mlm" else tiny_collator(27, num_classes=3, seed=3)
    indices = np.arange(8)
    denominator = collator.loss_denominator(indices, epoch=0)
    shape = {"num_rows": 3, "length": int(collator.store.lengths[:8].max())} if equal_shapes else {}
    return [collator(indices[begin:end], denominator, epoch=0, **shape) for begin, end in PARTS[rank::world_size]]


def _measured(name: str, variant: str, rank: int, world_size: int) -> dict[str, Any]:
    """Return the sums of a second step, which shows that the hooks of the first step were removed."""
    adam_preconditioner.MIN_STEPS = 1
    kind, options, _ = STRATEGIES.get(name, ("single", {}, 1))
    precision = replace(POLICIES["fp64"], scales_loss=variant == "scaled")
    strategy = strategy_class(kind)(device=CPU, precision=precision, rank=rank, world_size=world_size, **options)
    model = _model(variant)
    strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(learning_rate=1e-12, eps=EPS), 4))
    meter = NoiseMeter(strategy, 1)
    if meter.reason is not None:
        strategy.close()
        return {"reason": meter.reason}
    traits = strategy_traits(kind, options)
    layout = strategy.layout
    batches = _batches(variant, layout.data_rank, layout.data_world_size, equal_shapes=traits.equal_shapes)
    for step in (1, 2):
        with meter.watching(step, batches):
            strategy.forward_backward(batches, no_clock)
        norm = float(strategy.optimizer_step(None))
    sample = meter.take()
    parts = strategy.reduce(torch.tensor(sample.parts(), dtype=torch.float64), "sum").tolist()
    strategy.close()
    code = None if meter.why_not_preconditioned is None else meter.why_not_preconditioned.code
    return {"parts": parts, "norm": norm, "event": noise_event(parts, norm), "code": code}


def _one_rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    for world_size in (2, 4):
        if rank >= world_size:
            continue
        os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / f"rendezvous{world_size}")
        open_process_group(Place(rank, rank, world_size), CPU)
        try:
            for name in _runs(world_size):
                measured = {variant: _measured(name, variant, rank, world_size) for variant in VARIANTS}
                (Path(folder) / f"{name}.rank{rank}.json").write_text(json.dumps(measured))
        finally:
            close_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("noise")
    torch.multiprocessing.spawn(_one_rank, (str(path),), nprocs=4)
    return path


def _gradients(variant: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the flat gradient of each micro-batch's part of the loss, from autograd alone, and 0 where P is 0."""
    model = _model(variant).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tied = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    embedding_ids = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)} - tied
    is_counted = torch.cat([torch.full((p.numel(),), float(id(p) not in embedding_ids)) for p in parameters])
    gradients = []
    for batch in _batches(variant, 0, 1):
        loss = model.loss_sum(model(batch), batch) / batch.loss_denominator
        gradients.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, parameters)]))
    return gradients, is_counted


def _expected(variant: str) -> Sequence[float]:
    """Return |g|^2, sum |g_i|^2, sum w_i^2, B, sum |P g_i|^2 and |P g|^2."""
    parts, is_counted = _gradients(variant)
    counts = [batch.loss_count for batch in _batches(variant, 0, 1)]
    weights = sum((count / sum(counts)) ** 2 for count in counts)
    whole = sum(parts)
    p = is_counted / (whole.abs() + EPS)
    squares = [float(sum((factor * part).square().sum() for part in parts)) for factor in (1.0, p)]
    return float(whole.square().sum()), squares[0], weights, 8.0, squares[1], float((p * whole).square().sum())


def _check(measured: dict[str, Any], expected: Sequence[float], *, is_sharded: bool) -> None:
    squared, *parts = expected
    np.testing.assert_allclose(measured["parts"][:3], parts[:3], rtol=RTOL)
    assert measured["norm"] ** 2 == pytest.approx(squared, rel=RTOL)
    event = noise_event(parts, squared**0.5)
    preconditioned, own = event.pop("preconditioned"), measured["event"].pop("preconditioned")
    assert measured["event"] == pytest.approx(event, rel=1e-7)
    assert measured["code"] == ("sharded_states" if is_sharded else None)
    if is_sharded:
        assert own is None
        return
    np.testing.assert_allclose(measured["parts"][3:], parts[3:], rtol=1e-6)
    assert own == pytest.approx(preconditioned, rel=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_process_measures_each_micro_batch(variant: str):
    measured = _measured("single", variant, 0, 1)
    _check(measured, _expected(variant), is_sharded=False)
    assert measured["event"]["trace"] != 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [name for name in STRATEGIES if HAS_DEEPSPEED or not name.startswith(("d", "g"))])
def test_every_strategy_measures_the_same_as_one_process(folder: Path, name: str, variant: str):
    expected = _expected(variant)
    for rank in range(STRATEGIES[name][2]):
        measured = json.loads((folder / f"{name}.rank{rank}.json").read_text())[variant]
        if name in ("pipeline", "interleaved", "pipeline x2") and variant == "mlm":
            assert "1 of the weights" in measured["reason"]
            continue
        _check(measured, expected, is_sharded=name in SHARDED)
