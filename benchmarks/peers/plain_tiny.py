"""Train a sequence classifier with a hand-written loop: a peer of `loop_cost.py`. Imports nothing of paratune.

Usage: python plain_tiny.py FOLDER NUM_STEPS padded|packed. FOLDER holds model and tokenizer (`model`) and `rows.json`.

All batches are made before the first step and kept in a list, so that getting a batch costs nothing. They are padded to
their longest row, or packed: one row of all tokens, positions that restart, and a mask (1, 1, T, T) that limits each
token to its row. The loop is PlainLoop: fused AdamW, a learning rate from a LambdaLR, clipping to a norm of 1.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from plain_loop import PlainLoop
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BATCH_SIZE = 8


class Packed(nn.Module):
    """BERT's classifier on a packed batch: the pooler and the head get the first token of each row."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, first_tokens: Tensor, labels: Tensor, **inputs: Tensor) -> Any:
        """Return an object with the mean loss over the rows."""
        hidden_TD = self.hf.bert(**inputs).last_hidden_state[0]
        pooled_BD = self.hf.bert.pooler(hidden_TD[first_tokens].unsqueeze(1))
        logits_BC = self.hf.classifier(self.hf.dropout(pooled_BD))
        return type("Output", (), {"loss": nn.functional.cross_entropy(logits_BC, labels)})


def main(folder: Path, num_steps: int, layout: str, make: type[PlainLoop] = PlainLoop) -> None:
    """Train `num_steps` steps; `make` is the loop's class."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    torch.manual_seed(1)
    order = torch.randperm(len(rows)).tolist()
    chosen = [[rows[at] for at in order[start : start + BATCH_SIZE]] for start in range(0, len(rows), BATCH_SIZE)]
    batches = [padded(part, tokenizer) for part in chosen]
    model: nn.Module = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    if layout == "packed":
        batches, model = [packed(batch) for batch in batches], Packed(model)
    loop = make(model, learning_rate=1e-4, weight_decay=0.01)
    loop.run(itertools.islice(itertools.cycle(batches), num_steps))


def padded(rows: list[dict[str, Any]], tokenizer: Any) -> dict[str, Tensor]:
    """Return a batch padded to its longest row, with `labels`."""
    batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    return {**batch, "labels": torch.tensor([row["label"] for row in rows])}


def packed(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a padded batch as one row without padding."""
    mask_BS = batch["attention_mask"].bool()
    row_T = torch.arange(len(mask_BS))[:, None].expand_as(mask_BS)[mask_BS]
    position_T = torch.arange(mask_BS.shape[1]).expand_as(mask_BS)[mask_BS]
    return {
        "input_ids": batch["input_ids"][mask_BS][None],
        "token_type_ids": batch["token_type_ids"][mask_BS][None],
        "position_ids": position_T[None],
        "attention_mask": (row_T[:, None] == row_T)[None, None],
        "first_tokens": (position_T == 0).nonzero().squeeze(1),
        "labels": batch["labels"],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
