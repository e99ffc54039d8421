"""Hugging Face Trainer on the same rows, for the speed part. It uses nothing of paratune's training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

OnStep = Callable[[int], None]


class Rows(Dataset[dict[str, Any]]):
    """Tokenized rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def train_with_trainer(
    file: Path,
    model_folder: Path,
    *,
    kind: str,
    max_length: int,
    batch_size: int,
    num_steps: int,
    grouped: bool,
    on_gpu: bool,
    folder: Path,
    on_step: OnStep,
) -> None:
    """Train a model with new weights.

    Args:
        file: JSON lines, the same as for paratune.
        model_folder: Configuration and tokenizer.
        kind: classification, qa or mlm.
        max_length: Tokens of the longest row.
        batch_size: Rows of a step.
        num_steps: Steps.
        grouped: Batches of rows of similar length, padded to their longest, and fused AdamW: Trainer's fastest options.
            Otherwise padded to `max_length`, with the defaults of TrainingArguments.
        on_gpu: In bf16 on a GPU, otherwise on the CPU.
        folder: Output folder of Trainer.
        on_step: Called with the number of each step.
    """
    import transformers
    from transformers import AutoConfig, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            on_step(state.global_step)

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    rows = _tokenized(file, tokenizer, kind, max_length, padded=not grouped)
    classes = {"classification": "SequenceClassification", "qa": "QuestionAnswering", "mlm": "MaskedLM"}
    model_class = getattr(transformers, f"AutoModelFor{classes[kind]}")
    best = {"optim": "adamw_torch_fused", "train_sampling_strategy": "group_by_length"} if grouped else {}
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=num_steps,
        per_device_train_batch_size=batch_size,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **best,
    )
    trainer = Trainer(
        model=model_class.from_config(AutoConfig.from_pretrained(model_folder)),
        args=arguments,
        train_dataset=Rows(rows),
        data_collator=_collator(kind, tokenizer),
        processing_class=tokenizer,
        callbacks=[Watch()],
    )
    trainer.train()


def _collator(kind: str, tokenizer: Any) -> Any:
    from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

    if kind == "mlm":
        return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    return DataCollatorWithPadding(tokenizer)


def _tokenized(file: Path, tokenizer: Any, kind: str, max_length: int, *, padded: bool) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    options: dict[str, Any] = {"truncation": True, "max_length": max_length}
    if padded:
        options["padding"] = "max_length"
    if kind == "qa":
        return [_answered(row, tokenizer, {**options, "truncation": "only_second"}) for row in rows]
    pairs = [rows_["pair"] for rows_ in rows] if rows[0]["pair"] else None
    encoded = tokenizer([row["text"] for row in rows], pairs, **options)
    keys = list(encoded)
    made = [dict(zip(keys, values, strict=True)) for values in zip(*encoded.values(), strict=True)]
    return [row if kind == "mlm" else {**row, "labels": label["label"]} for row, label in zip(made, rows, strict=True)]


def _answered(row: dict[str, Any], tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the first window of a question and its context; an answer outside it is token 0."""
    encoded = tokenizer(row["question"], row["context"], return_offsets_mapping=True, **options)
    begin = row["answers"]["answer_start"][0]
    parts = encoded.sequence_ids()
    inside = [n for n, at in enumerate(encoded.pop("offset_mapping")) if parts[n] == 1 and at[0] <= begin < at[1]]
    place = inside[0] if inside else 0
    return {**dict(encoded), "start_positions": place, "end_positions": place}


def step_marks(on_gpu: bool) -> tuple[OnStep, list[Any]]:
    """Return a callback that records the end of each step without waiting, and its records."""
    import time

    marks: list[Any] = []

    def on_step(_step: int) -> None:
        if not on_gpu:
            marks.append(time.perf_counter())
            return
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)

    return on_step, marks
