"""Hugging Face Trainer and packed-encoders on the same rows, for the speed part. They use nothing of paratune."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import Dataset

PEERS = Path(__file__).parents[1] / "peers"
if str(PEERS) not in sys.path:
    sys.path.insert(0, str(PEERS))
OnStep = Callable[[int], None]
Way = Literal["padding-free", "grouped", "padded"]


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
    way: Way,
    on_gpu: bool,
    folder: Path,
    on_step: OnStep,
) -> str:
    """Train a model with new weights; return the name of its attention in transformers.

    Args:
        file: JSON lines, the same as for paratune.
        model_folder: Configuration and tokenizer.
        kind: classification, qa or mlm.
        max_length: Tokens of the longest row.
        batch_size: Rows of a step.
        num_steps: Steps.
        way: padding-free: Trainer at its best on a GPU, with FlashAttention and fused AdamW (peers/padding_free.py).
            grouped: batches of rows of similar length, padded to their longest, and fused AdamW: Trainer at its best
            where there is no FlashAttention. padded: to `max_length`, with the defaults of TrainingArguments.
        on_gpu: In bf16 on a GPU, otherwise on the CPU.
        folder: Output folder of Trainer.
        on_step: Called with the number of each step.
    """
    import padding_free
    import transformers
    from transformers import AutoConfig, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            on_step(state.global_step)

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    rows = _tokenized(file, tokenizer, kind, max_length, padded=way == "padded")
    classes = {"classification": "SequenceClassification", "qa": "QuestionAnswering", "mlm": "MaskedLM"}
    model_class = getattr(transformers, f"AutoModelFor{classes[kind]}")
    options: dict[Way, dict[str, Any]] = {
        "padding-free": padding_free.ARGUMENTS,
        "grouped": {"optim": "adamw_torch_fused", "train_sampling_strategy": "group_by_length"},
        "padded": {},
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=num_steps,
        per_device_train_batch_size=batch_size,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options[way],
    )
    model = model_class.from_config(AutoConfig.from_pretrained(model_folder))
    collator = _collator(kind, tokenizer)
    if way == "padding-free":
        padding_free.make_padding_free(model, kind, on_gpu=on_gpu)
        collator = padding_free.FlatCollator(kind, tokenizer)
        rows = [{key: torch.as_tensor(value) for key, value in row.items()} for row in rows]
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(rows),
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[Watch()],
    )
    trainer.train()
    return str(model.config._attn_implementation)


def _collator(kind: str, tokenizer: Any) -> Any:
    from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

    if kind == "mlm":
        return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    return DataCollatorWithPadding(tokenizer)


def _tokenized(file: Path, tokenizer: Any, kind: str, max_length: int, *, padded: bool) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    options: dict[str, Any] = {
        "truncation": True,
        "max_length": max_length,
        "return_special_tokens_mask": kind == "mlm",
    }
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


def train_with_packed_encoders(
    python: Path,
    file: Path,
    model_folder: Path,
    *,
    max_length: int,
    batch_size: int,
    num_warmup_steps: int,
    num_steps: int,
    on_gpu: bool,
    folder: Path,
    timeout_s: float,
) -> dict[str, Any]:
    """Train a ModernBERT for classification with packed-encoders in its own environment.

    Args:
        python: Python of that environment; see peers/packed_encoders_speed.py.
        file: JSON lines, the same as for paratune.
        model_folder: Configuration and tokenizer.
        max_length: Tokens of the longest row.
        batch_size: Rows of a step.
        num_warmup_steps: Steps before the measured ones.
        num_steps: Measured steps.
        on_gpu: On a CPU the package has no kernels: its own references are called instead.
        folder: Folder for its settings.
        timeout_s: Seconds after which it is killed.

    Returns:
        `step_ms`, a list, `attention`, `versions`, and `peak_bytes` on a GPU.

    Raises:
        RuntimeError: It failed; the message has its last lines.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    rows = _tokenized(file, tokenizer, "classification", max_length, padded=False)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "model_folder": str(model_folder),
        "rows": [[row["input_ids"], row["labels"]] for row in rows],
        "batch_size": batch_size,
        "num_warmup_steps": num_warmup_steps,
        "num_steps": num_steps,
        "device": "cuda" if on_gpu else "cpu",
    }
    path = folder / "packed_encoders.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    command = [str(python), str(PEERS / "packed_encoders_speed.py"), str(path)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if completed.returncode:
        lines = completed.stderr.strip().splitlines()[-8:]
        raise RuntimeError(f"{path.stem} exited with {completed.returncode}: " + " | ".join(lines))
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return result


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
