"""The loss scale: when it changes, what a step without it would have done, and that it survives a checkpoint."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from exact import RowModel, no_clock, row_batch
from tiny import tiny_model
from tiny_data import tiny_collator
from torch import Tensor, nn
from waits import watched_for_waits

from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.data.loader import TrainBatches
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES, Precision
from paratune.processes.place import Place
from paratune.strategies import loss_scale, strategy_class, whole
from paratune.strategies.loss_scale import LossScaler, make_scaler, overflow_of
from paratune.strategies.process_group import close_process_group, open_process_group
from paratune.strategies.protocol import WatchesGradients, loss_scale_of
from paratune.strategies.single import SingleStrategy

CPU = torch.device("cpu")
GOOD, OVERFLOW = torch.tensor(1.5), torch.tensor(torch.inf)
FP32_SCALED = replace(POLICIES["fp32"], scales_loss=True)
"""What fp16 does around a forward pass, without fp16 in it: so that scaling alone can be looked at."""


def test_the_constants_equal_those_of_pytorchs_scaler():
    theirs = torch.amp.GradScaler("cpu")
    assert theirs.get_scale() == loss_scale.INITIAL_SCALE == 65536
    assert theirs.get_growth_factor() == loss_scale.GROWTH_FACTOR
    assert theirs.get_backoff_factor() == loss_scale.BACKOFF_FACTOR
    assert theirs.get_growth_interval() == loss_scale.GROWTH_INTERVAL


def note(scaler: LossScaler, norm: Tensor) -> bool:
    """Take note of a step with this norm, times the scale; return whether it can be taken."""
    unscaled, overflow = scaler.unscale(norm * scaler.scale)
    assert torch.equal(unscaled, norm) or not bool(norm.isfinite())
    scaler.update(overflow)
    return not bool(overflow)


@pytest.mark.parametrize("seed", range(3))
def test_the_scale_changes_like_pytorchs(monkeypatch: pytest.MonkeyPatch, seed: int):
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 4)
    theirs = torch.amp.GradScaler("cpu", growth_interval=4)
    ours = LossScaler()
    parameter = nn.Parameter(torch.ones(2))
    sgd = torch.optim.SGD([parameter], lr=0.0)
    torch.manual_seed(seed)
    seen = set()
    for overflows in (torch.rand(60) < 0.15).tolist():
        norm = OVERFLOW if overflows else GOOD
        theirs.scale(parameter.sum()).backward()
        parameter.grad.fill_(norm)
        theirs.step(sgd)
        theirs.update()
        assert note(ours, norm) == (not overflows)
        assert ours.scale == theirs.get_scale()
        seen.add(float(ours.scale))
    assert len(seen) > 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_an_overflow_halves_the_scale_and_restarts_the_count(value: float, dtype: torch.dtype):
    scaler = LossScaler()
    for _ in range(1999):
        assert note(scaler, GOOD.to(dtype))
    assert not note(scaler, torch.tensor(value, dtype=dtype))
    assert (scaler.last_scale, scaler.scale) == (65536, 32768)
    for _ in range(1999):
        note(scaler, GOOD.to(dtype))
    assert scaler.scale == 32768
    note(scaler, GOOD)  # the 2000th without an overflow
    assert (scaler.last_scale, scaler.scale) == (32768, 65536)
    assert [float(overflow_of(torch.tensor(norm))) for norm in (1.0, value)] == [0.0, 1.0]


def test_only_fp16_has_a_loss_scale():
    assert [name for name, policy in POLICIES.items() if make_scaler(policy)] == ["fp16"]


def prepared(precision: Precision, model: nn.Module, num_steps: int = 20) -> tuple[SingleStrategy, OptimizerFactory]:
    strategy = SingleStrategy(device=CPU, precision=precision, rank=0, world_size=1)
    factory = OptimizerFactory(Train(learning_rate=0.01, warmup_steps=2), num_steps)
    strategy.prepare(model, [], factory)
    return strategy, factory


def huge_batch(rows: range) -> Batch:
    """Return 4 rows whose scaled gradients are larger than a float32 holds."""
    return replace(row_batch(rows, 8), row_weight=torch.full((4,), 1e30))


def steps(
    strategy: Any, factory: OptimizerFactory, which: range, max_norm: float | None = 0.3, huge: int = -1
) -> list[tuple[float, float]]:
    """Take steps of two micro-batches; the gradients of step `huge` are larger than their dtype holds."""
    result = []
    for step in which:
        batches = [row_batch(range(8 * step + 4 * part, 8 * step + 4 * part + 4), 8) for part in range(2)]
        if step == huge:
            batches[1] = huge_batch(range(8 * step + 4, 8 * step + 8))
        loss = strategy.forward_backward(batches, no_clock)
        factory.set_learning_rate(step)
        result.append((float(loss), float(strategy.optimizer_step(max_norm))))
    return result


def tensors(strategy: Any, prefix: str = "") -> dict[str, Tensor]:
    return {key: value.clone() for key, value in strategy.state().tensors(prefix) if value is not None}


def assert_equal(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert list(got) == list(want)
    for key, value in want.items():
        assert torch.equal(got[key], value), key


@pytest.mark.parametrize("max_norm", [0.3, 1e6, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_changes_no_bit_of_the_training(dtype: torch.dtype, max_norm: float | None):
    # Products with powers of two are exact, so everything is: losses, norms, clipping, weights, moments.
    plain = POLICIES["fp32" if dtype == torch.float32 else "fp64"]
    strategy = prepared(plain, RowModel().to(dtype))
    other = prepared(replace(plain, scales_loss=True), RowModel().to(dtype))
    assert steps(*strategy, range(10), max_norm) == steps(*other, range(10), max_norm)
    for prefix in ("model/", "optimizer/"):
        assert_equal(tensors(other[0], prefix), tensors(strategy[0], prefix))


def test_gradients_are_scaled_but_the_returned_loss_is_not():
    model, scaler = RowModel(), LossScaler()
    batch = row_batch(range(4), 4)

    def run(scaler: LossScaler | None) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        loss = whole.forward_backward_one(
            model, model, batch, no_clock, precision=POLICIES["fp32"], device=CPU, scaler=scaler, gradient_scale=2.0
        )
        return loss, model.head.weight.grad.clone()

    loss, gradient = run(None)
    scaled_loss, scaled = run(scaler)
    assert torch.equal(loss, scaled_loss)
    assert torch.equal(scaled, 65536 * gradient)


def test_a_step_that_overflows_is_skipped_and_training_continues():
    strategy, factory = prepared(FP32_SCALED, RowModel())
    steps(strategy, factory, range(3))
    before = tensors(strategy)
    assert strategy.loss_scale == before["strategy/loss_scale"] == 65536
    ((loss, norm),) = steps(strategy, factory, range(3, 4), huge=3)
    # The loss (of order 1e30) is a float32; the squares of its scaled gradients are not.
    assert 1e28 < loss < 1e31
    assert norm == torch.inf
    after = tensors(strategy)
    assert_equal(
        {key: value for key, value in after.items() if not key.startswith("strategy/")},
        {key: value for key, value in before.items() if not key.startswith("strategy/")},
    )
    assert (after["strategy/loss_scale"], after["strategy/loss_scale_good_steps"]) == (32768, 0)
    assert strategy.loss_scale == 65536, "with which the step was tried"
    # What comes then is what would have come without it: another scale changes nothing, and no gradient is left over.
    reference, reference_factory = prepared(POLICIES["fp32"], RowModel())
    steps(reference, reference_factory, range(3))
    assert steps(strategy, factory, range(4, 8)) == steps(reference, reference_factory, range(4, 8))
    assert_equal(tensors(strategy, "model/"), tensors(reference, "model/"))


@pytest.mark.parametrize("max_norm", [0.3, None])
def test_only_an_optimizer_that_is_not_fused_waits_for_the_overflow_flag(max_norm: float | None):
    def waits(is_fused: bool) -> list[str]:
        strategy, factory = prepared(FP32_SCALED, RowModel())
        strategy._optimizer.defaults["fused"] = is_fused
        for group in strategy._optimizer.param_groups:
            group["fused"] = is_fused
        steps(strategy, factory, range(1), max_norm)
        strategy.forward_backward([row_batch(range(4), 4)], no_clock)
        with watched_for_waits() as seen:
            strategy.optimizer_step(max_norm)
        return seen.found

    assert waits(is_fused=True) == []
    assert "item(), float(), bool() or int() of a tensor" in waits(is_fused=False)


@pytest.mark.parametrize("is_fused", [True, False])
def test_an_overflow_in_the_first_step_does_not_change_later_steps(is_fused: bool):
    """Fused AdamW makes its states in it, and leaves moments and counts at 0; another one makes them later."""
    strategy, factory = prepared(FP32_SCALED, RowModel())
    reference, reference_factory = prepared(POLICIES["fp32"], RowModel())
    for optimizer in (strategy._optimizer, reference._optimizer):
        optimizer.defaults["fused"] = is_fused
        for group in optimizer.param_groups:
            group["fused"] = is_fused
    steps(strategy, factory, range(1), huge=0)
    assert steps(strategy, factory, range(1, 4)) == steps(reference, reference_factory, range(1, 4))
    assert_equal(tensors(strategy, "model/"), tensors(reference, "model/"))
    assert_equal(tensors(strategy, "optimizer/"), tensors(reference, "optimizer/"))


@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero2", "zero3"])
def test_strategies_of_several_processes_skip_an_overflow_without_a_wait(kind: str):
    """In one process each: tests/two_processes holds several to one."""
    open_process_group(Place(0, 0, 1), CPU)
    try:
        strategy = strategy_class(kind)(device=CPU, precision=FP32_SCALED, rank=0, world_size=1)
        factory = OptimizerFactory(Train(learning_rate=0.01, warmup_steps=2), 20)
        strategy.prepare(RowModel(), [], factory)
        steps(strategy, factory, range(2))
        before = tensors(strategy)
        strategy.forward_backward([row_batch(range(8, 12), 8), huge_batch(range(12, 16))], no_clock)
        with watched_for_waits() as seen:
            strategy.optimizer_step(0.3)
        assert seen.found == []
        after = tensors(strategy)
        assert after.pop("strategy/loss_scale") == before.pop("strategy/loss_scale") / 2
        assert (after.pop("strategy/loss_scale_good_steps"), before.pop("strategy/loss_scale_good_steps")) == (0, 2)
        assert_equal(after, before)
        strategy.close()
    finally:
        close_process_group()


def test_the_scale_is_restored_by_a_resume():
    strategy, factory = prepared(FP32_SCALED, RowModel())
    steps(strategy, factory, range(4), huge=1)
    kept = tensors(strategy)
    assert (kept["strategy/loss_scale"].item(), kept["strategy/loss_scale_good_steps"].item()) == (32768, 2)
    other, other_factory = prepared(FP32_SCALED, RowModel(seed=2))
    other.state().load(kept.__getitem__, kept)
    whole_run = steps(strategy, factory, range(4, 9), huge=6)
    assert steps(other, other_factory, range(4, 9), huge=6) == whole_run
    assert_equal(tensors(other), tensors(strategy))
    assert other.loss_scale == strategy.loss_scale == 16384


def test_a_resume_in_another_precision_ignores_or_initialises_the_scale():
    scaled, factory = prepared(FP32_SCALED, RowModel())
    steps(scaled, factory, range(2), huge=1)
    kept = tensors(scaled)
    plain, plain_factory = prepared(POLICIES["fp32"], RowModel(seed=2))
    plain.state().load(kept.__getitem__, kept)
    assert plain.loss_scale is None
    assert not tensors(plain, "strategy/")
    steps(plain, plain_factory, range(2, 3))
    kept = tensors(plain)
    back, _ = prepared(FP32_SCALED, RowModel(seed=3))
    back.state().load(kept.__getitem__, kept)
    assert tensors(back, "strategy/")["strategy/loss_scale"] == 65536
    back.state().load(lambda key: torch.ones(1), ["strategy/of_some_other_kind"])


def test_fp16_trains_a_transformer_nearly_like_fp32():
    # On a CPU it is slow, and refused there by the configuration; of the arithmetic it says the same.
    batches = TrainBatches(
        tiny_collator(16, num_classes=3),
        seed=7,
        global_batch_size=8,
        micro_batch_size=8,
        num_micro_steps=1,
        data_rank=0,
        data_world_size=1,
    )

    def losses(name: str) -> tuple[list[float], Any]:
        model = TaskModel(tiny_model(num_labels=3, dropout=0.0), "classification")
        strategy, factory = prepared(POLICIES[name], model)
        seen = []
        for step in range(6):
            factory.set_learning_rate(step)
            seen.append(float(strategy.forward_backward(batches.step(step), no_clock)))
            assert torch.isfinite(strategy.optimizer_step(1.0))
        return seen, strategy.loss_scale

    half, scale = losses("fp16")
    assert scale == 65536
    whole_precision, _ = losses("fp32")
    assert half != whole_precision
    # fp16 has 11 bits: half a unit in the last place is 2**-12 = 2.4e-4; some ten operations follow each other.
    assert half == pytest.approx(whole_precision, rel=3e-3)


def test_optional_capabilities_are_recognised_by_their_protocols():
    class Plain:
        pass

    class Scales:
        loss_scale = 8.0

        def watch_gradients(self) -> None:
            raise NotImplementedError("not in this run")

    assert loss_scale_of(Plain()) is None
    assert loss_scale_of(Scales()) == 8.0
    assert isinstance(Scales(), WatchesGradients)
    assert not isinstance(Plain(), WatchesGradients)
