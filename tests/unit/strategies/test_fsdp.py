"""The arguments of FSDP2; tests/two_processes checks its results. Offload needs a GPU: only its option is checked."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from exact import RowModel, no_clock, row_batch
from raised import raises_code
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from paratune.base.piece import Piece
from paratune.config.sections import Train
from paratune.config.traits import TRAITS, strategy_traits
from paratune.engine.optim import OptimizerFactory
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies import fsdp
from paratune.strategies.process_group import close_process_group, open_process_group

CPU = torch.device("cpu")
KINDS = {"zero2": fsdp.ZERO2, "zero3": fsdp.ZERO3, "hsdp": fsdp.HSDP}


@pytest.fixture
def fully_shard_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What `fully_shard` is called with."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(fsdp, "fully_shard", lambda module, **options: calls.append((module, options)))
    monkeypatch.setattr(fsdp, "init_device_mesh", lambda kind, shape, **options: (kind, shape))
    return calls


def prepare(kind: str, model: torch.nn.Module, precision: str = "fp32", **options: Any) -> Any:
    if kind == "hsdp":
        options["shard_size"] = 2
    strategy = KINDS[kind](device=CPU, precision=POLICIES[precision], rank=0, world_size=4, **options)
    strategy.prepare(model, [model.hidden], OptimizerFactory(Train(), 10))
    return strategy


def test_a_pytorch_that_cannot_shard_a_quantized_base_is_named(
    fully_shard_calls: list[Any], monkeypatch: pytest.MonkeyPatch
):
    def fail(module: Any, **options: Any) -> None:  # as PyTorch 2.11
        raise RuntimeError("only Tensors of floating point dtype can require gradients")

    monkeypatch.setattr(fsdp, "fully_shard", fail)
    model = RowModel()
    with pytest.raises(RuntimeError):
        prepare("zero3", model)
    codes = torch.zeros(4, 2, dtype=torch.uint8)
    model.hidden.register_parameter("codes", torch.nn.Parameter(codes, requires_grad=False))
    with raises_code("strategy.excluded", torch.__version__, key="model.quantize_base"):
        prepare("zero3", model)


@pytest.mark.parametrize("kind", KINDS)
def test_offload_applies_to_every_unit_and_keeps_the_model_on_the_host(
    fully_shard_calls: list[Any], kind: str, monkeypatch: pytest.MonkeyPatch
):
    def to(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        raise AssertionError("moved as a whole")

    model = RowModel().eval()
    monkeypatch.setattr(RowModel, "to", to)
    prepare(kind, model, cpu_offload=True)
    assert [module for module, _ in fully_shard_calls] == [model.hidden, model]
    assert all(isinstance(options["offload_policy"], CPUOffloadPolicy) for _, options in fully_shard_calls)
    assert model.training
    assert model.dropout.training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("precision", "reduced"),
    [("fp32", torch.float32), ("bf16", torch.float32), ("fp16", torch.float32), ("fp64", torch.float64)],
)
def test_without_param_dtype_fsdp_reduces_in_the_policys_dtype_and_casts_nothing(
    fully_shard_calls: list[Any], kind: str, precision: str, reduced: torch.dtype
):
    prepare(kind, RowModel().to(POLICIES[precision].param_dtype), precision)
    for _, options in fully_shard_calls:
        assert "offload_policy" not in options
        assert options["mp_policy"] == MixedPrecisionPolicy(param_dtype=None, reduce_dtype=reduced)
        assert options["reshard_after_forward"] == (kind != "zero2")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_16_bit_weights_are_gathered_in_16_bits_and_reduced_in_fp32(
    fully_shard_calls: list[Any], kind: str, name: str, dtype: torch.dtype
):
    strategy = prepare(kind, RowModel(), name, param_dtype=name)
    for _, options in fully_shard_calls:
        assert options["mp_policy"] == MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    assert strategy._precision.autocast_dtype is None
    assert (strategy.loss_scale is None) == (name == "bf16")


@pytest.mark.parametrize("kind", KINDS)
def test_traits_with_offload_name_the_host(kind: str):
    plain, offloaded = strategy_traits(kind, {"cpu_offload": False}), strategy_traits(kind, {"cpu_offload": True})
    assert plain == TRAITS[kind]
    assert plain.states_on == "device"
    assert offloaded.states_on == "cpu"
    assert offloaded.phases["get_batch"] == plain.phases["get_batch"]
    assert offloaded.phases["optimizer"] == f"{plain.phases['optimizer']}, all on the host"
    assert all("host" in offloaded.phases[phase] for phase in ("forward", "backward", "optimizer"))
    assert offloaded.shards == plain.shards
    assert strategy_traits("hsdp", {"cpu_offload": True, "shard_size": 4}).world_size_multiple == 4


def reading(kept: dict[str, torch.Tensor], factor: float) -> Any:
    """Return a function that reads tensors, or pieces of them, multiplied by a number."""

    def read(key: str, piece: Piece | None = None) -> torch.Tensor:
        value = factor * kept[key]
        return value if piece is None else piece.cut_from(value, key)

    return read


@pytest.mark.parametrize("kind", KINDS)
def test_reducing_each_micro_step_is_a_trait(kind: str):
    changed = strategy_traits(kind, {"reduce_each_micro_step": True})
    assert changed == replace(TRAITS[kind], reduces_each_micro_step=True)
    assert not TRAITS[kind].reduces_each_micro_step


@pytest.fixture
def alone() -> Iterator[None]:
    open_process_group(Place(0, 0, 1), CPU)
    yield
    close_process_group()


def test_loaded_states_are_on_the_device_of_their_parameters(alone: None):
    strategy = fsdp.ZERO3(device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)
    strategy.prepare(RowModel(), [], OptimizerFactory(Train(learning_rate=0.1), 10))
    strategy.forward_backward([row_batch(range(4), 4)], no_clock)
    assert strategy.optimizer_step(1.0).device == CPU
    kept = {key: value.clone() for key, value in strategy.state().tensors() if value is not None}
    strategy.state().load(reading(kept, 2.0), kept)
    after = dict(strategy.state().tensors())
    assert all(torch.equal(after[key], 2 * value) for key, value in kept.items())
    parameter = next(iter(strategy._model.parameters()))
    assert isinstance(parameter, DTensor)
    moment = strategy._optimizer.state[parameter]["exp_avg"]
    assert moment.device == parameter.device


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_states_are_whole_after_an_evaluation(alone: None, kind: str):
    # ZeRO-2 keeps weights gathered after a forward pass: checkpoints come after evaluations.
    strategy = KINDS[kind](device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)
    model = RowModel()
    strategy.prepare(model, [model.hidden], OptimizerFactory(Train(learning_rate=0.1), 10))
    strategy.forward_backward([row_batch(range(4), 4)], no_clock)
    strategy.optimizer_step(1.0)
    before = {key: value.clone() for key, value in strategy.state().tensors()}
    outputs = strategy.predict(row_batch(range(4), 4))
    after = dict(strategy.state().tensors())
    assert sorted(after) == sorted(before)
    assert any(key.startswith("optimizer/") for key in after)
    assert all(torch.equal(after[key], value) for key, value in before.items())
    # Weights that are loaded between two evaluations, such as the best ones, are used by the second one.
    strategy.state().load(reading(before, 0.0), [key for key in before if key.startswith("model/")])
    assert outputs.abs().sum() > 0
    assert strategy.predict(row_batch(range(4), 4)).abs().sum() == 0


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_zero2_gathers_weights_once_a_step(alone: None, kind: str, monkeypatch: pytest.MonkeyPatch):
    strategy = KINDS[kind](device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)
    model = RowModel()
    strategy.prepare(model, [model.hidden], OptimizerFactory(Train(), 10))
    inner, is_sharded = strategy._forward_backward_one, []

    def watched(*args: Any) -> torch.Tensor:
        is_sharded.append(isinstance(model.hidden.weight, DTensor))
        return inner(*args)

    monkeypatch.setattr(strategy, "_forward_backward_one", watched)
    strategy.forward_backward([row_batch([row], 3) for row in range(3)], no_clock)
    # Before each micro-batch.
    assert is_sharded == ([True, False, False] if kind == "zero2" else [True, True, True])
    assert isinstance(model.hidden.weight, DTensor), "for the optimizer"
