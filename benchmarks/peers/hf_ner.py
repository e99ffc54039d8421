"""Train token classification with Trainer as its run_ner example does: the peer of paratune in `ner.py`.

Nothing of paratune is imported here: training by transformers, scores by seqeval.
Usage: python hf_ner.py SETTINGS.json, as written by ner.py; the result is one JSON object on the last line.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from seqeval import metrics
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Train for all epochs, and score the test set with the last model."""
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    labels = settings["labels"]
    parts = {split: _read(path, tokenizer, labels, settings) for split, path in settings["files"].items()}
    set_seed(settings["seed"])  # before the model is created: the new head depends on the seed
    model = AutoModelForTokenClassification.from_pretrained(
        settings["model"], num_labels=len(labels), id2label=dict(enumerate(labels)), use_safetensors=True
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=settings["epochs"],
            learning_rate=settings["learning_rate"],
            per_device_train_batch_size=settings["batch"],
            per_device_eval_batch_size=64,
            weight_decay=settings["weight_decay"],
            warmup_steps=settings["warmup_steps"],
            seed=settings["seed"],
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        collator = DataCollatorForTokenClassification(tokenizer)
        trainer = Trainer(model=model, args=arguments, train_dataset=parts["train"], data_collator=collator)
        begin = time.perf_counter()
        trainer.train()
        train_s = time.perf_counter() - begin
        prediction = trainer.predict(parts["test"])
    pairs = [
        [(labels[label], labels[place]) for label, place in zip(row, predicted, strict=True) if label >= 0]
        for row, predicted in zip(prediction.label_ids, prediction.predictions.argmax(-1), strict=True)
    ]
    true, predicted = ([[pair[side] for pair in row] for row in pairs] for side in (0, 1))
    return {
        "num_steps": trainer.state.global_step,
        "train_s": train_s,
        "scores": {
            "f1": float(metrics.f1_score(true, predicted)),
            "accuracy": float(metrics.accuracy_score(true, predicted)),
            "loss": float(prediction.metrics["test_loss"]),
        },
    }


def _read(path: str, tokenizer: Any, labels: list[str], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sentences of a CoNLL file as tokens, with the label of a word at its first token."""
    rows = []
    for block in Path(path).read_text(encoding="utf-8").strip().split("\n\n"):
        words, tags = zip(*(line.split() for line in block.split("\n")), strict=True)
        encoded = tokenizer(list(words), is_split_into_words=True, truncation=True, max_length=settings["max_length"])
        before, of_tokens = None, []
        for word in encoded.word_ids():
            of_tokens.append(labels.index(tags[word]) if word is not None and word != before else -100)
            before = word
        rows.append({**encoded, "labels": of_tokens})
    return rows


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
