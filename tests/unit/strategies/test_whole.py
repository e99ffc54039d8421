"""Steps and states of strategies that keep the whole model in each process."""

import copy

import pytest
import torch
from exact import RowModel, no_clock, row_batch
from torch import Tensor, nn

from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.precision import POLICIES
from paratune.strategies import whole
from paratune.strategies.loss_scale import UpdateStop

CPU = torch.device("cpu")


def gradients(model: RowModel, micro_batches: list[Batch], scale: float = 1.0) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    losses = [
        whole.forward_backward_one(
            model, model, batch, no_clock, precision=POLICIES["fp64"], device=CPU, gradient_scale=scale
        )
        for batch in micro_batches
    ]
    return float(torch.stack(losses).sum()), {name: value.grad.clone() for name, value in model.named_parameters()}


def assert_same(got: tuple[float, dict[str, Tensor]], want: tuple[float, dict[str, Tensor]]) -> None:
    # 1e-12: float64 holds 16 digits, and sums of a dozen terms lose one or two of them.
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    for name, gradient in want[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("num_outputs", [3, 1], ids=["classification", "regression"])
def test_the_loss_is_the_mean_over_the_whole_step_however_it_is_cut(num_outputs: int):
    model = RowModel(num_outputs).double()

    def cut(*sizes: int) -> list[Batch]:
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        return [
            row_batch(range(start, start + size), 11, num_outputs=num_outputs)
            for start, size in zip(starts, sizes, strict=True)
        ]

    once = gradients(model, cut(11))
    batch = row_batch(range(11), 11, num_outputs=num_outputs)
    outputs = model(batch)
    mean = (
        nn.functional.mse_loss(outputs[:, 0], batch.labels.double())
        if num_outputs == 1
        else nn.functional.cross_entropy(outputs, batch.labels)
    )
    assert once[0] == pytest.approx(mean.item(), rel=1e-12)
    assert_same(gradients(model, cut(3, 3, 3, 2)), once)  # the last micro-batch is short
    assert_same(gradients(model, cut(1, 10)), once)


def test_a_filler_batch_adds_nothing():
    model = RowModel().double()
    batches = [row_batch(range(5), 5)]
    assert_same(gradients(model, [*batches, row_batch([], 5, filler=True)]), gradients(model, batches))


def test_gradient_scale_scales_gradients_and_not_the_loss():
    model = RowModel().double()
    loss, plain = gradients(model, [row_batch(range(5), 5)])
    scaled_loss, scaled = gradients(model, [row_batch(range(5), 5)], scale=4.0)
    assert scaled_loss == loss
    for name, gradient in plain.items():
        assert torch.equal(scaled[name], 4 * gradient)


@pytest.mark.parametrize("max_grad_norm", [0.05, 1e6, None])
def test_clipping_equals_torchs(max_grad_norm: float | None):
    ours = RowModel()
    ours.head.bias.requires_grad_(False)
    gradients_of = [row_batch(range(8), 8)]
    ours.loss_sum(ours(gradients_of[0]), gradients_of[0]).backward()
    theirs = copy.deepcopy(ours)
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        expected.grad = None if parameter.grad is None else parameter.grad.clone()
    sgd = torch.optim.SGD(ours.parameters(), lr=0.5)
    norm = whole.clip_and_step(sgd, ours.parameters(), max_grad_norm, UpdateStop())
    infinite = float("inf") if max_grad_norm is None else max_grad_norm
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), infinite)
    torch.optim.SGD(theirs.parameters(), lr=0.5).step()
    assert torch.equal(norm, expected)
    assert norm > 0.05
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=0)
    assert all(parameter.grad is None for parameter in ours.parameters())


@pytest.mark.parametrize("dtypes", [[], [torch.float32] * 3, [torch.float64], [torch.float32, torch.float64]], ids=str)
def test_norms_equal_torchs(dtypes: list[torch.dtype]):
    gradients = [torch.randn(5, number + 1, dtype=dtype) for number, dtype in enumerate(dtypes)]
    got, expected = whole._total_norm(gradients), nn.utils.get_total_norm(gradients)
    assert torch.equal(got, expected)
    assert got.dtype == expected.dtype


@pytest.mark.parametrize("max_grad_norm", [0.05, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fused_optimizer_clips_while_it_updates(max_grad_norm: float, dtype: torch.dtype):
    """Three steps against `clip_grad_norm_` and an AdamW that is not fused."""
    ours, theirs = RowModel().to(dtype), RowModel().to(dtype)
    fused = torch.optim.AdamW(ours.parameters(), lr=0.01, fused=True)
    plain = torch.optim.AdamW(theirs.parameters(), lr=0.01, fused=False, foreach=False)
    for step in range(3):
        batch = row_batch(range(8 * step, 8 * step + 8), 8)
        for model in (ours, theirs):
            model.loss_sum(model(batch), batch).backward()
        norm = whole.clip_and_step(fused, ours.parameters(), max_grad_norm, UpdateStop())
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        plain.step()
        plain.zero_grad()
        torch.testing.assert_close(norm, expected)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=tolerance)
    assert not hasattr(fused, "grad_scale")


def trained(model: RowModel, num_steps: int = 3) -> torch.optim.Optimizer:
    optimizer = OptimizerFactory(Train(learning_rate=0.01), 10)(model.named_parameters())
    go_on(model, optimizer, range(num_steps))
    return optimizer


def go_on(model: RowModel, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        batch = row_batch(range(4 * step, 4 * step + 4), 4)
        model.loss_sum(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.seen += 1


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_states_are_loaded_bit_for_bit(tied: bool, dtype: torch.dtype):
    first = RowModel(tied=tied).to(dtype)
    optimizer = trained(first)
    kept = {key: value.clone() for key, value in whole.WholeState(first, optimizer, rank=0).tensors()}
    other = RowModel(tied=tied, seed=2).to(dtype)
    optimizer_2 = OptimizerFactory(Train(learning_rate=0.01), 10)(other.named_parameters())
    state = whole.WholeState(other, optimizer_2, rank=0)
    state.load(kept.__getitem__, kept)
    back = dict(state.tensors())
    assert list(back) == list(kept)
    assert all(torch.equal(back[key], value) and back[key].dtype == value.dtype for key, value in kept.items())
    # What comes after is the same too: nothing that matters is outside of the states.
    go_on(first, optimizer, range(3, 6))
    go_on(other, optimizer_2, range(3, 6))
    for (name, parameter), loaded in zip(first.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, loaded), name


def test_keys_name_each_persistent_tensor_once():
    model = RowModel(tied=True)
    keys = [key for key, _ in whole.WholeState(model, trained(model), rank=0).tensors()]
    assert len(keys) == len(set(keys))
    assert [key for key in keys if "hidden.weight" in key] == [
        "model/hidden.weight",
        "optimizer/hidden.weight/step",
        "optimizer/hidden.weight/exp_avg",
        "optimizer/hidden.weight/exp_avg_sq",
    ]
    assert not [key for key in keys if "again" in key or "scratch" in key]
    assert "model/seen" in keys
    assert all(key.startswith("model/") for key in keys[: len(list(model.named_parameters())) + 1])


def test_a_tied_weight_stays_tied():
    model = RowModel(tied=True)
    state = whole.WholeState(model, trained(model), rank=0)
    state.load(lambda key: torch.full((8, 8), 3.0), ["model/hidden.weight"])
    assert model.again.weight is model.hidden.weight
    assert float(model.again.weight[0, 0].detach()) == 3.0


def test_a_prefix_selects_keys_and_other_ranks_get_none():
    model = RowModel()
    optimizer = trained(model)
    weights = [key for key, _ in whole.WholeState(model, optimizer, rank=0).tensors("model/")]
    assert sorted(weights) == sorted(f"model/{name}" for name in model.state_dict())
    first = list(whole.WholeState(model, optimizer, rank=0).tensors())
    second = list(whole.WholeState(model, optimizer, rank=1).tensors())
    assert [key for key, _ in second] == [key for key, _ in first]
    assert all(value is None for _, value in second)
    assert all(isinstance(value, Tensor) for _, value in first)


def test_loading_some_keys_does_not_change_the_others():
    model = RowModel()
    optimizer = trained(model)
    before = {key: value.clone() for key, value in whole.WholeState(model, optimizer, rank=0).tensors()}
    state = whole.WholeState(model, optimizer, rank=0)
    state.load(lambda key: torch.zeros_like(before[key]), ["model/head.bias"])
    after = dict(state.tensors())
    assert [key for key in before if not torch.equal(before[key], after[key])] == ["model/head.bias"]


def test_states_of_another_precision_are_converted():
    kept = dict(whole.WholeState(wide := RowModel().double(), trained(wide), rank=0).tensors())
    model = RowModel(seed=2)
    optimizer = OptimizerFactory(Train(learning_rate=0.01), 10)(model.named_parameters())
    state = whole.WholeState(model, optimizer, rank=0)
    state.load(kept.__getitem__, kept)
    assert {value.dtype for _, value in state.tensors()} == {torch.float32}
    go_on(model, optimizer, range(3, 4))


@pytest.mark.parametrize(
    ("key", "error", "expected"),
    [
        ("model/nothing", KeyError, "nothing"),
        ("optimizer/nothing/exp_avg", KeyError, "nothing"),
        ("scheduler/step", KeyError, "scheduler/step"),
        ("model/head.bias", ValueError, r"model/head.bias has shape \(2, 2\), the model \(3,\)"),
        ("optimizer/head.bias/exp_avg", ValueError, r"has shape \(2, 2\), the parameter \(3,\)"),
    ],
)
def test_states_with_a_wrong_shape_or_key_are_refused(key: str, error: type[Exception], expected: str):
    model = RowModel()
    with pytest.raises(error, match=expected):
        whole.WholeState(model, trained(model), rank=0).load(lambda _: torch.zeros(2, 2), [key])
