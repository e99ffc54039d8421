"""What the trace counts is what a real pass on the CPU keeps, which autograd's own hooks tell."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from paratune.config.task_sections import ClassificationTask
from paratune.models.dropout import use_cheap_dropout
from paratune.models.task_model import TaskModel
from paratune.plan.profile import Shape, profile
from paratune.plan.trace import Saved
from paratune.precision import POLICIES

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
WIDTH = {
    "bert": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
KINDS = ("bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert", "gpt2")
LENGTHS = [(3,), (16,) * 4, (40, 7, 21), (128, 128), (300, 12, 1, 57)]


def small(kind: str) -> Any:
    """Return the configuration of a small model of an architecture, with dropout."""
    size = dict(WIDTH.get(kind, WIDTH["bert"]), vocab_size=1000, pad_token_id=0)
    if kind in ("roberta",):
        size["max_position_embeddings"] = 514
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
    saved = Saved(iter([*model.parameters(), *model.buffers(), *inputs.values()]))
    with saved.watching():
        loss = hf(**inputs).logits.float().log_softmax(-1)[:, 0].sum()
    saved.forget()
    del loss
    return saved.num_bytes


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_trace_keeps_what_a_pass_on_the_cpu_keeps(kind: str, lengths: tuple[int, ...]) -> None:
    shape = Shape(lengths)
    found = profile(small(kind), TASK, shape, POLICIES["fp32"], on_cuda=False).saved_bytes
    assert found == pytest.approx(kept(small(kind), shape), rel=0.03, abs=4096)
