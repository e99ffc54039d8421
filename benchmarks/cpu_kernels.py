"""What paratune's kernels for CPUs save: training steps with one of them off, in turn with steps with all of them on.

    OMP_NUM_THREADS=1 python benchmarks/cpu_kernels.py --rounds 7

Forward and backward of models with random weights, fp32, dropout 0.1, on rows with lengths as in the data sets. In each
round all sides compute the same rows, in an order that rotates. A ratio is the CPU time of a side divided by that of
the side with all kernels on, in the same round; the table has the median (range) over rounds. `calls` counts how often
a step uses the kernel that is off.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from disentangled import _batches
from machine import machine_lines
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, DebertaV2Config, DebertaV2ForSequenceClassification

from paratune.models.dropout import use_cheap_dropout
from paratune.models.linear import OneDnnLinear, use_onednn
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel

LENGTHS: dict[str, Callable[[], list[int]]] = {
    "IMDB, 16 rows": lambda: _lognormal(16, 233, 0.78, 512),
    "MRPC, 32 rows": lambda: torch.randint(25, 82, (32,)).tolist(),
    "SQuAD, 16 rows": lambda: _lognormal(16, 160, 0.38, 384),
    "SST-2, 32 rows": lambda: _lognormal(32, 20, 0.6, 60),
}
WIDTH: dict[str, Any] = {"vocab_size": 8000, "hidden_size": 384, "intermediate_size": 1536}
DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
CASES = [*(f"minilm, {rows}" for rows in LENGTHS), "deberta, IMDB, 16 rows"]
KERNELS = ("linear", "disentangled")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--cases", nargs="*", default=[f"minilm, {name}" for name in LENGTHS] + ["deberta, IMDB, 16 rows"]
    )
    options = parser.parse_args()
    print("\n".join([*machine_lines(), f"- {options.layers} layers, {options.rounds} rounds", ""]))
    print("| model, rows | off | calls | CPU s | ratio to all on |\n| --- | --- | --- | --- | --- |")
    for case in options.cases:
        kind, _, rows = case.partition(", ")
        sides = [(), *((name,) for name in KERNELS if kind == "deberta" or name != "disentangled"), KERNELS]
        for line in _measured(case, _model(kind, options.layers), LENGTHS[rows], sides, options.rounds):
            print(line, flush=True)


def _measured(
    case: str, model: TaskModel, lengths: Callable[[], list[int]], sides: list[tuple[str, ...]], num_rounds: int
) -> Iterator[str]:
    seconds: dict[tuple[str, ...], list[float]] = {side: [] for side in sides}
    calls: dict[tuple[str, ...], int] = dict.fromkeys(sides, 0)
    for number in range(num_rounds + 1):
        rows = lengths()
        for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
            is_packed = model.packed_readers == () or "disentangled" not in side
            batches = _batches("packed" if is_packed else "bucketed", rows)
            with _off(side) as count:
                begin = time.process_time()
                for batch in batches:
                    model.loss_sum(model(batch), batch).backward()
                end = time.process_time()
            model.zero_grad()
            if number:  # the first round is warm-up
                seconds[side].append(end - begin)
                calls[side] = count[0]
    for side, cpu_s in seconds.items():
        ratios = [one / other for one, other in zip(cpu_s, seconds[()], strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        name = "none" if not side else "all" if len(side) > 1 else side[0]
        yield f"| {case} | {name} | {calls[side]} | {statistics.median(cpu_s):.3f} | {spread} |"


@contextmanager
def _off(kernels: tuple[str, ...]) -> Iterator[list[int]]:
    """Switch kernels off, and count the calls that would have used them."""
    count = [0]

    def plain(layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return nn.Linear.forward(layer, input)

    with ExitStack() as stack:
        if "linear" in kernels:
            stack.enter_context(mock.patch.object(OneDnnLinear, "forward", plain))
        yield count


def _model(kind: str, num_layers: int) -> TaskModel:
    torch.manual_seed(0)
    heads = {"num_hidden_layers": num_layers, "num_attention_heads": 6 if kind == "deberta" else 12}
    hf: Any = (
        DebertaV2ForSequenceClassification(DebertaV2Config(**WIDTH, **heads, **DEBERTA))
        if kind == "deberta"
        else BertForSequenceClassification(BertConfig(**WIDTH, **heads))
    )
    model = TaskModel(hf, "classification")
    use_cheap_dropout(model)
    use_onednn(model)
    enable_packed_batches(model)
    assert model.entry is not None, model.why_padded
    return model.train()


def _lognormal(num_rows: int, median: int, sigma: float, longest: int) -> list[int]:
    lengths: list[int] = (median * torch.exp(sigma * torch.randn(num_rows))).long().clamp(4, longest).tolist()
    return lengths


if __name__ == "__main__":
    main()
