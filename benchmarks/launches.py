"""Number of kernels that one training step launches on a GPU, and the bytes that they move, counted without a GPU.

    python benchmarks/launches.py [--precision bf16] [--micro-batches 1] [--top 12]

`SingleStrategy` runs two steps of BERT-base, classification, on the meta device under `paratune.planning.shims`, which
calls what CUDA would call; the second step is counted. 16 packed rows with lengths as of IMDB, 4,322 tokens. An
operator is counted as one kernel: a product may be two on a card, an operator on a list of tensors one per 320 chunks
of 65,536 numbers. The update itself (fused AdamW) is one operator per group of weights; it has no meta kernel and is
added by hand. Bytes are those of inputs and outputs, as if nothing stayed in a cache.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from unittest import mock

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from paratune.batch import Batch
from paratune.models.residual import fuse_residuals
from paratune.models.task_model import PackedEntry, TaskModel, find_blocks
from paratune.planning import profile
from paratune.planning.shims import Kernels, PackedAttention
from paratune.planning.trace import Operation, Phase, Trace
from paratune.precision import POLICIES, Precision
from paratune.strategies.single import SingleStrategy

LENGTHS = (512, 512, 512, 512, 301, 260, 233, 230, 215, 200, 190, 180, 160, 150, 90, 65)
"""Tokens of 16 rows; together 4,322, and 4 of 16 cut at 512, as of IMDB's training reviews."""
ADAMW_BYTES = 7 * 4
"""Of one number: weight, gradient and both moments read, weight and moments written, in float32."""


@dataclass(frozen=True)
class Emulated(Precision):
    """A policy whose autocast is that of `plan.shims.Kernels`: PyTorch has none for the meta device."""

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--top", type=int, default=12, help="lines of the second table")
    options = parser.parse_args()
    phases = counted(options.precision, options.micro_batches)
    print("| phase | kernels | casts | GB |\n|---|---|---|---|")
    for name, phase in [
        *phases.items(),
        ("step", Phase([k for kernels_of_phase in phases.values() for k in kernels_of_phase.kernels])),
    ]:
        casts = sum(kernel.name == "_to_copy" for kernel in phase.kernels)
        print(f"| {name} | {phase.num_kernels} | {casts} | {phase.num_bytes / 1e9:.2f} |")
    print("\n| operator | dtype of its output | kernels | GB |\n|---|---|---|---|")
    kinds = Counter((kernel.name, kernel.dtype) for phase in phases.values() for kernel in phase.kernels)
    for (name, dtype), number in kinds.most_common(options.top):
        same = Phase(
            [
                k
                for kernels_of_phase in phases.values()
                for k in kernels_of_phase.kernels
                if (k.name, k.dtype) == (name, dtype)
            ]
        )
        print(f"| {name} | {dtype} | {number} | {same.num_bytes / 1e9:.2f} |")


def counted(precision: str, num_micro_batches: int = 1) -> dict[str, Phase]:
    """Return the kernels of forward, backward and optimizer of one step.

    Args:
        precision: fp32, bf16 or fp16.
        num_micro_batches: Micro-batches of the step, all equal.
    """
    policy = POLICIES[precision]
    trace = Trace()
    phases = {name: Phase() for name in ("forward", "backward", "optimizer")}

    @contextmanager
    def recorded(name: str) -> Iterator[None]:
        with trace.recording() as phase:
            yield
        phases[name].kernels += phase.kernels

    with torch.device("meta"), profile._packed_attention(PackedAttention(LENGTHS, trace.count)):
        model = TaskModel(BertForSequenceClassification(BertConfig(num_labels=2)), "classification")
        model.entry = PackedEntry()
        fuse_residuals(model)
        strategy = SingleStrategy(
            device=torch.device("meta"),
            precision=Emulated(**vars(policy)),
            rank=0,
            world_size=1,
        )
        strategy.prepare(model, find_blocks(model), _adamw)
        batches = [_batch() for _ in range(num_micro_batches)]
        for _ in range(2):
            for phase in phases.values():
                phase.kernels.clear()
            with trace, Kernels(on_cuda=True, autocast=policy.autocast_dtype), recorded("forward"):
                strategy.forward_backward(batches, recorded)
            with trace, recorded("optimizer"), _as_on_cuda():
                strategy.optimizer_step(1.0)
    for group in strategy._optimizer.param_groups:
        num_bytes = ADAMW_BYTES * sum(parameter.numel() for parameter in group["params"])
        phases["optimizer"].kernels.append(Operation(0, num_bytes, "float32", "_fused_adamw_"))
    return phases


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Compute norms by operators on lists, as on CUDA, and leave the update out."""
    with (
        mock.patch("torch.optim.AdamW.step"),
        mock.patch("torch.nn.utils.clip_grad._has_foreach_support", return_value=True),
    ):
        yield


def _adamw(named: Iterator[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return AdamW, which is marked as fused, as on CUDA, and whose step is not called."""
    parameters = [parameter for _, parameter in named]
    decayed, kept = ([p for p in parameters if (p.ndim > 1) == is_matrix] for is_matrix in (True, False))
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": kept}])
    optimizer.defaults["fused"] = True
    return optimizer


def _batch() -> Batch:
    num_tokens, rows = sum(LENGTHS), len(LENGTHS)
    ids = torch.zeros(num_tokens, dtype=torch.long)
    return Batch(
        input_ids=ids,
        row_weight=torch.ones(rows),
        index=torch.zeros(rows, dtype=torch.long),
        num_samples=rows,
        num_tokens=num_tokens,
        num_padded_tokens=num_tokens,
        loss_denominator=float(rows),
        token_type_ids=torch.zeros_like(ids),
        position_ids=torch.zeros_like(ids),
        cu_seqlens=torch.zeros(rows + 1, dtype=torch.int32),
        slots=torch.zeros_like(ids),
        max_seqlen=max(LENGTHS),
        labels=torch.zeros(rows, dtype=torch.long),
    )


if __name__ == "__main__":
    main()
