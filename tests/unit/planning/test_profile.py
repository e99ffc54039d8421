"""The trace counts the same bytes that a real pass on the CPU keeps, by autograd's own hooks."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import torch
import transformers
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig

from paratune.batch import Batch
from paratune.config.model_states import adam_bytes
from paratune.config.sections import FreezeOptions, LoraOptions, ModelOptions, Train
from paratune.config.task_sections import (
    ClassificationTask,
    MaskedLMTask,
    MultiLabelTask,
    OrdinalTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
)
from paratune.models.blocks import checkpoint_blocks
from paratune.models.dropout import use_cheap_dropout
from paratune.models.task_model import TaskModel, find_blocks
from paratune.models.trained_weights import freeze_weights
from paratune.planning.build import build_model
from paratune.planning.profile import Shape, profile
from paratune.planning.states import unsharded
from paratune.planning.trace import Saved, on_meta
from paratune.precision import POLICIES

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
WIDTH = {
    "bert": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
KINDS = ("bert", "roberta", "distilbert", "electra", "albert", "deberta", "deberta-v2", "modernbert", "gpt2")
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
"""As in all published DeBERTa models; the default has no relative attention."""
LENGTHS = [(3,), (16,) * 4, (40, 7, 21), (128, 128), (300, 12, 1, 57)]
GRID = [
    # Rows of one length where their number is odd, else from the longest down to half of it.
    tuple(length if rows % 2 else length - length * row // (2 * rows) for row in range(rows))
    for rows in (1, 2, 5, 8, 16)
    for length in (8, 31, 64, 128, 250, 384)
]
OTHER_TASKS: list[tuple[Task, str]] = [
    (RegressionTask(kind="regression"), "AutoModelForSequenceClassification"),
    (MultiLabelTask(kind="multi_label", labels=["a", "b", "c"]), "AutoModelForSequenceClassification"),
    (MaskedLMTask(kind="mlm"), "AutoModelForMaskedLM"),
    (QuestionAnsweringTask(kind="qa"), "AutoModelForQuestionAnswering"),
]


def small(kind: str) -> Any:
    """Return the configuration of a small model of an architecture, with dropout."""
    size = dict(WIDTH.get(kind, WIDTH["bert"]), vocab_size=1000, pad_token_id=0)
    if kind in ("roberta",):
        size["max_position_embeddings"] = 514
    if kind.startswith("deberta"):
        size |= RELATIVE
    if kind == "deberta-v2":
        size |= {"share_att_key": True, "position_buckets": 32, "norm_rel_ebd": "layer_norm"}
    return AutoConfig.for_model(kind, **size)


def kept(config: Any, shape: Shape) -> int:
    """Return the bytes that autograd keeps of a real forward pass on the CPU."""
    torch.manual_seed(0)
    config.num_labels = 2
    hf = transformers.AutoModelForSequenceClassification.from_config(config)
    model = TaskModel(hf, "classification").train()
    use_cheap_dropout(model)  # as training on a CPU does
    longest = max(shape.lengths)
    mask_BS = (torch.arange(longest) < torch.tensor(shape.lengths)[:, None]).long()
    ids_BS = torch.where(mask_BS > 0, torch.randint(5, 1000, mask_BS.shape), 0)
    inputs = {"input_ids": ids_BS, "attention_mask": mask_BS}
    saved = Saved([*model.parameters(), *model.buffers(), *inputs.values()])
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        # Without keys and values for generation, as training calls every model: `model._options`.
        loss = hf(**inputs, **model._options).logits.float().log_softmax(-1)[:, 0].sum()
    saved.storages.clear()
    del loss
    return saved.num_bytes


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_trace_saves_the_same_bytes_as_a_pass_on_the_cpu(kind: str, lengths: tuple[int, ...]) -> None:
    shape = Shape(lengths)
    saved_bytes = profile(small(kind), TASK, shape, POLICIES["fp32"], on_cuda=False).saved_bytes
    assert saved_bytes == pytest.approx(kept(small(kind), shape), rel=0.03, abs=4096)


def test_saved_tensors_are_released() -> None:
    """A softmax saves its own output."""
    saved = Saved(())
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        output = torch.ones(3, requires_grad=True).softmax(0)
    saved.storages.clear()
    note = output.grad_fn.metadata["note"] = Event()
    left = weakref.ref(note)
    del output, note
    gc.collect()
    assert left() is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_bytes_match_for_thirty_shapes(kind: str, record_property: Callable[[str, object], None]) -> None:
    assert len(GRID) == 30
    ratios = []
    for lengths in GRID:
        shape = Shape(lengths)
        saved_bytes, real = (
            profile(small(kind), TASK, shape, POLICIES["fp32"], on_cuda=False).saved_bytes,
            kept(small(kind), shape),
        )
        ratios.append(saved_bytes / real)
        assert saved_bytes == pytest.approx(real, rel=0.03, abs=4096), lengths
    record_property(kind, f"{min(ratios) - 1:+.2%} to {max(ratios) - 1:+.2%}")


def batch_of(lengths: tuple[int, ...], task: Task) -> Batch:
    """Return a padded batch of a task on the CPU."""
    rows, longest = len(lengths), max(lengths)
    mask_BS = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    labels = torch.zeros(rows, dtype=torch.float32 if task.kind == "regression" else torch.long)
    places = None
    if task.kind == "multi_label":
        labels = torch.zeros(rows, 3)
    elif task.kind == "qa":
        labels = torch.zeros(rows, 2, dtype=torch.long)
    elif task.kind == "mlm":
        labels = torch.zeros_like(mask_BS)
        places = mask_BS.flatten().nonzero().flatten()[: round(0.15 * sum(lengths))]
    return Batch(
        input_ids=torch.where(mask_BS > 0, torch.randint(5, 900, mask_BS.shape), 0),
        row_weight=torch.ones(rows),
        index=torch.arange(rows),
        num_samples=rows,
        num_tokens=sum(lengths),
        num_padded_tokens=rows * longest,
        loss_denominator=float(rows),
        attention_mask=mask_BS,
        token_type_ids=torch.zeros_like(mask_BS),
        max_seqlen=longest,
        labels=labels,
        label_places=places,
        row_bounds=torch.tensor([[0, 1, 2]] * rows) if task.kind == "qa" else None,
    )


def kept_by_task(config: Any, lengths: tuple[int, ...], task: Task, auto_class: str, **options: Any) -> int:
    """Return the bytes that autograd keeps of a real pass with the task's head and loss."""
    torch.manual_seed(0)
    config.num_labels = {"regression": 1, "multi_label": 3}.get(task.kind, 2)
    if "attention" in options:
        config._attn_implementation = options["attention"]
    model = TaskModel(getattr(transformers, auto_class).from_config(config), task.kind).train()
    model.head_takes_labelled = task.kind == "mlm"
    use_cheap_dropout(model)
    if train := options.get("train"):
        freeze_weights(model, train)
    if every := options.get("activation_checkpointing"):
        checkpoint_blocks(find_blocks(model), every)
    batch = batch_of(lengths, task)
    tensors = [tensor for tensor in vars(batch).values() if isinstance(tensor, torch.Tensor)]
    saved = Saved([*model.parameters(), *model.buffers(), *tensors])
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        loss = model.loss_sum(model(batch), batch) / batch.loss_denominator
    saved.storages.clear()
    del loss
    return saved.num_bytes


def test_an_ordinal_head_has_an_output_less_than_classes() -> None:
    # Niu et al., Ordinal Regression with Multiple Output CNN, CVPR 2016: K - 1 binary tasks for K ranks.
    task = OrdinalTask(kind="ordinal", labels=["low", "middle", "high"])
    assert on_meta(lambda: build_model(small("bert"), task, POLICIES["fp32"], None).hf.classifier.out_features) == 2


@pytest.mark.parametrize(("task", "auto_class"), OTHER_TASKS, ids=lambda case: getattr(case, "kind", ""))
@pytest.mark.parametrize("lengths", [(40, 7, 21), (64,) * 4], ids=str)
def test_heads_and_losses_of_other_tasks(task: Task, auto_class: str, lengths: tuple[int, ...]) -> None:
    saved_bytes = profile(small("bert"), task, Shape(lengths), POLICIES["fp32"], on_cuda=False).saved_bytes
    assert saved_bytes == pytest.approx(kept_by_task(small("bert"), lengths, task, auto_class), rel=0.03, abs=4096)


@pytest.mark.parametrize("kind", ["bert", "deberta-v2", "modernbert"])
@pytest.mark.parametrize(
    "options",
    [
        {"activation_checkpointing": 1},
        {"activation_checkpointing": 2},
        {"attention": "eager"},
        {"train": Train(freeze_encoder=True)},
        {"train": Train(freeze=FreezeOptions(embeddings=True, blocks=1))},
    ],
    ids=str,
)
def test_saved_bytes_with_checkpointing_and_frozen_encoder(kind: str, options: dict[str, Any]) -> None:
    lengths = (128, 96, 64, 70)
    saved_bytes = profile(small(kind), TASK, Shape(lengths), POLICIES["fp32"], on_cuda=False, **options).saved_bytes
    expected = kept_by_task(small(kind), lengths, TASK, "AutoModelForSequenceClassification", **options)
    assert saved_bytes == pytest.approx(expected, rel=0.03, abs=4096)


def test_a_quantized_base_is_read_and_written_for_each_product() -> None:
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    bert = transformers.BertConfig(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2)
    options = ModelOptions(name="bert", adapter=LoraOptions(kind="lora", rank=4), quantize_base="nf4")
    traced = profile(bert, TASK, Shape((8, 8)), POLICIES["bf16"], model_options=options)
    square, wide = ((4.5 / 8 + 2) * 64 * width for width in (64, 256))  # 4.5 bits read, 16 written
    for phase, expected in (
        (traced.forward, {square: 2 * 4, wide: 2 * 2}),
        # The embeddings are frozen: no gradient passes through query, key and value of the first block.
        (traced.backward, {square: 2 * 4 - 3, wide: 2 * 2}),
    ):
        found = Counter(kernel.num_bytes for kernel in phase.kernels if kernel.name == "dequantize_4bit")
        assert found == expected
    products = [kernel for kernel in traced.forward.kernels if kernel.flops == 2 * 16 * 64 * 256]
    assert len(products) == 2 * 2
    assert {kernel.dtype for kernel in products} == {"bfloat16"}


def test_an_adapter_trains_its_matrices_and_the_head_only() -> None:
    pytest.importorskip("peft")
    options = ModelOptions(name="bert", adapter=LoraOptions(kind="lora", rank=4))
    found = profile(small("bert"), TASK, Shape((16, 9)), POLICIES["fp32"], on_cuda=False, model_options=options)
    # Query and value of 2 blocks of width 64: two matrices of 4 x 64 each; the classifier has 2 outputs.
    assert found.num_trained == 2 * 2 * 2 * 4 * 64 + 2 * 64 + 2
    plain = profile(small("bert"), TASK, Shape((16, 9)), POLICIES["fp32"], on_cuda=False)
    assert found.num_parameters == plain.num_parameters + 2 * 2 * 2 * 4 * 64
    trained = [weight for weight in found.parameters if weight.is_trained]
    # Two moments of 4 bytes for each number, and a count of steps of 4 bytes for each parameter.
    states = unsharded(found.parameters, adam_bytes())
    assert (states.gradients, states.optimizer) == (4 * found.num_trained, 8 * found.num_trained + 4 * len(trained))


def test_a_model_that_loops_over_a_set_allocates_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONHASHSEED 0 and 1 the loop of ModernBERT has two orders, and plans had two fragmentations."""
    from transformers.models.modernbert import modeling_modernbert as module

    seen, rotate = [], module.ModernBertRotaryEmbedding.forward

    def forward(self: Any, hidden: Any, positions: Any, layer_type: str) -> Any:
        seen.append((layer_type, list(module.set("zyxwvutsrqponm"))))
        return rotate(self, hidden, positions, layer_type)

    monkeypatch.setattr(module.ModernBertRotaryEmbedding, "forward", forward)
    profile(small("modernbert"), TASK, Shape((16, 9)), POLICIES["fp32"], on_cuda=False)
    assert seen == [(name, list("mnopqrstuvwxyz")) for name in ("full_attention", "sliding_attention")]
    assert "set" not in vars(module)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_dtype_of_the_files_does_not_change_the_trace(name: str) -> None:
    # Training loads the weights in the dtype of its precision, whatever config.json says.
    stored = small("bert")
    stored.dtype = torch.bfloat16
    first, second = (profile(config, TASK, Shape((16, 9)), POLICIES[name]) for config in (small("bert"), stored))
    assert first.weight_bytes == second.weight_bytes == 4
    assert first == second


@pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
def test_deberta_is_traced_in_16_bits(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    # transformers makes some weights of DeBERTa in float32; with `param_dtype` all are bf16, 2 bytes a number.
    traced = profile(small(kind), TASK, Shape((16, 9)), POLICIES["bf16"].with_weights("bf16"))
    assert {parameter.stored_bytes for parameter in traced.parameters} == {None}
    assert traced.weight_bytes == 2
    assert profile(small(kind), TASK, Shape((16, 9)), POLICIES["bf16"]).weight_bytes == 4
    assert capfd.readouterr().err == ""
