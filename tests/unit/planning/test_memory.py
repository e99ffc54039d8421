"""Peaks held to PyTorch's own tracker; tests/two_processes holds those of several ranks to real steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from peak_ranks import _alive
from ranks import _no_clock
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import BertConfig

from paratune.base.units import MIB
from paratune.batch import Batch
from paratune.config.sections import BaseKind, LoraOptions, ModelOptions, Train
from paratune.config.strategy_sections import DeepSpeedOptions, PipelineOptions, SingleOptions, Zero3Options
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.engine.optim import OptimizerFactory
from paratune.models.adapters import add_adapter
from paratune.models.dropout import use_cheap_dropout
from paratune.models.quantized import quantize_base
from paratune.models.stored import float32_shapes
from paratune.models.task_model import TaskModel, find_blocks
from paratune.planning.kinds.pipeline import in_flight
from paratune.planning.machine import find_machine
from paratune.planning.memory import CONTEXT_BYTES, Memory, peak, with_machine
from paratune.planning.profile import Shape, profile
from paratune.planning.shims import Kernels
from paratune.planning.states import PredictionSetup
from paratune.planning.trace import Delta, Timeline, Trace, find_fullest
from paratune.precision import POLICIES
from paratune.strategies.single import SingleStrategy

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
ROWS, LENGTH = 4, 32


def config(**options: Any) -> BertConfig:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return BertConfig(vocab_size=1000, max_position_embeddings=64, num_labels=2, pad_token_id=0, **sizes, **options)


def setup_of(strategy: Any, num_ranks: int = 1, grad_accum_steps: int = 1) -> PredictionSetup:
    traits = strategy_traits(strategy.kind, strategy.model_dump(exclude={"kind"}))
    assert traits is not None
    return PredictionSetup(strategy, traits, POLICIES["fp32"], num_ranks, num_ranks, ROWS, grad_accum_steps)


def test_the_peak_of_one_process_is_that_of_pytorchs_tracker() -> None:
    torch.manual_seed(0)
    hf = transformers.AutoModelForSequenceClassification.from_config(config())
    model = TaskModel(hf, "classification").train()
    use_cheap_dropout(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(5, 1000, (ROWS, LENGTH))
    tracker = MemTracker()
    tracker.track_external(model, optimizer, ids)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            hf(input_ids=ids).logits.log_softmax(-1)[:, 0].mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    expected = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    memory = peak(
        profile(config(), TASK, Shape((LENGTH,) * ROWS), POLICIES["fp32"], on_cuda=False),
        setup_of(SingleOptions(kind="single")),
        on_cuda=False,
    )
    assert memory.total == pytest.approx(expected, rel=0.01)


def test_copies_of_weights_under_autocast_are_those_of_pytorchs_tracker() -> None:
    torch.manual_seed(0)
    # Attention that drops something is written out on a CPU, in other dtypes than on the meta device.
    small = config(attention_probs_dropout_prob=0.0)
    hf = transformers.AutoModelForSequenceClassification.from_config(small)
    model = TaskModel(hf, "classification").train()
    use_cheap_dropout(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(5, 1000, (ROWS, LENGTH))
    tracker = MemTracker()
    tracker.track_external(model, optimizer, ids)
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            with Kernels(on_cuda=False, autocast=torch.bfloat16) as kernels:  # what autocast on CUDA does
                loss = hf(input_ids=ids).logits.float().log_softmax(-1)[:, 0].mean()
            kernels.cast_weights.clear()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    expected = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    traced = profile(small, TASK, Shape((LENGTH,) * ROWS), POLICIES["bf16"], on_cuda=False)
    memory = peak(traced, setup_of(SingleOptions(kind="single")), on_cuda=False)
    assert memory.terms["cast_weights"] > 0
    assert memory.total == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("stored", "base", "policy"),
    [
        (None, None, "bf16"),
        (torch.bfloat16, None, "bf16"),
        *((None, base, policy) for base in ("nf4", "int8") for policy in ("bf16", "fp32")),
    ],
)
def test_frozen_layers_are_held_in_16_bits_or_fewer(
    stored: torch.dtype | None, base: BaseKind | None, policy: str
) -> None:
    pytest.importorskip("peft")
    if base is not None:
        pytest.importorskip("bitsandbytes")
    before = sum(tensor.untyped_storage().nbytes() for tensor in _alive().values())
    # Few tokens: autocast on a CPU has other operations in 16 bits than on CUDA.
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    large, rows, length = BertConfig(vocab_size=1000, num_labels=2, pad_token_id=0, **sizes), 1, 4
    hf, lora = transformers.AutoModelForSequenceClassification.from_config(large), LoraOptions(kind="lora")
    hf = hf.to(stored or torch.float32)
    with float32_shapes(hf):
        add_adapter(hf, lora)
    if base is not None:
        quantize_base(hf, base)
    model, precision = TaskModel(hf, "classification"), POLICIES[policy]
    use_cheap_dropout(model)
    strategy = SingleStrategy(device=torch.device("cpu"), precision=precision, rank=0, world_size=1)
    strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(), 10))
    batch = Batch(
        input_ids=torch.randint(5, 1000, (rows, length)),
        row_weight=torch.ones(rows),
        index=torch.arange(rows),
        num_samples=rows,
        num_tokens=rows * length,
        num_padded_tokens=rows * length,
        loss_denominator=float(rows),
        token_type_ids=torch.zeros(rows, length, dtype=torch.long),
        max_seqlen=length,
        labels=torch.zeros(rows, dtype=torch.long),
    )
    tensors = [*model.parameters(), *model.buffers()]
    held = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    for _ in range(2):
        strategy.forward_backward([batch], _no_clock)
        strategy.optimizer_step(1.0)
    trace = Trace(1)
    for tensor in _alive().values():
        trace.hold(tensor, is_base=True)
    with trace, trace.recording():
        strategy.forward_backward([batch], _no_clock)
        strategy.optimizer_step(1.0)
    shape, options = Shape((length,) * rows), ModelOptions(name="none", adapter=lora, quantize_base=base)
    traced = profile(large, TASK, shape, precision, on_cuda=False, model_options=options, stored_dtype=stored)
    setup = replace(setup_of(SingleOptions(kind="single")), precision=precision)
    memory = peak(traced, setup, on_cuda=False)
    assert memory.terms["weights"] + memory.terms["buffers"] == held
    assert memory.total == pytest.approx(trace.peak_bytes - before, rel=0.02)


@pytest.mark.slow
def test_seven_billion_weights_in_nf4_take_about_the_published_memory() -> None:
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    llama = transformers.LlamaConfig(vocab_size=32_000, pad_token_id=0, **sizes)
    options = ModelOptions(name="none", adapter=LoraOptions(kind="lora", rank=8), quantize_base="nf4")
    traced = profile(llama, TASK, Shape((8,)), POLICIES["bf16"], model_options=options)
    memory = peak(traced, replace(setup_of(SingleOptions(kind="single")), precision=POLICIES["bf16"]))
    # Products of 32 layers in 4.5 bits; embeddings, norms, the head and the adapter (query and value) in float32.
    products = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    adapter = 32 * 2 * 2 * 8 * 4096
    assert products == 6_476_005_376
    others = 32_000 * 4096 + 65 * 4096 + 2 * 4096 + adapter
    assert memory.terms["weights"] == pytest.approx(products * 4.5 / 8 + 4 * others, rel=1e-4)
    # Published for 7B in nf4, before activations: 4.6 GB.
    states = sum(memory.terms.get(term, 0) for term in ("weights", "gradients", "optimizer", "buffers"))
    assert 4.0e9 < states < 4.6e9


def test_cuda_takes_more_and_rounds_up() -> None:
    shape, setup = Shape((LENGTH,) * ROWS), setup_of(Zero3Options(kind="zero3"), 2)
    on_cuda = peak(profile(config(), TASK, shape, POLICIES["bf16"]), setup)
    assert on_cuda.terms["context"] == CONTEXT_BYTES
    assert {"gathered_weights", "cast_weights", "fragmentation", "workspaces"} <= set(on_cuda.terms)


def test_several_gpus_need_buffers_of_nccl() -> None:
    # 16 channels of NVLink, each with 12 MiB to the neighbour in a ring and as many in a tree; PCIe has 4 channels.
    memory = Memory({"weights": 1000}, {})
    by_nvlink, by_pcie = (with_machine(memory, find_machine(name), 2) for name in ("a100-40gb", "t4"))
    assert with_machine(memory, find_machine("a100-40gb"), 1) == memory
    assert by_nvlink.terms["nccl"] == 16 * 2 * 12 * MIB
    assert by_pcie.terms["nccl"] == 4 * 2 * 12 * MIB
    assert by_pcie.bounds == (1000 + 24 * MIB, 1000 + 384 * MIB)


def test_offload_moves_states_to_the_host() -> None:
    traced = profile(config(), TASK, Shape((LENGTH,) * ROWS), POLICIES["fp32"])
    here = peak(traced, setup_of(Zero3Options(kind="zero3"), 2))
    there = peak(traced, setup_of(Zero3Options(kind="zero3", cpu_offload=True), 2))
    assert not here.host_terms
    assert {"weights", "optimizer"}.isdisjoint(there.terms)
    # A quarter of it are the gradients, which the moment on the device does not have all of.
    assert sum(there.host_terms.values()) > here.terms["weights"] + here.terms["optimizer"]


def test_stage_3_on_one_rank_has_copies_of_offloaded_weights_only() -> None:
    traced = profile(config(), TASK, Shape((LENGTH,) * ROWS), POLICIES["fp32"])
    limits = {"stage": 3, "param_persistence_threshold": 1000, "max_live_parameters": 10**9}
    here, there, others = (
        peak(traced, setup_of(DeepSpeedOptions(kind="deepspeed", **limits, **options), num_ranks))
        for options, num_ranks in (({}, 1), ({"offload_parameters": True}, 1), ({}, 2))
    )
    numel = [parameter.numel for parameter in traced.parameters]
    large = 4 * sum(size for size in numel if size > 1000)
    assert "gathered_weights" not in here.terms
    assert here.terms["weights"] == 4 * sum(numel)
    # The whole of each weight, gathered or always there, and no output of a collective beside it.
    assert there.host_terms["weights"] == 4 * sum(numel)
    assert there.terms["weights"] == 4 * sum(numel) - large
    assert others.terms["gathered_weights"] == large
    # Without the output of a collective the peak is later, when the pooler has used its 64 x 64 weights.
    assert there.terms["gathered_weights"] == large - 4 * 64 * 64


@pytest.mark.parametrize(
    ("schedule", "place", "expected"),
    [
        ("gpipe", 0, [8]),
        # Four stages: the first has sent four on before the first comes back, the last has one at a time.
        ("1f1b", 0, [4]),
        ("1f1b", 3, [1]),
        # (2 - 1) 4 + 2 (4 - 1) + 1 = 11 passes, by four through each stage in turn: 4, 4, then 3 of the first again.
        ("interleaved", 0, [7, 4]),
        ("interleaved", 3, [4, 1]),
    ],
)
def test_micro_batches_in_flight(schedule: Any, place: int, expected: list[int]) -> None:
    strategy = PipelineOptions(kind="pipeline", stages=4, schedule=schedule)
    traits = setup_of(strategy, 4, 8).traits
    assert in_flight(strategy, traits, place, 8) == expected


def test_peak_includes_the_deltas_of_the_engine() -> None:
    # Two of 100 bytes, the first gone before the second comes: alone never more than 100.
    timeline = Timeline(sizes=(100, 100), changes=(0, ~0, 1))
    level = timeline.level(1)
    assert level.tolist() == [0, 100, 0, 100]
    assert find_fullest(level, []) == (1, {})
    # Taken while none is there, and given back: the first alone stays the most.
    assert find_fullest(level, [Delta(2, "x", 90), Delta(2, "x", -90)]) == (1, {})
    # Taken and given back while the first is there.
    assert find_fullest(level, [Delta(1, "x", 90), Delta(1, "x", -90)]) == (1, {"x": 90})
    # 50 that stay come on top of the second.
    assert find_fullest(level, [Delta(2, "x", 50), Delta(2, "y", 60), Delta(2, "y", -60)]) == (3, {"x": 50, "y": 0})


def test_sizes_are_rounded_as_the_allocator_does() -> None:
    assert Timeline(sizes=(1, 513), changes=(0, 1)).level(512).tolist() == [0, 512, 1536]
