"""Speed of DeBERTa-v3 by layout: forward and backward of training, padded, bucketed and packed, on one CPU core.

    OMP_NUM_THREADS=1 python benchmarks/disentangled.py

Random weights of the width of deberta-v3-xsmall (384, 6 heads, shared projections, 256 buckets), fp32, dropout 0.1 as
`paratune train` draws it. Steps of 16 rows whose lengths are lognormal, with the median and the mean of IMDB's reviews
before truncation at 512. Sides take turns on the same rows; CPU seconds of a step, median (range).
"""

import argparse
import statistics
import time
from typing import Any

import torch
from machine import machine_lines

from paratune.batch import Batch
from paratune.batch.packing import pack

SIDES = ("padded", "bucketed", "packed")
MEDIAN, SIGMA, LONGEST = 233, 0.78, 512
"""A lognormal's mean is median * exp(sigma^2 / 2): 233 * 1.356 = 316."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = _model(options.layers)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    computed: dict[str, int] = dict.fromkeys(SIDES, 0)
    for number in range(options.steps + 1):
        lengths = (MEDIAN * torch.exp(SIGMA * torch.randn(options.rows))).long().clamp(8, LONGEST).tolist()
        for side in SIDES[number % 3 :] + SIDES[: number % 3]:
            batches = _batches(side, lengths)
            begin = time.process_time()
            for batch in batches:
                model.loss_sum(model(batch), batch).backward()
            if number:  # the first step is warm-up
                seconds[side].append(time.process_time() - begin)
                computed[side] += sum(batch.num_padded_tokens for batch in batches)
            model.zero_grad()
    print("\n".join([*machine_lines(), f"- {options.layers} layers, {options.steps} steps of {options.rows} rows", ""]))
    print("| side | tokens computed | CPU s a step | times as fast as padded |\n| --- | --- | --- | --- |")
    for side, cpu_s in seconds.items():
        middle = statistics.median(cpu_s)
        ratio = statistics.median(one / other for one, other in zip(seconds["padded"], cpu_s, strict=True))
        print(f"| {side} | {computed[side]} | {middle:.2f} ({min(cpu_s):.2f} to {max(cpu_s):.2f}) | {ratio:.2f} |")


def _model(num_layers: int) -> Any:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    from paratune.models.dropout import use_cheap_dropout
    from paratune.models.linear import use_onednn
    from paratune.models.packed import enable_packed_batches
    from paratune.models.task_model import TaskModel

    config = DebertaV2Config(
        vocab_size=8000,
        hidden_size=384,
        num_hidden_layers=num_layers,
        num_attention_heads=6,
        intermediate_size=1536,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
    )
    model = TaskModel(DebertaV2ForSequenceClassification(config), "classification")
    use_cheap_dropout(model)
    use_onednn(model)
    enable_packed_batches(model)
    assert model.entry is not None, model.why_padded
    return model.train()


def _batches(side: str, lengths: list[int]) -> list[Batch]:
    """Return the micro-batches of a step: bucketed into four parts, as on the CPU."""
    if side != "bucketed":
        batch = _batch(lengths)
        return [pack(batch) if side == "packed" else batch]
    ordered, size = sorted(lengths, reverse=True), -(-len(lengths) // 4)
    return [_batch(ordered[start : start + size]) for start in range(0, len(ordered), size)]


def _batch(lengths: list[int]) -> Batch:
    mask_BS = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return Batch(
        input_ids=torch.randint(1, 8000, mask_BS.shape) * mask_BS,
        row_weight=torch.ones(len(lengths)),
        index=torch.arange(len(lengths)),
        num_samples=len(lengths),
        num_tokens=sum(lengths),
        num_padded_tokens=mask_BS.numel(),
        loss_denominator=float(len(lengths)),
        attention_mask=mask_BS,
        max_seqlen=max(lengths),
        labels=torch.zeros(len(lengths), dtype=torch.long),
    )


if __name__ == "__main__":
    main()
