"""Fine-tune one data set with Hugging Face Trainer: the peer of paratune in `quality.py`.

Nothing of paratune is imported here: data by pyarrow, scores by scikit-learn, training by transformers.
Usage: python hf_trainer.py SETTINGS.json, as written by quality.py; the result is one JSON object on the last line.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, root_mean_squared_error
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Train, load the best epoch, and score validation and test."""
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    parts = {split: _read(settings, split, tokenizer) for split in settings["files"]}
    arguments = _arguments(settings, num_rows=len(parts["train"]))
    set_seed(settings["seed"])  # before the model is created: the new head depends on the seed
    model = AutoModelForSequenceClassification.from_pretrained(
        settings["model"],
        num_labels=settings["num_labels"],
        problem_type="regression" if settings["num_labels"] == 1 else "single_label_classification",
        use_safetensors=True,
    )
    if settings["adapter"] is not None:
        model = _with_adapter(model, settings["adapter"])
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=_regression if settings["num_labels"] == 1 else _classification,
    )
    begin = time.perf_counter()
    trainer.train()
    train_s = time.perf_counter() - begin
    return {
        "num_steps": trainer.state.global_step,
        "num_train_tokens": sum(len(row["input_ids"]) for row in parts["train"]),
        "train_and_evaluate_s": train_s,
        "best_step": trainer.state.best_global_step,
        "scores": {split: _plain(trainer.predict(parts[split]).metrics) for split in parts if split != "train"},
    }


def _with_adapter(model: Any, adapter: dict[str, float]) -> Any:
    from peft import LoraConfig, get_peft_model

    options = LoraConfig(
        task_type="SEQ_CLS", r=adapter["rank"], lora_alpha=adapter["alpha"], lora_dropout=adapter["dropout"]
    )
    return get_peft_model(model, options)


def _read(settings: dict[str, Any], split: str, tokenizer: Any) -> list[dict[str, Any]]:
    columns = settings["columns"]
    table = pq.read_table(settings["files"][split])
    texts = [table[columns["text"]].to_pylist()]
    if "text_pair" in columns:
        texts.append(table[columns["text_pair"]].to_pylist())
    encoded = tokenizer(*texts, truncation=settings["truncation"], max_length=settings["max_length"])
    labels = table[columns["label"]].to_pylist()
    return [{**{key: encoded[key][row] for key in encoded}, "label": label} for row, label in enumerate(labels)]


def _arguments(settings: dict[str, Any], num_rows: int) -> TrainingArguments:
    steps_per_epoch = math.ceil(num_rows / settings["batch_size"])
    return TrainingArguments(
        output_dir=settings["folder"],
        seed=settings["seed"],
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch_size"],
        per_device_eval_batch_size=32,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(settings["warmup_ratio"] * steps_per_epoch * settings["epochs"]),
        optim="adamw_torch_fused",
        bf16=settings["precision"] == "bf16",
        use_cpu=not torch.cuda.is_available(),
        weight_decay=settings["weight_decay"],
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_only_model=True,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=settings["best"],
        greater_is_better=settings["best"] in ("accuracy", "pearson"),
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
    )


def _classification(prediction: Any) -> dict[str, float]:
    chosen = prediction.predictions.argmax(axis=1)
    return {
        "accuracy": float(accuracy_score(prediction.label_ids, chosen)),
        "f1": float(f1_score(prediction.label_ids, chosen)),  # of the second class
    }


def _regression(prediction: Any) -> dict[str, float]:
    predicted = prediction.predictions.squeeze(-1)
    return {
        "rmse": float(root_mean_squared_error(prediction.label_ids, predicted)),
        "mae": float(mean_absolute_error(prediction.label_ids, predicted)),
        "pearson": float(pearsonr(prediction.label_ids, predicted).statistic),
        "spearman": float(spearmanr(prediction.label_ids, predicted).statistic),
    }


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    names = ("loss", "accuracy", "f1", "rmse", "mae", "pearson", "spearman")
    return {name: metrics[f"test_{name}"] for name in names if f"test_{name}" in metrics}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
