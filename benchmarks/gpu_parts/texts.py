"""Texts, models and configurations of the GPU checks, made from a tokenizer and a fixed seed, without data sets.

Lengths of the texts are drawn from distributions like those of the data sets that they are named after (WordPiece
tokens): IMDB log-normal of median 233 and mean 316, 15% above 512; MRPC pairs normal around 53; SQuAD questions of
about 13 tokens with contexts of median 150; documents for masked LM of median 560.
"""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up

from .setting import Setting

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
"""Width of BERT-base (Devlin et al. 2019)."""
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SEED = 20_261_101


@dataclass(frozen=True)
class Case:
    """A training: its task, longest row and batch."""

    name: str
    kind: str
    """classification, qa or mlm."""
    max_length: int
    batch_size: int
    draw: Callable[[random.Random], tuple[int, int]]
    """Words of the text, and of the second text or 0."""
    model: str = "bert"
    """bert: BERT-base's sizes; modernbert: those of ModernBERT-base."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.max_length} x {self.batch_size}"


def _log_normal(median: float, sigma: float) -> Callable[[random.Random], int]:
    return lambda draw: max(4, round(median * math.exp(sigma * draw.gauss(0, 1))))


def _around(mean: float, deviation: float) -> Callable[[random.Random], int]:
    return lambda draw: max(4, round(draw.gauss(mean, deviation)))


def _one(words: Callable[[random.Random], int]) -> Callable[[random.Random], tuple[int, int]]:
    return lambda draw: (words(draw), 0)


def _two(
    first: Callable[[random.Random], int], second: Callable[[random.Random], int]
) -> Callable[[random.Random], tuple[int, int]]:
    return lambda draw: (first(draw), second(draw))


IMDB = _one(_log_normal(231, 0.78))
CASES = (
    Case("imdb", "classification", 512, 16, IMDB),
    Case("imdb", "classification", 512, 128, IMDB),
    Case("mrpc", "classification", 128, 32, _two(_around(25, 6), _around(25, 6))),
    Case("squad", "qa", 384, 16, _two(_around(11, 3), _log_normal(150, 0.4))),
    Case("mlm", "mlm", 512, 16, _one(_log_normal(560, 0.7))),
)
MODERN = Case("imdb-modernbert", "classification", 512, 16, IMDB, model="modernbert")


def of_setting(case: Case, setting: Setting) -> Case:
    """Return the case, or a small one for a rehearsal."""
    if not setting.tiny:
        return case
    return replace(case, max_length=32, batch_size=min(case.batch_size, 8), draw=lambda draw: _small(case.draw(draw)))


def _small(words: tuple[int, int]) -> tuple[int, int]:
    first, second = words
    return 4 + first % 20, 4 + second % 8 if second else 0


@cache
def words_of(tokenizer: Path) -> tuple[str, ...]:
    """Return the words of a vocabulary that are single tokens, in alphabetical order."""
    from transformers import AutoTokenizer

    vocabulary = AutoTokenizer.from_pretrained(tokenizer).get_vocab()
    return tuple(sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2))


def write_rows(case: Case, setting: Setting, num_rows: int) -> Path:
    """Write rows of a case as JSON lines and return the file; the same rows for the same tokenizer and number."""
    path = setting.folder / f"{case.name}-{num_rows}.jsonl"
    if path.exists():
        return path
    words, draw = words_of(setting.tokenizer), random.Random(f"{SEED} {case.name}")
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_rows):
            file.write(json.dumps(_row(case, words, draw, number)) + "\n")
    return path


def _row(case: Case, words: tuple[str, ...], draw: random.Random, number: int) -> dict[str, Any]:
    first, second = (draw.choices(words, k=count) if count else [] for count in case.draw(draw))
    if case.kind != "qa":
        return {"text": " ".join(first), "pair": " ".join(second), "label": number % 2}
    at = draw.randrange(len(second))
    answer = {"text": [second[at]], "answer_start": [sum(len(word) + 1 for word in second[:at])]}
    return {"id": str(number), "question": " ".join(first), "context": " ".join(second), "answers": answer}


def write_model(setting: Setting, model: str = "bert", **changes: Any) -> Path:
    """Write a folder with the configuration of a model and the tokenizer; training draws the weights at its start."""
    from transformers import AutoTokenizer

    folder = setting.folder / model
    if not (folder / "config.json").exists() or changes:
        tokenizer = AutoTokenizer.from_pretrained(setting.tokenizer)
        tokenizer.model_max_length = 512
        if model == "modernbert":  # without token types, also for paratune, which reads them from the tokenizer
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
        config = modernbert_config(setting, tokenizer) if model == "modernbert" else None
        config = config or bert_config(setting, vocab_size=len(tokenizer), **changes)
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def bert_config(setting: Setting, *, vocab_size: int = 30_522, **changes: Any) -> Any:
    """Return the configuration of BERT-base, or of a small BERT in a rehearsal."""
    from transformers import BertConfig

    return BertConfig(vocab_size=vocab_size, **{**(TINY if setting.tiny else BASE), **changes})


def modernbert_config(setting: Setting, tokenizer: Any) -> Any:
    """Return the configuration of ModernBERT-base with another vocabulary, or of a small one in a rehearsal.

    The small one has both kinds of attention, and a width that packed-encoders supports, a multiple of 256.
    """
    from transformers import ModernBertConfig

    small = {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    special = {**ids, "bos": ids["cls"], "eos": ids["sep"]}
    return ModernBertConfig(
        vocab_size=len(tokenizer),
        **{f"{name}_token_id": number for name, number in special.items()},
        **({**small, "local_attention": 16} if setting.tiny else {}),
    )


TASKS: dict[str, dict[str, Any]] = {
    "classification": {"kind": "classification", "labels": [0, 1]},
    "qa": {"kind": "qa", "stride": 128},
    "mlm": {"kind": "mlm", "windows": "documents"},
}


def write_config(case: Case, setting: Setting, name: str, *, num_rows: int, num_steps: int, **sections: Any) -> Path:
    """Write the configuration of a training and return the file.

    Args:
        case: The training.
        setting: Device and sizes.
        name: Name of the run.
        num_rows: Rows of the file.
        num_steps: Optimizer steps.
        **sections: Sections or single values that replace the defaults.
    """
    columns: dict[str, Any] = {"text": "text"}
    if case.kind == "classification":
        columns |= {"label": "label"} | ({"text_pair": "pair"} if case.draw(random.Random(0))[1] else {})
    task = {**TASKS[case.kind], **({"stride": 8} if case.kind == "qa" and setting.tiny else {})}
    config: dict[str, Any] = {
        "run": {"name": name, "folder": str(setting.folder / "runs")},
        "task": task,
        "data": {
            "train": str(write_rows(case, setting, num_rows)),
            "max_length": case.max_length,
            "cache_dir": str(setting.folder / "tokens"),
        },
        "model": {"name": str(write_model(setting, case.model)), "from_scratch": True},
        "train": {"max_steps": num_steps, "learning_rate": 1e-5},
        "batch": {"global": case.batch_size},
        "evaluate": {"every": "never"},
        "checkpoint": {"every": "never"},
        "measure": {"warmup_steps": 2, "plan": False, "noise_scale_every": None},
        "precision": "bf16" if setting.on_gpu else "fp32",
        "device": setting.device.type,
    }
    if case.kind != "qa":
        config["data"]["columns"] = columns
    for key, value in sections.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    path = setting.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def draw_lengths(case: Case, num_rows: int, *, seed: int = SEED) -> list[int]:
    """Return the token counts of a case's rows, with special tokens, truncated to its longest row."""
    draw = random.Random(seed)
    drawn = (case.draw(draw) for _ in range(num_rows))
    return [min(case.max_length, first + second + (3 if second else 2)) for first, second in drawn]


def packed_batch(lengths: list[int], vocab_size: int, *, seed: int = 0) -> Batch:
    """Return a packed batch for classification on the host, with a rounded number of random tokens."""
    return round_up(pack(padded_batch(lengths, vocab_size, seed=seed)))


def padded_batch(lengths: list[int], vocab_size: int, *, seed: int = 0) -> Batch:
    """Return a padded batch for classification on the host, of random tokens."""
    longest, rows = max(lengths), len(lengths)
    generator = torch.Generator().manual_seed(seed)
    mask_BS = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    ids_BS = torch.randint(5, vocab_size, (rows, longest), generator=generator)
    return Batch(
        input_ids=ids_BS.where(mask_BS > 0, 0),
        row_weight=torch.ones(rows),
        index=torch.arange(rows),
        num_samples=rows,
        num_tokens=sum(lengths),
        num_padded_tokens=rows * longest,
        loss_denominator=float(rows),
        attention_mask=mask_BS,
        token_type_ids=torch.zeros_like(mask_BS),
        max_seqlen=longest,
        labels=torch.arange(rows) % 2,
    )
