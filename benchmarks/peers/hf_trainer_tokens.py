"""Masked LM and question answering with Hugging Face Trainer: the peer of paratune in `quality_tokens.py`.

Nothing of paratune is imported here. Usage: python hf_trainer_tokens.py SETTINGS.json, as written by quality_tokens.py;
the model is saved in its `folder`. Windows are cut as in transformers' own examples run_mlm.py and run_qa.py.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main(settings: dict[str, Any]) -> None:
    """Train and save."""
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    table = pq.read_table(settings["files"]["train"])
    make, collator, model_class = {
        "mlm": (_windows, DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15), AutoModelForMaskedLM),
        "qa": (_questions, DataCollatorWithPadding(tokenizer), AutoModelForQuestionAnswering),
    }[settings["kind"]]
    rows = make(table, tokenizer, settings)
    set_seed(settings["seed"])  # before the model is created: the new head depends on the seed
    model = model_class.from_pretrained(settings["model"], use_safetensors=True)
    num_steps = math.ceil(len(rows) / settings["batch_size"]) * settings["epochs"]
    arguments = TrainingArguments(
        output_dir=f"{settings['folder']}-trainer",
        seed=settings["seed"],
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(settings["warmup_ratio"] * num_steps),
        optim="adamw_torch_fused",
        bf16=settings["precision"] == "bf16",
        use_cpu=not torch.cuda.is_available(),
        weight_decay=settings["weight_decay"],
        max_grad_norm=1.0,
        save_strategy="no",
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
    trainer.train()
    model.save_pretrained(settings["folder"])
    tokenizer.save_pretrained(settings["folder"])


def _windows(table: Any, tokenizer: Any, settings: dict[str, Any]) -> list[dict[str, list[int]]]:
    """Tokenize and truncate each document, as run_mlm.py does with --line_by_line."""
    texts = table[settings["columns"]["text"]].to_pylist()
    encoded = tokenizer(texts, truncation=True, max_length=settings["max_length"], return_special_tokens_mask=True)
    return [
        {"input_ids": ids, "special_tokens_mask": mask}
        for ids, mask in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
    ]


def _questions(table: Any, tokenizer: Any, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut windows with a stride, label those without the answer with [CLS], as run_qa.py does."""
    answers = table["answers"].to_pylist()
    encoded = tokenizer(
        [question.lstrip() for question in table["question"].to_pylist()],
        table["context"].to_pylist(),
        truncation="only_second",
        max_length=settings["max_length"],
        stride=settings["task"]["stride"],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for number, offsets in enumerate(encoded["offset_mapping"]):
        answer = answers[encoded["overflow_to_sample_mapping"][number]]
        begin = end = 0  # [CLS]
        context = [place for place, part in enumerate(encoded.sequence_ids(number)) if part == 1]
        if answer["text"]:
            first = answer["answer_start"][0]
            last = first + len(answer["text"][0])
            if offsets[context[0]][0] <= first and offsets[context[-1]][1] >= last:
                begin = max(place for place in context if offsets[place][0] <= first)
                end = min(place for place in context if offsets[place][1] >= last)
        inputs = {
            key: encoded[key][number] for key in ("input_ids", "attention_mask", "token_type_ids") if key in encoded
        }
        rows.append({**inputs, "start_positions": begin, "end_positions": end})
    return rows


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
