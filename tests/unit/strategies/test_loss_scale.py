"""The loss scale: when it changes, what a step without it would have done, and that it survives a checkpoint."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from exact import RowModel, no_clock, row_batch
from tiny import tiny_model
from tiny_data import tiny_collator
from torch import Tensor, nn

from paratune.config.sections import Train
from paratune.data.loader import TrainBatches
from paratune.engine.optim import OptimizerFactory
from paratune.errors import NotFiniteError
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES, Precision
from paratune.strategies import loss_scale, whole
from paratune.strategies.loss_scale import LossScaler, make_scaler
from paratune.strategies.single import SingleStrategy

CPU = torch.device("cpu")
GOOD, OVERFLOW = torch.tensor(1.5), torch.tensor(torch.inf)
FP32_SCALED = replace(POLICIES["fp32"], scales_loss=True)
"""What fp16 does around a forward pass, without fp16 in it: so that scaling alone can be looked at."""


def test_the_constants_are_those_of_pytorchs_scaler():
    theirs = torch.amp.GradScaler("cpu")
    assert theirs.get_scale() == loss_scale.INITIAL_SCALE == 65536
    assert theirs.get_growth_factor() == loss_scale.GROWTH_FACTOR
    assert theirs.get_backoff_factor() == loss_scale.BACKOFF_FACTOR
    assert theirs.get_growth_interval() == loss_scale.GROWTH_INTERVAL


@pytest.mark.parametrize("seed", range(3))
def test_the_scale_goes_as_pytorchs_own(monkeypatch: pytest.MonkeyPatch, seed: int):
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 4)
    theirs = torch.amp.GradScaler("cpu", growth_interval=4)
    ours = LossScaler(speaks=False)
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
        assert ours.update(norm) == (not overflows)
        assert ours.scale == theirs.get_scale()
        seen.add(ours.scale)
    assert len(seen) > 3


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_an_overflow_halves_the_scale_and_begins_the_count_anew(value: float):
    scaler = LossScaler(speaks=False)
    for _ in range(1999):
        assert scaler.update(GOOD)
    assert not scaler.update(torch.tensor(value))
    assert (scaler.last_scale, scaler.scale) == (65536, 32768)
    for _ in range(1999):
        scaler.update(GOOD)
    assert scaler.scale == 32768
    scaler.update(GOOD)  # the 2000th without an overflow
    assert (scaler.last_scale, scaler.scale) == (32768, 65536)


def test_below_a_scale_of_1_nothing_is_left_to_try():
    scaler = LossScaler(speaks=False)
    for _ in range(16):  # 2**16 to 2**0
        assert not scaler.update(OVERFLOW)
    assert scaler.scale == 1
    with pytest.raises(NotFiniteError, match=r"not finite even with a loss scale of 1.* precision: bf16 or fp32"):
        scaler.update(OVERFLOW)


def test_the_first_overflow_is_logged_once_and_by_one_rank(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    for rank in range(2):
        scaler = make_scaler(POLICIES["fp16"], rank=rank)
        assert scaler is not None
        scaler.update(OVERFLOW)
        scaler.update(OVERFLOW)
    (message,) = caplog.messages
    assert "with a loss scale of 65536: this step is skipped, the next one takes 32768" in message


def test_only_fp16_has_one():
    assert [name for name, policy in POLICIES.items() if make_scaler(policy, rank=0)] == ["fp16"]


def prepared(precision: Precision, model: nn.Module, num_steps: int = 20) -> tuple[SingleStrategy, OptimizerFactory]:
    strategy = SingleStrategy(device=CPU, precision=precision, rank=0, world_size=1)
    factory = OptimizerFactory(Train(learning_rate=0.01, warmup_steps=2), num_steps)
    strategy.prepare(model, [], factory)
    return strategy, factory


def steps(
    strategy: SingleStrategy, factory: OptimizerFactory, which: range, max_norm: float | None = 0.3, huge: int = -1
) -> list[tuple[float, float]]:
    """Take steps of two micro-batches; the gradients of step `huge` are larger than their dtype holds."""
    result = []
    for step in which:
        batches = [row_batch(range(8 * step + 4 * part, 8 * step + 4 * part + 4), 8) for part in range(2)]
        if step == huge:
            batches[1] = replace(batches[1], row_weight=torch.full((4,), 1e30))
        loss = strategy.forward_backward(batches, no_clock)
        factory.set_learning_rate(step)
        result.append((float(loss), float(strategy.optimizer_step(max_norm))))
    return result


def tensors(strategy: SingleStrategy, prefix: str = "") -> dict[str, Tensor]:
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
    one = prepared(plain, RowModel().to(dtype))
    other = prepared(replace(plain, scales_loss=True), RowModel().to(dtype))
    assert steps(*one, range(10), max_norm) == steps(*other, range(10), max_norm)
    for prefix in ("model/", "optimizer/"):
        assert_equal(tensors(other[0], prefix), tensors(one[0], prefix))


def test_gradients_come_scaled_and_the_loss_does_not():
    model, scaler = RowModel(), LossScaler(speaks=False)
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


def test_a_step_that_overflows_is_left_out_and_the_next_ones_go_on():
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


def test_the_scale_goes_on_after_a_resume():
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


def test_a_run_in_another_precision_leaves_it_and_one_that_comes_from_there_begins_with_it():
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


def test_fp16_itself_trains_a_transformer_and_nearly_as_fp32_does():
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
