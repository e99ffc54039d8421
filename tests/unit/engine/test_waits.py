"""Nothing in a step makes the host wait for the device, whatever the model, its task and the layout of its batches."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import CONFIGS, PAIRS, model_of, rows
from looping import CPU, Bench, single
from torch import Tensor
from waits import attend_as_on_a_gpu, watched_for_waits

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.engine import loop
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

LENGTHS = [5, 1, 40, 12]
NOT_ON_A_GPU = ("deberta-v2", "deberta-v3")
"""Their batches are bucketed there."""


def steps(name: str, kind: str, layout: str) -> tuple[TaskModel, list[list[Batch]]]:
    """Return a model, and two steps of two micro-batches."""
    model = model_of(CONFIGS[name](), kind)
    enable_packed_batches(model)
    batch = rows(LENGTHS, kind, pad=model.hf.config.pad_token_id)
    if kind == "qa":
        batch = replace(batch, row_bounds=torch.tensor([[0, 0, length] for length in LENGTHS]))
    if layout == "packed":
        batch = round_up(pack(batch))
    return model, [[batch, batch], [batch, batch]]


def waits_of(folder: Path, model: TaskModel, batches: list[list[Batch]], **options: Any) -> list[str]:
    """Return what waits in the second step of the real loop; the first one allocates."""
    bench = Bench(folder, num_steps=2, model=model, batches=batches, log_every=10, **options)
    progress = loop.Progress()
    built = bench.build(progress)
    try:
        loop._step(built, progress)
        with watched_for_waits() as waits:
            loop._step(built, progress)
    finally:
        bench.events.close()
    assert progress.step == 2
    assert waits.num_operators > 100
    return waits.found


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair[0] not in NOT_ON_A_GPU])
def test_nothing_in_a_packed_step_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str):
    model, batches = steps(name, kind, "packed")
    calls = attend_as_on_a_gpu(monkeypatch)
    # In float32 there is no kernel with a window: docs/explanation/batches.md.
    strategy = single("bf16" if "modern" in name else "fp32")
    assert waits_of(tmp_path, model, batches, strategy=strategy) == []
    # Two layers, four micro-batches: all attention went the way of a GPU, with the model's own dropout.
    assert len(calls) == 8
    config = model.hf.config.to_dict()
    p = config.get("attention_probs_dropout_prob", config.get("attention_dropout"))
    assert {(dropout, longest) for _, longest, dropout, _ in calls} == {(p, 40)}


def test_nothing_in_a_packed_step_with_windows_waits_on_a_card_before_ampere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, batches = steps("modernbert", "classification", "packed")
    calls = attend_as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert waits_of(tmp_path, model, batches, strategy=single("fp16")) == []
    # Only layers without a window have a kernel.
    assert 0 < len(calls) < 8
    assert {window for *_, window in calls} == {None}


@pytest.mark.parametrize(("name", "kind"), [("bert", "classification"), ("deberta-v3", "qa"), ("modernbert", "mlm")])
def test_nothing_in_a_padded_step_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str):
    model, batches = steps(name, kind, "padded")
    attend_as_on_a_gpu(monkeypatch)
    assert waits_of(tmp_path, model, batches) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["classification", "mlm", "qa"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_nothing_waits_in_any_precision_with_the_noise_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, kind: str, layout: str
):
    model, batches = steps("bert", kind, layout)
    attend_as_on_a_gpu(monkeypatch)
    assert waits_of(tmp_path, model, batches, strategy=single(precision), noise_scale_every=1) == []


@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_nothing_waits_in_strategies_of_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, precision: str
):
    """In one process: what several do beside each other is not asked for on the host either."""
    model, batches = steps("bert", "classification", "packed")
    attend_as_on_a_gpu(monkeypatch)
    open_process_group(Place(0, 0, 1), CPU)
    try:
        strategy = strategy_class(kind)(device=CPU, precision=POLICIES[precision], rank=0, world_size=1)
        assert waits_of(tmp_path, model, batches, strategy=strategy) == []
    finally:
        close_process_group()


OTHERS = {
    "gpt2": transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1),
    "llama": transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    ),
    "bert": transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    ),
}


@pytest.mark.parametrize(
    ("name", "attention"), [("gpt2", "sdpa"), ("llama", "sdpa"), ("llama", "eager"), ("bert", "eager")]
)
@pytest.mark.parametrize("lengths", [LENGTHS, [12, 12]])
def test_nothing_waits_for_masks_of_other_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, attention: str, lengths: list[int]
):
    config = copy.deepcopy(OTHERS[name])
    config.pad_token_id = 0
    hf = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    model, batch = TaskModel(hf, "classification"), rows(lengths, "classification")
    assert model._attention == attention
    enable_packed_batches(model, packs=False)
    attend_as_on_a_gpu(monkeypatch)
    assert waits_of(tmp_path, model, [[batch, batch], [batch, batch]]) == []


def _item(model: TaskModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.loss_sum
    monkeypatch.setattr(model, "loss_sum", lambda *given: real(*given) * (1.0 if real(*given).item() else 2.0))


def _lengths(model: TaskModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = model._packed_inputs

    def longest(batch: Batch) -> dict[str, Any]:
        return {**real(batch), "max_seqlen": int(batch.cu_seqlens.diff().max())}

    monkeypatch.setattr(model, "_packed_inputs", longest)


def _index(model: TaskModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.loss_sum
    monkeypatch.setattr(model, "loss_sum", lambda out, batch: real(out, batch) + 0 * out[out > 0].sum())


def _gradient(model: TaskModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(grad: Tensor) -> Tensor:
        return grad * (1.0 if bool(grad.isfinite().all()) else 0.0)

    next(model.hf.bert.encoder.layer[0].parameters()).register_hook(look)


@pytest.mark.parametrize("break_it", [_item, _lengths, _index, _gradient])
def test_a_wait_for_the_device_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[TaskModel, pytest.MonkeyPatch], None]
):
    model, batches = steps("bert", "classification", "packed")
    attend_as_on_a_gpu(monkeypatch)
    break_it(model, monkeypatch)
    assert len(waits_of(tmp_path, model, batches)) >= 2


def test_a_kernel_that_reads_lengths_on_the_host_waits(tmp_path: Path):
    """As on the CPU: PyTorch has no other kernel for a GPU either; see docs/explanation/batches.md."""
    model, batches = steps("bert", "classification", "packed")
    assert waits_of(tmp_path, model, batches) != []
