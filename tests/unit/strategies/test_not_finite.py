"""No update after a loss or a gradient that is not finite changes anything, with each strategy and optimizer."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from exact import RowModel, no_clock, row_batch
from torch import Tensor
from waits import watched_for_waits

from paratune.batch import Batch
from paratune.config.section import OwnOptimizer
from paratune.config.sections import Train
from paratune.engine.adamw_8bit import AdamW8bit
from paratune.engine.optim import OptimizerFactory
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies import strategy_class, whole
from paratune.strategies.loss_scale import UpdateStop
from paratune.strategies.process_group import close_process_group, open_process_group

CPU = torch.device("cpu")
FIRST_STOPPED = 2
STRATEGIES = [
    *((kind, {}) for kind in ("single", "ddp", "zero1", "zero2", "zero3")),
    ("zero3", {"param_dtype": "bf16"}),
    *(("deepspeed", {"stage": stage}) for stage in (0, 1, 2, 3)),
    *(("deepspeed", {"stage": stage, "param_dtype": "bf16"}) for stage in (2, 3)),
]
"""tests/two_processes has the others, and several ranks."""


class Spoilt(RowModel):
    """Adds infinity to the loss of rows with a negative weight, which changes no gradient."""

    def loss_sum(self, outputs: Tensor, batch: Batch, kept: Tensor | None = None) -> Tensor:
        loss = super().loss_sum(outputs, replace(batch, row_weight=batch.row_weight.abs()))
        return loss + math.inf if bool(batch.row_weight[0] < 0) else loss


def spoilt(kind: str, batch: Batch) -> Batch:
    """Return a batch whose loss is infinite with finite gradients, or whose gradients (and loss) are NaN."""
    return replace(batch, row_weight=batch.row_weight * (-1.0 if kind == "loss" else math.nan))


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, momentum=0.9)


@contextmanager
def prepared(name: str, options: dict[str, Any], optimizer: Any = "adamw") -> Iterator[tuple[Any, OptimizerFactory]]:
    open_process_group(Place(0, 0, 1), CPU)
    try:
        policy = POLICIES[options.get("param_dtype", "fp32")]
        strategy = strategy_class(name)(device=CPU, precision=policy, rank=0, world_size=1, **options)
        factory = OptimizerFactory(Train(learning_rate=0.01, optimizer=optimizer), 20)
        strategy.prepare(Spoilt(), [], factory)
        yield strategy, factory
        strategy.close()
    finally:
        close_process_group()


def steps(strategy: Any, factory: OptimizerFactory, kind: str) -> list[tuple[float, float, dict[str, Tensor]]]:
    """Take four steps, the third of which is spoilt; return the loss, the norm and the states after each."""
    results = []
    for step in range(4):
        batches = [row_batch(range(8 * step + 4 * part, 8 * step + 4 * part + 4), 8) for part in range(2)]
        if step == FIRST_STOPPED:
            batches[0] = spoilt(kind, batches[0])
        loss = strategy.forward_backward(batches, no_clock)
        factory.set_learning_rate(step)
        norm = strategy.optimizer_step(0.3)
        states = {key: value.clone() for key, value in strategy.state().tensors() if value is not None}
        results.append((float(loss), float(norm), states))
    return results


def assert_stopped(results: list[tuple[float, float, dict[str, Tensor]]], *, but: str = "nothing") -> None:
    """Check that states after the spoilt step are those before it, except states named `but`."""
    *_, (before, norm, good), (bad_loss, bad_norm, bad), (loss, _, last) = results
    assert math.isfinite(before + norm + loss)
    assert not math.isfinite(bad_loss)
    assert not math.isfinite(bad_norm), "the flag is in the norm, which is the same on every rank"
    for states in (bad, last):
        assert list(states) == list(good)
        assert [key for key in good if not torch.equal(states[key], good[key]) and not key.endswith(but)] == []
    assert any(not torch.equal(results[0][2][key], value) for key, value in good.items()), "steps before it are taken"


@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize(("name", "options"), STRATEGIES)
def test_every_strategy_stops(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], kind: str, on: str):
    if name == "deepspeed":
        pytest.importorskip("deepspeed")
    if on == "device":
        monkeypatch.setattr(whole, "READ_ON_HOST", ())
    with prepared(name, options) as (strategy, factory):
        assert_stopped(steps(strategy, factory, kind))


@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adafactor", "own"])
def test_every_optimizer_stops(monkeypatch: pytest.MonkeyPatch, optimizer: str, on: str):
    if on == "device":
        monkeypatch.setattr(whole, "READ_ON_HOST", ())
    if optimizer == "own":
        monkeypatch.setattr("paratune.engine.optim.call_own_code", lambda own, key, groups: sgd(groups))
    wanted = OwnOptimizer(function="tests:sgd") if optimizer == "own" else optimizer
    with prepared("single", {}, wanted) as (strategy, factory):
        results = steps(strategy, factory, "gradient")
    # This optimizer counts steps on the host.
    assert_stopped(results, but="/step" if (optimizer, on) == ("adamw_8bit", "device") else "nothing")


@pytest.mark.parametrize(("optimizer", "num_counts"), [("adamw", 0), ("adamw_8bit", 7)])
def test_the_decision_waits_for_no_device(optimizer: str, num_counts: int):
    with prepared("single", {}, optimizer) as (strategy, factory):
        steps(strategy, factory, "gradient")
        strategy.forward_backward([row_batch(range(4), 4)], no_clock)
        with watched_for_waits() as waits:
            strategy.optimizer_step(0.3)
    # The 8-bit AdamW reads the count of each of the 7 parameters, which is on the host.
    assert waits.found == ["item(), float(), bool() or int() of a tensor"] * num_counts


def test_8_bit_moments_keep_their_codes():
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(2, 4096))
    optimizer = AdamW8bit([parameter], lr=0.1)
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    states = {name: value.clone() for name, value in optimizer.state[parameter].items()}
    weights = parameter.detach().clone()
    parameter.grad = torch.full_like(parameter, math.nan)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert "exp_avg_codes" in states
    assert torch.equal(parameter, weights)
    for name in states.keys() - {"step"}:
        assert torch.equal(optimizer.state[parameter][name], states[name]), name
    parameter.grad = torch.randn_like(parameter)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert not torch.equal(parameter, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_update_that_the_device_decides_has_the_bits_of_a_plain_one(dtype: torch.dtype):
    torch.manual_seed(0)
    start, found = torch.randn(2, 4096, dtype=dtype), []
    for flag in (None, torch.tensor(0.0)):
        parameter = torch.nn.Parameter(start.clone())
        optimizer = AdamW8bit([parameter], lr=0.1, weight_decay=0.03)
        optimizer.found_inf = flag
        parameter.grad = start.cos()
        optimizer.step()
        found.append(parameter.detach())
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_stop_is_final(dtype: torch.dtype, value: float):
    stop = UpdateStop()
    largest = torch.finfo(dtype).max
    norms = [0.0, largest, value, 1.0]
    assert [float(stop.add(torch.tensor(norm, dtype=dtype))) for norm in norms] == [0.0, 0.0, 1.0, 1.0]
