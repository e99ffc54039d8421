"""Activation checkpointing: the same gradients and names, fewer saved bytes."""

import copy
from types import MethodType
from typing import Any

import pytest
import torch
from raised import raises_code
from tiny import VOCABULARY, tiny_model
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    DebertaV2Config,
    DistilBertConfig,
    GPT2Config,
    ModernBertConfig,
)

from paratune.batch import Batch
from paratune.models.blocks import checkpoint_blocks
from paratune.models.task_model import TaskModel, find_blocks

B, D, F = 4, 8, 32
"""Rows, width, inner width of `Block`."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(D, F), nn.Linear(F, D)
        self.num_calls = 0

    def forward(self, x: Tensor, *, sign: float = 1.0) -> Tensor:
        self.num_calls += 1
        return x + sign * self.narrow(nn.functional.gelu(self.widen(x)))


class Stack(nn.Module):
    def __init__(self, num_blocks: int = 6) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.blocks = nn.ModuleList([Block() for _ in range(num_blocks)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, sign=-1.0)
        return x.sum()


def kept_bytes(model: nn.Module, call: Any) -> int:
    """Return the bytes that autograd keeps for backward, of each storage once and without parameters."""
    ours = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(seen.values())


@pytest.mark.parametrize(
    ("every", "num_kept_whole", "num_recomputed"), [(None, 6, 0), (1, 0, 6), (2, 3, 3), (4, 4, 2), (6, 5, 1)]
)
def test_the_saved_bytes_for_backward(every: int | None, num_kept_whole: int, num_recomputed: int):
    stack = Stack()
    if every:
        checkpoint_blocks(list(stack.blocks), every)
    x = torch.randn(B, D)
    # Of float32, for a block: what `widen` is given (B x D), what gelu is given (B x F), and what `narrow` is given
    # (B x F). One that is computed again keeps what it is given. The multiplication by -1 and the sums keep nothing.
    whole, recomputed = 4 * B * (D + F + F), 4 * B * D
    assert (whole, recomputed) == (1152, 128)
    expected = num_kept_whole * whole + num_recomputed * recomputed
    assert kept_bytes(stack, lambda: stack(x)) == expected


def test_blocks_run_twice_in_training_and_once_in_evaluation():
    stack = Stack()
    checkpoint_blocks(list(stack.blocks), 4)  # the first and the fifth
    x = torch.randn(B, D)
    stack(x).backward()
    assert [block.num_calls for block in stack.blocks] == [2, 1, 1, 1, 2, 1]
    with torch.no_grad():
        stack(x)
    stack.eval()(x)
    assert [block.num_calls for block in stack.blocks] == [4, 3, 3, 3, 4, 3]


def test_a_copy_runs_its_own_blocks():
    stack = Stack(2)
    checkpoint_blocks(list(stack.blocks), 1)
    other = copy.deepcopy(stack)
    with torch.no_grad():
        other.blocks[0].narrow.bias.fill_(9.0)
    other(torch.randn(B, D)).backward()
    assert [block.num_calls for block in stack.blocks] == [0, 0]
    assert other.blocks[0].narrow.bias.grad is not None


def test_only_compiled_forwards_are_kept():
    def twice_that(block: Block, x: Tensor, *, sign: float = 1.0) -> Tensor:
        return 2 * Block.forward(block, x, sign=sign)

    x = torch.randn(B, D)
    compiled = torch.compile(twice_that, backend="eager")
    for forward, factor in ((twice_that, 1), (compiled, 2)):
        stack = Stack(1)
        expected = factor * stack(x).detach()
        stack.blocks[0].forward = MethodType(forward, stack.blocks[0])
        checkpoint_blocks(list(stack.blocks), 1)
        torch.testing.assert_close(stack(x).detach(), expected)


@pytest.mark.parametrize(
    ("num_blocks", "every", "refused"),
    [
        (0, 1, ("model.unsupported", "activation_checkpointing", "1")),
        (2, 3, ("model.unsupported", "activation_checkpointing", "3", "2")),
    ],
)
def test_options_without_effect_are_an_error(num_blocks: int, every: int, refused: tuple[str, ...]):
    with raises_code(*refused):
        checkpoint_blocks(list(Stack(num_blocks).blocks), every)


SMALL = {"vocab_size": len(VOCABULARY), "num_labels": 3, "pad_token_id": 0}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
MODELS = {
    "bert": lambda: tiny_model(num_labels=3),
    "distilbert": lambda: DistilBertConfig(**SMALL, dim=32, n_layers=2, n_heads=2, hidden_dim=64),
    "deberta-v2": lambda: DebertaV2Config(
        **SMALL, **LAYERS, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
    ),
    "modernbert": lambda: ModernBertConfig(
        **SMALL, **LAYERS, mlp_dropout=0.1, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3
    ),
    "albert": lambda: AlbertConfig(
        **SMALL, **LAYERS, embedding_size=16, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    ),
    "gpt2": lambda: GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=2, n_positions=64),
}


def made(name: str) -> TaskModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        what = MODELS[name]()
        hf = what if isinstance(what, nn.Module) else AutoModelForSequenceClassification.from_config(what)
    return TaskModel(hf, "classification").double().train()


def batch() -> Batch:
    ids = torch.randint(5, len(VOCABULARY), (3, 10), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[1, 7:], mask[1, 7:] = 0, 0
    return Batch(
        input_ids=ids,
        row_weight=torch.ones(3),
        index=torch.arange(3),
        num_samples=3,
        num_tokens=27,
        num_padded_tokens=30,
        loss_denominator=3.0,
        attention_mask=mask,
        labels=torch.tensor([0, 2, 1]),
    )


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_transformer_are_the_same_with_dropout_on(name: str):
    def gradients(every: int | None) -> tuple[dict[str, Tensor], int, int]:
        model = made(name)
        blocks = find_blocks(model)
        if every:
            checkpoint_blocks(blocks, every)
        torch.manual_seed(3)
        num_bytes = kept_bytes(model, lambda: losses.append(model.loss_sum(model(batch()), batch())))
        losses[-1].backward()
        return {key: value.grad for key, value in model.named_parameters()}, num_bytes, len(blocks)

    losses: list[Tensor] = []
    plain, plain_bytes, num_blocks = gradients(None)
    assert num_blocks == (1 if name == "albert" else 2), "ALBERT's one layer runs twice"
    again, num_bytes, _ = gradients(1)
    assert losses[0] == losses[1]
    assert list(again) == list(plain), "parameters keep their names"
    for key, gradient in plain.items():
        assert (again[key] is None) == (gradient is None), key
        assert gradient is None or torch.equal(again[key], gradient), key
    assert num_bytes < 0.6 * plain_bytes
    # Without dropout the loss is another one: the masks took part.
    assert losses[0] != made(name).eval().loss_sum(made(name).eval()(batch()), batch())
