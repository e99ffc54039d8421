"""Train a sequence classifier with Hugging Face Trainer: a peer of `loop_cost.py`. Imports nothing of paratune.

Usage: python hf_trainer_tiny.py FOLDER NUM_STEPS. FOLDER holds model and tokenizer (`model`) and `rows.json`. Rows are
tokenized before, batches padded to their longest row; the optimizer is the fused AdamW, clipping to 1 is the default.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


def main(folder: Path, num_steps: int, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train `num_steps` steps."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    tokenized = [{**tokenizer(row["text"]), "labels": row["label"]} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=num_steps,
        per_device_train_batch_size=8,
        learning_rate=1e-4,
        weight_decay=0.01,
        optim="adamw_torch_fused",
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(folder / "model"),
        args=arguments,
        train_dataset=tokenized,  # type: ignore[arg-type]
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=list(callbacks),
    ).train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
