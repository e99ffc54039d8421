"""Train or evaluate with Hugging Face Trainer, and print the time of the steps: the peer of `speed.py`.

Nothing of paratune is imported here. Usage: python hf_trainer_speed.py SETTINGS.json, as written by speed.py, or one
such path a line on stdin; the result is one JSON object on the last line. `side` is one of:

- padded: as published studies run it: tokenized with padding to the maximum, with the defaults of TrainingArguments.
- grouped: Trainer at its best on a CPU: batches of rows of similar length (the file is in the order of
  LengthGroupedSampler and read in that order), padded to the longest row of the batch, fused AdamW.
- padding-free: Trainer at its best on a GPU: batches without padding for FlashAttention, fused AdamW (padding_free.py).

Question answering is cut and labelled as in transformers' run_qa.py, masked LM as in run_mlm.py.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import padding_free
import pyarrow.parquet as pq
import torch
from step_watch import NUM_PROFILED, StepWatch, now
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

MODELS = {
    "classification": AutoModelForSequenceClassification,
    "qa": AutoModelForQuestionAnswering,
    "mlm": AutoModelForMaskedLM,
}


class Watch(TrainerCallback):  # type: ignore[misc]
    """Reports the end of each step to the watch."""

    def __init__(self, watch: StepWatch) -> None:
        self.watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch.after_step(state.global_step)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Run, and return times and facts of the run."""
    logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(settings["model_folder"])
    rows = _rows(settings, tokenizer)
    arguments = _arguments(settings)
    set_seed(settings["seed"])
    model = MODELS[settings["kind"]].from_pretrained(settings["model_folder"])
    if settings["side"] == "padding-free":
        padding_free.make_padding_free(model, settings["kind"], on_gpu=torch.cuda.is_available())
    watch = StepWatch(settings["num_warmup_steps"], settings["num_steps"])
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=_collator(settings, tokenizer),
        callbacks=[Watch(watch)],
    )
    if settings["evaluates"]:
        trainer.evaluate(rows[: settings["batch_size"]])  # warm-up
        begin = now()
        trainer.evaluate(rows)
        watch.times = {"cpu_s": now()[0] - begin[0], "wall_s": now()[1] - begin[1]}
    else:
        trainer.train()
    return {
        **watch.times,
        "dropout": [model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob],
        "optimizer": str(arguments.optim),
        "attention": model.config._attn_implementation,
        "num_rows": len(rows),
    }


def _arguments(settings: dict[str, Any]) -> TrainingArguments:
    on_gpu = torch.cuda.is_available()
    best = {
        "grouped": {"optim": "adamw_torch_fused", "train_sampling_strategy": "sequential"},
        "padding-free": padding_free.ARGUMENTS,
    }
    return TrainingArguments(
        output_dir=settings["folder"],
        max_steps=settings["num_warmup_steps"] + settings["num_steps"] + (NUM_PROFILED if on_gpu else 0),
        per_device_train_batch_size=settings["batch_size"],
        per_device_eval_batch_size=settings["batch_size"],
        bf16=settings["precision"] == "bf16",
        seed=settings["seed"],
        use_cpu=not on_gpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **best.get(settings["side"], {}),
    )


def _collator(settings: dict[str, Any], tokenizer: Any) -> Any:
    """Return the collator; None for Trainer's default, when all rows have one length."""
    if settings["side"] == "padding-free":
        return padding_free.FlatCollator(settings["kind"], tokenizer)
    if settings["kind"] == "mlm":
        return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    return DataCollatorWithPadding(tokenizer) if settings["side"] == "grouped" else None


def _rows(settings: dict[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    table = pq.read_table(settings["file"])
    padding = {"padding": "max_length"} if settings["side"] == "padded" else {}
    options = {"truncation": True, "max_length": settings["max_length"], **padding}
    if settings["kind"] == "mlm":
        return _lines(table, tokenizer, options, settings["columns"]["text"])
    if settings["kind"] == "qa":
        return _answered(table, tokenizer, {**options, "truncation": "only_second", "stride": settings["stride"]})
    columns = settings["columns"]
    texts = [table[columns[key]].to_pylist() for key in ("text", "text_pair") if key in columns]
    return _by_row({**tokenizer(*texts, **options), "labels": table[columns["label"]].to_pylist()})


def _lines(table: Any, tokenizer: Any, options: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """Make a window of each document, as run_mlm.py does with --line_by_line."""
    return _by_row(tokenizer(table[column].to_pylist(), return_special_tokens_mask=True, **options))


def _answered(table: Any, tokenizer: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut windows with a stride, label those without the answer with [CLS]."""
    answers = table["answers"].to_pylist()
    returned = {"return_overflowing_tokens": True, "return_offsets_mapping": True}
    encoded = tokenizer(table["question"].to_pylist(), table["context"].to_pylist(), **options, **returned)
    begins, ends = [], []
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
        begins.append(begin)
        ends.append(end)
    inputs = {key: encoded[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    return _by_row({**inputs, "start_positions": begins, "end_positions": ends})


def _by_row(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


if __name__ == "__main__":
    for path in sys.argv[1:] or map(str.strip, sys.stdin):
        print(json.dumps(main(json.loads(Path(path).read_text(encoding="utf-8")))), flush=True)
