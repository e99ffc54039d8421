"""Replacements of the training's own layers on a CPU keep the same tensors as these, by autograd's hooks."""

from typing import Any

import pytest
import torch
import transformers
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.config.task_sections import ClassificationTask
from paratune.models.attention.register import NAME as PACKED
from paratune.models.attention.register import packed_attention, register
from paratune.models.dropout import use_cheap_dropout
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import PackedEntry, TaskModel
from paratune.planning.profile import Shape, profile
from paratune.planning.shims import PackedAttention
from paratune.planning.trace import Saved
from paratune.precision import POLICIES

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
SIZE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}


def batch_of(lengths: tuple[int, ...]) -> Batch:
    longest, rows = max(lengths), len(lengths)
    mask_BS = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    return Batch(
        input_ids=torch.where(mask_BS > 0, torch.randint(5, 900, (rows, longest)), 0),
        row_weight=torch.ones(rows),
        index=torch.arange(rows),
        num_samples=rows,
        num_tokens=sum(lengths),
        num_padded_tokens=rows * longest,
        loss_denominator=float(rows),
        attention_mask=mask_BS,
        token_type_ids=torch.zeros_like(mask_BS),
        max_seqlen=longest,
        labels=torch.zeros(rows, dtype=torch.long),
    )


@pytest.mark.parametrize("dropout", [0.1, 0.0], ids=["dropout", "none"])
@pytest.mark.parametrize("lengths", [(40, 7, 21), (128,) * 4, (300, 12, 1, 57)], ids=str)
def test_packed_rows_on_a_cpu_save_the_same_bytes_as_a_real_pass(lengths: tuple[int, ...], dropout: float) -> None:
    config = AutoConfig.for_model(
        "bert", **SIZE, vocab_size=1000, attention_probs_dropout_prob=0.1, hidden_dropout_prob=dropout
    )
    torch.manual_seed(0)
    model = TaskModel(transformers.AutoModelForSequenceClassification.from_config(config), "classification").train()
    enable_packed_batches(model)
    use_cheap_dropout(model)
    assert model.entry is not None
    assert model.entry.shortens
    batch = pack(batch_of(lengths))
    tensors = [tensor for tensor in vars(batch).values() if isinstance(tensor, torch.Tensor)]
    saved = Saved([*model.parameters(), *model.buffers(), *tensors])
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        loss = model.loss_sum(model(batch), batch)
    saved.storages.clear()
    del loss
    shape = Shape(lengths, layout="packed")
    traced = profile(config, TASK, shape, POLICIES["fp32"], on_cuda=False, entry=model.entry)
    assert traced.saved_bytes == pytest.approx(saved.num_bytes, rel=0.05, abs=4096)


@pytest.mark.parametrize("on_cuda", [False, True])
def test_a_profile_leaves_the_attention_of_other_models(monkeypatch: pytest.MonkeyPatch, on_cuda: bool) -> None:
    """Also while it is made: another thread may train."""
    register()
    seen = []
    attend = PackedAttention.__call__

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(ALL_ATTENTION_FUNCTIONS[PACKED])
        return attend(self, *args, **kwargs)

    monkeypatch.setattr(PackedAttention, "__call__", spy)
    config, shape = AutoConfig.for_model("bert", **SIZE, vocab_size=1000), Shape((9, 4), layout="packed")
    profile(config, TASK, shape, POLICIES["fp32"], on_cuda=on_cuda, entry=PackedEntry())
    assert seen == [packed_attention] * SIZE["num_hidden_layers"]
    assert ALL_ATTENTION_FUNCTIONS[PACKED] is packed_attention


def test_products_of_tiles_are_those_of_attention() -> None:
    config = AutoConfig.for_model("bert", **SIZE, vocab_size=1000)
    shape = Shape((128,) * 4, layout="packed")
    model = TaskModel(transformers.AutoModelForSequenceClassification.from_config(config), "classification")
    enable_packed_batches(model)
    traced = profile(config, TASK, shape, POLICIES["fp32"], on_cuda=False, entry=model.entry)
    # 2 products of 2 S^2 D each row, of two layers; the last has one query a row. Backward 5 of tiles, else twice 2.
    tiles, last = 2 * 4 * 2 * 2 * 128**2 * 64, 4 * 2 * 2 * 128 * 64
    forward, backward = (
        sum(count * operation.flops for operation, count in phase.operations.items() if operation.name == "bmm")
        for phase in (traced.forward, traced.backward)
    )
    assert forward == tiles + last
    assert backward == tiles * 5 // 2 + last * 2


def test_the_last_layer_on_cuda_has_one_query_a_row() -> None:
    config = AutoConfig.for_model("bert", **SIZE, vocab_size=1000)
    lengths = (300, 12, 1, 57)
    shape = Shape(lengths, layout="packed")
    whole, first = (
        profile(config, TASK, shape, POLICIES["bf16"], entry=PackedEntry(0, "first", shortens))
        for shortens in (False, True)
    )
    # 2 products of 2 D operations for each pair of a query and a key of its row; backward 5 of them.
    pairs, last = sum(length**2 for length in lengths), sum(lengths)
    layers = config.num_hidden_layers
    for traced, expected in ((whole, layers * pairs), (first, (layers - 1) * pairs + last)):
        for phase, products in ((traced.forward, 2), (traced.backward, 5)):
            flops = sum(
                count * operation.flops
                for operation, count in phase.operations.items()
                if operation.name.startswith("packed_attention")
            )
            assert flops == products * 2 * config.hidden_size * expected
    assert sum(each.flops for each in first.forward.kernels) < sum(each.flops for each in whole.forward.kernels)
    assert first.saved_bytes < whole.saved_bytes
