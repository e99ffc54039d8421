"""Distil a classification with Hugging Face Trainer: the peer of paratune in `distil.py`.

The loss is that of the distillation example of transformers (run_squad_w_distillation.py), for one label of each text.
Nothing of paratune is imported here.

Usage: python hf_distil.py SETTINGS.json; the result is one JSON object on the last line.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from sklearn.metrics import accuracy_score
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Distiller(Trainer):
    """A Trainer whose loss also has the divergence from a teacher."""

    def __init__(self, *args: Any, teacher: nn.Module, temperature: float, weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._teacher, self._temperature, self._weight = teacher.eval(), temperature, weight

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """Return the weighted sum of both losses."""
        outputs = model(**inputs)
        with torch.no_grad():
            teacher = self._teacher(**inputs).logits
        divergence = nn.KLDivLoss(reduction="batchmean")(
            functional.log_softmax(outputs.logits / self._temperature, dim=-1),
            functional.softmax(teacher / self._temperature, dim=-1),
        ) * (self._temperature**2)
        loss = self._weight * divergence + (1 - self._weight) * outputs.loss
        return (loss, outputs) if return_outputs else loss


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Train a model with some of the layers, and score the test rows."""
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    parts = {split: _read(settings["files"][split], settings, tokenizer) for split in ("train", "test")}
    set_seed(settings["seed"])  # before the model is created: the new head depends on the seed
    model = AutoModelForSequenceClassification.from_pretrained(settings["model"], num_labels=2, use_safetensors=True)
    layers = model.bert.encoder.layer
    model.bert.encoder.layer = nn.ModuleList(layers[number] for number in settings["keep_layers"])
    model.config.num_hidden_layers = len(settings["keep_layers"])
    trainer = Distiller(
        model=model,
        args=TrainingArguments(
            output_dir=settings["folder"],
            seed=settings["seed"],
            num_train_epochs=settings["epochs"],
            per_device_train_batch_size=settings["batch_size"],
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="linear",
            warmup_steps=settings["warmup_steps"],
            optim="adamw_torch_fused",
            weight_decay=settings["weight_decay"],
            use_cpu=True,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=parts["train"],
        data_collator=DataCollatorWithPadding(tokenizer),
        teacher=AutoModelForSequenceClassification.from_pretrained(settings["teacher"], use_safetensors=True),
        temperature=settings["temperature"],
        weight=settings["weight"],
    )
    begin = time.process_time()
    trainer.train()
    train_cpu_s = time.process_time() - begin
    prediction = trainer.predict(parts["test"])
    accuracy = accuracy_score(prediction.label_ids, prediction.predictions.argmax(axis=1))
    return {"accuracy": float(accuracy), "train_cpu_s": train_cpu_s, "num_steps": trainer.state.global_step}


def _read(file: str, settings: dict[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    table = pq.read_table(file)
    encoded = tokenizer(table["sentence"].to_pylist(), truncation=True, max_length=settings["max_length"])
    labels = [settings["labels"].index(label) for label in table["label"].to_pylist()]
    return [{**{key: encoded[key][row] for key in encoded}, "label": label} for row, label in enumerate(labels)]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
