"""Which steps are sampled, and what their events say; tests/two_processes holds that all strategies see the same."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exact import RowModel, no_clock, row_batch
from looping import Bench, single

from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.engine.noise import NoiseMeter, noise_event
from paratune.engine.optim import OptimizerFactory
from paratune.records.efficiency import noise_summary
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.single import SingleStrategy


def steps(num_steps: int) -> list[list[Batch]]:
    """Return steps of 4 samples in micro-batches of 1 and 3."""
    return [[row_batch([4 * at], 4), row_batch(range(4 * at + 1, 4 * at + 4), 4)] for at in range(num_steps)]


def by_hand(micro_batches: list[Batch]) -> dict[str, float]:
    """Return the estimates from gradients that autograd gives without hooks, of the untrained model."""
    model = RowModel()
    parts = []
    for batch in micro_batches:
        loss = model.loss_sum(model(batch), batch) / batch.loss_denominator
        parts.append(
            torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])
        )
    whole, own = float(sum(parts).square().sum()), float(sum(part.square().sum() for part in parts))
    s = (1 / 4) ** 2 + (3 / 4) ** 2
    return {"trace": 4 * (own - s * whole) / (1 - s), "squared_norm": (whole - own) / (1 - s)}


def test_every_second_step_is_sampled_and_nothing_else_changes(tmp_path: Path):
    plain, sampled = (
        Bench(tmp_path / name, num_steps=5, log_every=3, batches=steps(5), noise_scale_every=every)
        for name, every in (("plain", None), ("sampled", 2))
    )
    for bench in (plain, sampled):
        bench.folder.mkdir()
        bench.run()
    assert ["noise_scale" in step for step in sampled.steps()] == [False, True, False, True, False]
    assert not any("noise_scale" in step for step in plain.steps())
    for name in ("loss", "grad_norm"):
        assert [step[name] for step in sampled.steps()] == [step[name] for step in plain.steps()]


def test_an_event_has_the_estimates_of_its_step(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=1, batches=steps(1), noise_scale_every=1)
    bench.run()
    (step,) = bench.steps()
    assert step["noise_scale"].pop("preconditioned") is None  # AdamW has no second moments yet
    assert step["noise_scale"] == pytest.approx(by_hand(steps(1)[0]), rel=1e-4)


def preconditioned_by_hand(batches: list[list[Batch]]) -> dict[str, float]:
    """Return the estimates of the last step from the gradients of single samples, with Adam's recursion written out.

    For micro-batches of one sample the trace is the sample covariance: sum |P (x_j - mean)|^2 / (B - 1).
    """
    model, train = RowModel(), Train(learning_rate=0.01, schedule="constant")
    factory = OptimizerFactory(train, len(batches))
    optimizer = factory(model.named_parameters())
    parameters = list(model.parameters())
    is_embedding = torch.cat([torch.full((p.numel(),), p is model.embed.weight) for p in parameters])
    moments = torch.zeros(len(is_embedding), dtype=torch.float64)
    for at, step in enumerate(batches):
        samples = []
        for batch in step:
            gradients = torch.autograd.grad(model.loss_sum(model(batch), batch), parameters)
            samples.append(torch.cat([gradient.flatten() for gradient in gradients]).double())
        mean = sum(samples) / len(samples)
        if at == len(batches) - 1:
            p = 1 / ((moments / (1 - train.betas[1] ** at)).sqrt() + train.eps)
            p[is_embedding | (moments == 0)] = 0
            trace = float(sum((p * (sample - mean)).square().sum() for sample in samples)) / (len(samples) - 1)
            return {"trace": trace, "squared_norm": float((p * mean).square().sum()) - trace / len(samples)}
        mean /= max(1.0, float(mean.norm()) + 1e-6)  # the loop clips gradients to 1
        moments = train.betas[1] * moments + (1 - train.betas[1]) * mean.square()
        for parameter, gradient in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter).float()
        factory.set_learning_rate(at)
        optimizer.step()
    raise AssertionError("no steps")


def test_the_preconditioned_estimate_is_that_of_the_gradients_of_single_samples(tmp_path: Path):
    batches = [[row_batch([4 * at + row], 4) for row in range(4)] for at in range(6)]
    bench = Bench(tmp_path, num_steps=6, batches=batches, noise_scale_every=1)
    bench.train = Train(learning_rate=0.01, schedule="constant")
    bench.run()
    events = [step["noise_scale"]["preconditioned"] for step in bench.steps()]
    assert events[:5] == [None] * 5  # fewer than 5 updates
    assert events[5] == pytest.approx(preconditioned_by_hand(batches), rel=1e-3)


def test_a_step_with_one_micro_batch_gives_no_estimate(tmp_path: Path):
    bench = Bench(tmp_path, num_steps=1, batches=[[row_batch(range(4), 4), row_batch([], 4, filler=True)]])
    bench.noise_scale_every = 1
    bench.run()
    (step,) = bench.steps()
    assert step["noise_scale"] is None


class Quadratic(torch.nn.Module):
    """0.5 (theta - x)^2 with the target of a row as x: the gradient of a sample is theta - x."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor([1.0]))

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.theta.expand(len(batch.index), 1)

    def loss_sum(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return 0.5 * (outputs[:, 0] - batch.labels).square().sum()


def test_the_loop_measures_the_known_noise_of_a_quadratic(tmp_path: Path):
    random = torch.Generator().manual_seed(5)
    # x ~ N(0, 4), theta = 1: G = 1, tr(Sigma) = 4. Micro-batches of 2 and 6.
    sizes = [[row_batch(range(2), 8, num_outputs=1), row_batch(range(6), 8, num_outputs=1)]] * 1000
    batches = [
        [replace(batch, labels=2 * torch.randn(batch.num_samples, generator=random)) for batch in step]
        for step in sizes
    ]
    bench = Bench(tmp_path, num_steps=1000, model=Quadratic(), batches=batches, log_every=100, noise_scale_every=1)
    bench.train = Train(learning_rate=1e-12)
    bench.run()
    noise = noise_summary(bench.steps(), global_batch_size=8, reason=None)
    # One degree of freedom a step: the trace is known to sqrt(2 / 1000) = 4.5%. |G|^2 is the product of both means, of
    # variances 2 and 2/3: to sqrt((2 + 2/3 + 4/3) / 1000) = 6.3%. So their ratio to at most 11% of 4.
    assert noise["trace"] == pytest.approx(4.0, rel=0.14)
    assert noise["squared_norm"] == pytest.approx(1.0, rel=0.2)
    assert noise["value"] == pytest.approx(4.0, abs=3 * noise["standard_error"])
    assert 0.2 < noise["standard_error"] < 0.8


def test_hooks_are_removed_after_a_step_even_if_it_fails():
    strategy = prepared()
    meter = NoiseMeter(strategy, 1)
    with pytest.raises(ZeroDivisionError), meter.watching(1, []):
        raise ZeroDivisionError
    assert meter.take() is None
    parameters = list(strategy._model.parameters())
    assert not any(parameter._backward_hooks for parameter in parameters)
    with meter.watching(1, steps(1)[0]):
        strategy.forward_backward(steps(1)[0], no_clock)
    assert not any(parameter._backward_hooks for parameter in parameters)
    assert meter.take() is not None
    assert meter.take() is None


def test_ranks_of_one_replica_count_their_samples_once():
    strategy = prepared()
    strategy.layout = type(strategy.layout)(rank=1, world_size=4, data_rank=0, data_world_size=2)
    meter = NoiseMeter(strategy, 1)
    with meter.watching(1, steps(1)[0]):
        strategy.forward_backward(steps(1)[0], no_clock)
    _, weights, samples, *_ = meter.take().parts()
    assert (weights, samples) == (0.625 / 2, 4 / 2)


def test_reasons_why_the_noise_scale_is_not_measured():
    strategy = prepared()
    assert NoiseMeter(strategy, 5).reason is None
    assert NoiseMeter(strategy, None).reason == "measure.noise_scale_every is null"
    assert NoiseMeter(strategy, 5, "one micro-batch").reason == "one micro-batch"

    class Refuses:
        def watch_gradients(self) -> Any:
            raise NotImplementedError("two weights are shared")

    assert NoiseMeter(Refuses(), 5).reason == "two weights are shared"

    class Bare:
        traits = SingleStrategy.traits

    assert "has no watch_gradients" in NoiseMeter(Bare(), 5).reason
    meter = NoiseMeter(Bare(), 5)
    with meter.watching(5, []):
        pass
    assert meter.take() is None


def test_a_skipped_step_gives_no_estimate():
    unknown = [math.nan, math.nan]
    assert noise_event([3.5, 0.5, 4.0, *unknown], math.inf) is None
    assert noise_event([math.inf, 0.5, 4.0, *unknown], 2.0) is None
    estimates = pytest.approx({"trace": 8.0, "squared_norm": 3.0})
    event = noise_event([3.5, 0.5, 4.0, *unknown], math.sqrt(5))
    assert event.pop("preconditioned") is None
    assert event == estimates
    # The same arithmetic for P g as for g: sum |P g_i|^2 and |P g|^2.
    assert noise_event([1.0, 0.5, 4.0, 3.5, 5.0], 1.0)["preconditioned"] == estimates


def test_the_norm_of_a_16_bit_gradient_is_not_infinite():
    # Two gradients of 50,000: their norm, 70,711, is more than the largest float16, 65,504.
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float16))
    with GradientWatch([weight]) as watch:
        (50_000 * weight).sum().backward()
    assert float(watch.squared_norm()) == pytest.approx(2 * 50_000**2, rel=1e-3)


def test_why_a_run_has_no_preconditioned_estimate():
    assert NoiseMeter(prepared(), 5).why_not_preconditioned is None
    assert NoiseMeter(prepared("adafactor"), 5).why_not_preconditioned.code == "other_optimizer"
    assert GradientWatch([]).why_not_preconditioned.code == "sharded_states"


def prepared(optimizer: str = "adamw") -> SingleStrategy:
    strategy = single()
    strategy.prepare(RowModel(), [], OptimizerFactory(Train(optimizer=optimizer), 4))
    return strategy
