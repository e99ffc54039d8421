"""What is DeepSpeed's own; tests/two_processes holds its stages to one process."""

import importlib.util
import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from raised import raises_code
from tiny import tiny_config
from tiny_data import tiny_collator
from transformers import BertForSequenceClassification

from paratune.config.sections import Train
from paratune.config.traits import strategy_traits
from paratune.data.loader import TrainBatches
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import TaskModel, find_blocks
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies import deepspeed_setup as setup
from paratune.strategies.deepspeed import DeepSpeedStrategy
from paratune.strategies.deepspeed_scale import EngineScale
from paratune.strategies.process_group import close_process_group, open_process_group
from paratune.strategies.single import SingleStrategy

CPU = torch.device("cpu")
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="the extra deepspeed is not installed"
)


def options(**values: Any) -> setup.Options:
    return setup.Options(**{"stage": 2, **values})


def batches() -> TrainBatches:
    return TrainBatches(
        tiny_collator(24, num_classes=3),
        seed=0,
        global_batch_size=8,
        micro_batch_size=4,
        num_micro_steps=2,
        data_rank=0,
        data_world_size=1,
    )


@contextmanager
def prepared(
    kind: type, precision: str = "fp32", num_layers: int = 2, *, frozen: bool = False, **values: Any
) -> Iterator[tuple[Any, TaskModel]]:
    """A strategy of one process with a small model."""
    open_process_group(Place(0, 0, 1), CPU)
    strategy = kind(device=CPU, precision=POLICIES[precision], rank=0, world_size=1, **values)
    try:
        config = tiny_config(3, dropout=0.0)
        config.num_hidden_layers = num_layers
        torch.manual_seed(0)
        model = TaskModel(BertForSequenceClassification(config), "classification")
        model.to(POLICIES[precision].param_dtype)
        model.hf.bert.requires_grad_(not frozen)
        strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(learning_rate=1e-3), 10))
        yield strategy, model
        strategy.close()
    finally:
        close_process_group()


def trained(strategy: Any, num_steps: int = 3) -> list[float]:
    losses = []
    for step in range(num_steps):
        losses.append(float(strategy.forward_backward(batches().step(step), lambda phase: nullcontext())))
        strategy.optimizer_step(1.0)
    return losses


def test_without_deepspeed_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with raises_code("dependency.missing", "paratune[deepspeed]"):
        DeepSpeedStrategy(device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)


def test_bucket_sizes_are_counted_in_elements():
    zero = setup.engine_config(options(bucket_cap_mb=2.0), [], torch.float32)["zero_optimization"]
    # 2 MiB of 4-byte numbers.
    assert zero == {"stage": 2, "reduce_bucket_size": 524288, "allgather_bucket_size": 524288}
    zero = setup.engine_config(options(bucket_cap_mb=2.0), [], torch.float64)["zero_optimization"]
    assert zero["reduce_bucket_size"] == 262144
    assert setup.engine_config(options(stage=0), [], torch.float32)["zero_optimization"] == {"stage": 0}


def test_stage_3_keeps_two_blocks_gathered():
    blocks = [torch.nn.Linear(10, 10), torch.nn.Linear(10, 20)]
    config = setup.engine_config(options(stage=3, param_persistence_threshold=7), blocks, torch.float32)
    zero = config["zero_optimization"]
    # The larger block has 10 * 20 + 20 weights.
    assert (zero["stage3_max_live_parameters"], zero["stage3_max_reuse_distance"]) == (440, 440)
    assert (zero["stage3_prefetch_bucket_size"], zero["stage3_param_persistence_threshold"]) == (220, 7)


BLOCK = torch.nn.Linear(10, 20)
OWN = {
    # Source: DeepSpeed 0.19.8, runtime/zero/config.py; docs/_pages/config-json.md has the same.
    1: {"stage": 1, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000},
    2: {"stage": 2, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000},
    3: {
        "stage": 3,
        "reduce_bucket_size": 500_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_param_persistence_threshold": 100_000,
    },
}


@pytest.mark.parametrize("stage", OWN)
def test_the_16_bit_mode_has_other_limits(stage: int):
    config = setup.engine_config(options(stage=stage, param_dtype="fp16"), [BLOCK], torch.float32)
    assert config["zero_optimization"] == OWN[stage]
    assert config["fp16"] == {"enabled": True}, "its defaults: a dynamic scale from 2**16, hysteresis 2, window 1000"
    assert "bf16" not in config
    assert "fp16" not in setup.engine_config(options(stage=stage), [BLOCK], torch.float32)


def test_limits_can_be_set_by_options():
    given = {"reduce_bucket_size": 7, "prefetch_bucket_size": 5, "max_live_parameters": 3, "max_reuse_distance": 2}
    for name in ("fp32", "bf16"):
        zero = setup.engine_config(options(stage=3, param_dtype=name, **given), [BLOCK], torch.float32)[
            "zero_optimization"
        ]
        assert zero["reduce_bucket_size"] == 7
        assert [zero[f"stage3_{key}"] for key in list(given)[1:]] == [5, 3, 2]
        config = setup.engine_config(options(stage=3, param_dtype=name, max_live_parameters=3), [BLOCK], torch.float32)
        assert config["zero_optimization"]["stage3_max_reuse_distance"] == 3
    zero = setup.engine_config(options(param_dtype="bf16", bucket_cap_mb=2.0), [BLOCK], torch.float32)[
        "zero_optimization"
    ]
    # 2 MiB of 2-byte numbers.
    assert zero == {"stage": 2, "reduce_bucket_size": 1048576, "allgather_bucket_size": 1048576}


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeeds_loss_scale_is_saved_and_loaded(stage: int, monkeypatch: pytest.MonkeyPatch):
    setup.import_deepspeed(CPU)
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    # Processors compute in fp16, slowly; DeepSpeed asks for units for it.
    monkeypatch.setattr(CPU_Accelerator, "is_fp16_supported", lambda self: True)
    monkeypatch.setattr(CPU_Accelerator, "supported_dtypes", lambda self: [torch.float32, torch.float16])
    nothing = lambda phase: nullcontext()  # noqa: E731
    with prepared(DeepSpeedStrategy, "fp16", stage=stage, param_dtype="fp16") as (strategy, _):
        scales, norms = [], []
        for step in range(4):
            micro_batches = batches().step(step)
            if step < 3:  # more than fp16 holds
                micro_batches = [replace(batch, row_weight=batch.row_weight * 1e30) for batch in micro_batches]
            strategy.forward_backward(micro_batches, nothing)
            norms.append(float(strategy.optimizer_step(1.0)))
            scales.append(strategy.loss_scale)
        # The first overflow is forgiven (hysteresis 2), each later one halves the scale.
        assert scales == [65536, 65536, 32768, 16384]
        assert [math.isfinite(norm) for norm in norms] == [False, False, False, True]
        kept = {key: value.clone() for key, value in strategy.state().tensors("strategy/") if value is not None}
    assert {key.rpartition(".")[2]: float(value) for key, value in kept.items()} == {
        "cur_scale": 16384,
        "cur_iter": 4,
        "last_overflow_iter": 2,
        "cur_hysteresis": 1,
    }
    with prepared(DeepSpeedStrategy, "fp16", stage=stage, param_dtype="fp16") as (strategy, _):
        strategy.state().load(kept.__getitem__, kept)
        assert dict(strategy.state().tensors("strategy/")) == kept
        strategy.forward_backward(batches().step(4), nothing)
        assert math.isfinite(strategy.optimizer_step(1.0))
        assert strategy.loss_scale == 16384


@needs_deepspeed
def test_an_overflow_at_the_smallest_scale_ends_the_run(monkeypatch: pytest.MonkeyPatch):
    setup.import_deepspeed(CPU)
    from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler

    scale = CreateLossScaler(
        torch.float16,
        1.0,
        True,
        {"init_scale": 2.0, "scale_window": 9, "min_scale": 1, "delayed_shift": 1, "consecutive_hysteresis": False},
    )
    monkeypatch.setattr("deepspeed.runtime.fp16.loss_scaler.dist.get_rank", lambda: 1)
    engine = SimpleNamespace(loss_scaler=scale, overflow=True)
    engine_scale = EngineScale(engine)
    engine_scale.begin()
    scale.update_scale(True)
    engine_scale.end()
    assert (engine_scale.last_scale, engine_scale.scale) == (2.0, 1.0)
    engine_scale.begin()
    scale.update_scale(True)
    with raises_code("train.fp16_overflow", "1"):
        engine_scale.end()


def test_offload_uses_the_host():
    offload = options(stage=3, offload_optimizer=True, offload_parameters=True)
    config = setup.engine_config(offload, [], torch.float32)
    for name in ("offload_optimizer", "offload_param"):
        assert config["zero_optimization"][name]["device"] == "cpu"
    # Else it asks for an optimizer that has to be compiled.
    assert config["zero_force_ds_cpu_optimizer"] is False


@pytest.mark.parametrize(
    ("stage", "shards"),
    [
        (0, ()),
        (1, ("optimizer",)),
        (2, ("gradients", "optimizer")),
        (3, ("weights", "gradients", "optimizer")),
    ],
)
def test_traits_depend_on_the_stage(stage: int, shards: tuple[str, ...]):
    # What each stage shards: Rajbhandari et al., ZeRO, SC 2020, section 5.
    traits = strategy_traits("deepspeed", {"stage": stage})
    assert traits is not None
    assert traits.shards == shards
    assert traits.states_on == "device"
    offloaded = strategy_traits("deepspeed", {"stage": 3, "offload_optimizer": True})
    assert offloaded is not None
    assert offloaded.states_on == "cpu"


@needs_deepspeed
@pytest.mark.parametrize(("stage", "writes_shards"), [(0, False), (1, True), (3, True)])
def test_a_rank_without_shards_writes_none(stage: int, writes_shards: bool):
    with prepared(DeepSpeedStrategy, stage=stage) as (strategy, _):
        assert strategy.traits == strategy_traits("deepspeed", {"stage": stage})
        assert strategy.traits.writes_shards is writes_shards


@needs_deepspeed
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_one_process_trains_like_the_single_strategy(precision: str, stage: int):
    with prepared(SingleStrategy, precision) as (single, model):
        expected = trained(single)
        kinds = {parameter.dtype for parameter in model.parameters()}
    with prepared(DeepSpeedStrategy, precision, stage=stage) as (strategy, model):
        losses = trained(strategy)
        weights = dict(strategy.state().tensors("model/"))
    # bf16 is autocast in both, and weights stay in float32. But the single strategy computes query, key and value by
    # one product, and stage 3 has a linear layer of its own, which rounds to bf16 before it adds the bias, too.
    assert losses == pytest.approx(expected, rel=1e-4 if precision == "bf16" else 1e-6)
    assert {weight.dtype for weight in weights.values() if weight is not None} == kinds == {torch.float32}


@needs_deepspeed
def test_weights_that_an_evaluation_gathered_do_not_prevent_a_checkpoint():
    # The second forward pass without a backward pass ends with weights fetched for the latter.
    with prepared(DeepSpeedStrategy, num_layers=6, stage=3, param_persistence_threshold=0) as (strategy, model):
        trained(strategy, 2)  # the order of fetches is recorded in the first step and used from then on
        for micro_batch in batches().step(2):
            strategy.predict(micro_batch)
        shapes = {key: tuple(value.shape) for key, value in strategy.state().tensors("model/")}
        assert shapes == {f"model/{name}": tuple(parameter.ds_shape) for name, parameter in model.named_parameters()}
        assert len(trained(strategy, 1)) == 1


@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_loaded_weights_are_used_by_evaluation_and_training(stage: int):
    with prepared(DeepSpeedStrategy, stage=stage) as (strategy, _):
        trained(strategy, 2)
        (batch, *_) = batches().step(2)
        assert strategy.predict(batch).abs().sum() > 0
        keys = [key for key, _ in strategy.state().tensors("model/")]
        shapes = {key: value.shape for key, value in strategy.state().tensors("model/")}
        strategy.state().load(lambda key: torch.zeros(shapes[key]), keys)
        assert strategy.predict(batch).abs().sum() == 0
        # All weights are 0: so are the logits, and the loss is that of three classes at random.
        assert trained(strategy, 1) == pytest.approx([math.log(3)])
        # An update from the weights before, which DeepSpeed keeps a second time, would bring them back.
        assert max(float(value.abs().max()) for _, value in strategy.state().tensors("model/")) <= 2e-3


@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_states_with_wrong_shapes_are_refused(stage: int):
    with prepared(DeepSpeedStrategy, stage=stage) as (strategy, _):
        state = strategy.state()
        for key in ("model/hf.classifier.bias", "optimizer/hf.classifier.bias/exp_avg"):
            with pytest.raises(ValueError, match=r"has shape \(4,\), the parameter \(3,\)"):
                state.load(lambda key: torch.zeros(4), [key])
        with pytest.raises(KeyError):
            state.load(lambda key: torch.zeros(3), ["model/unheard.of"])


@needs_deepspeed
def test_a_norm_that_is_not_finite_is_returned_and_weights_stay():
    with prepared(DeepSpeedStrategy, stage=2) as (strategy, _):
        before = {key: value.clone() for key, value in strategy.state().tensors("model/")}
        micro_batches = batches().step(0)
        micro_batches[0].row_weight.fill_(float("nan"))
        strategy.forward_backward(micro_batches, lambda phase: nullcontext())
        assert not torch.isfinite(strategy.optimizer_step(1.0))
        for key, value in strategy.state().tensors("model/"):
            assert torch.equal(value, before[key])


@needs_deepspeed
def test_close_restores_the_environment_and_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    setup.import_deepspeed(CPU)  # DeepSpeed's import sets PYTORCH_NVML_BASED_CUDA_CHECK for the whole process
    environment, linear = dict(os.environ), torch.nn.functional.linear
    with prepared(DeepSpeedStrategy, stage=3) as (strategy, _):
        trained(strategy, 2)
        assert torch.nn.functional.linear is not linear
    assert torch.nn.functional.linear is linear
    assert dict(os.environ) == environment
    assert list(tmp_path.iterdir()) == []  # nothing was compiled
    assert capfd.readouterr().out == ""


@needs_deepspeed
def test_messages_of_deepspeed_go_only_to_log_files():
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("paratune")
    logger.addHandler(handler)
    try:
        setup.import_deepspeed(CPU)
        logging.getLogger("DeepSpeed").warning("proceed with caution")
        with setup.captured_output():
            sys.stdout.write("********** distributed groups summary **********\n")
        logging.getLogger("DeepSpeed").error("it is broken")
    finally:
        logger.removeHandler(handler)
    levels = {record.getMessage(): record.levelno for record in records}
    # The handler of stderr takes INFO and more.
    assert levels["proceed with caution"] == logging.DEBUG
    assert levels["DeepSpeed: ********** distributed groups summary **********"] == logging.DEBUG
    assert levels["it is broken"] == logging.ERROR


@needs_deepspeed
def test_another_accelerator_is_refused():
    setup.import_deepspeed(CPU)
    with raises_code("deepspeed.accelerator"):
        setup.import_deepspeed(torch.device("cuda", 0))


@needs_deepspeed
def test_stage_3_accepts_float64_on_a_cpu_with_fp16(monkeypatch: pytest.MonkeyPatch):
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses

    setup.import_deepspeed(CPU)
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    with pytest.raises(AssertionError, match=r"Invalid data type torch\.float64"):
        InsertPostInitMethodToModuleSubClasses(dtype=torch.float64)
    with setup.double.precision(torch.float64):
        InsertPostInitMethodToModuleSubClasses(dtype=torch.float64)


@needs_deepspeed
def test_float64_is_refused_with_an_unknown_version_of_deepspeed(monkeypatch: pytest.MonkeyPatch):
    from deepspeed.runtime.base_optimizer import ZeROOptimizer

    setup.import_deepspeed(CPU)
    monkeypatch.delattr(ZeROOptimizer, "_configure_master_weights")
    with raises_code("strategy.excluded", "fp64", "_configure_master_weights"):
        setup.double.precision(torch.float64).__enter__()


@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_weights_of_16_bits_are_saved(stage: int):
    with prepared(DeepSpeedStrategy, "bf16", frozen=True, stage=stage, param_dtype="bf16") as (strategy, _):
        trained(strategy, 1)
        dtypes = {name: tensor.dtype for name, tensor in strategy.state().tensors("model/")}
    assert dtypes["model/hf.bert.pooler.dense.weight"] == torch.bfloat16
    assert dtypes["model/hf.classifier.weight"] == torch.float32
