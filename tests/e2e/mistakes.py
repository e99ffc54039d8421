"""53 typical mistakes of users of a Hugging Face Trainer, as data: input, code and values."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CONFIG = """\
task: {kind: classification, labels: [negative, positive]}
data:
  train: data.csv
  columns: {text: text, label: label}
  split: {validation: 0.2}
model: {name: model}
train: {epochs: 1}
batch: {global: 16}
evaluate: {best: accuracy}
device: cpu
"""
TRAIN = ("train", "c.yaml")


def _nothing(folder: Path) -> None:
    return


@dataclass(frozen=True)
class Mistake:
    """A mistake, the code of its error, and the values in the error."""

    name: str
    code: str
    values: tuple[str, ...]
    prepare: Callable[[Path], None] = _nothing
    """Creates the mistake in a folder with c.yaml (`CONFIG`), data.csv and model/."""
    arguments: tuple[str, ...] = TRAIN


def changed(old: str, new: str) -> Callable[[Path], None]:
    """Replace a part of c.yaml."""
    assert old in CONFIG, old

    def write(folder: Path) -> None:
        (folder / "c.yaml").write_text(CONFIG.replace(old, new))

    return write


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Write a file."""

    def write(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def in_data(content: str | bytes) -> Callable[[Path], None]:
    """Write another data.csv."""
    return written("data.csv", content)


def rows(*more: str) -> str:
    """Return a data.csv of 20 correct rows, followed by more rows."""
    good = [f"the film is {('bad', 'good')[row % 2]},{('negative', 'positive')[row % 2]}" for row in range(20)]
    return "\n".join(["text,label", *good, *more]) + "\n"


def model_without(pattern: str) -> Callable[[Path], None]:
    """Remove some files from model/."""

    def remove(folder: Path) -> None:
        source = (folder / "model").resolve()
        (folder / "model").unlink()
        shutil.copytree(source, folder / "model")
        for path in (folder / "model").glob(pattern):
            path.unlink()

    return remove


SETTINGS = json.dumps({"output_dir": "out", "num_train_epochs": 3, "learning_rate": 2e-5})

KEYS = [
    Mistake(
        "key misspelled",
        "config.unknown_key",
        ("learning_rte", "learning_rate"),
        changed("epochs: 1", "epochs: 1, learning_rte: 2e-5"),
    ),
    Mistake(
        "epochs as in Trainer",
        "config.unknown_key",
        ("num_train_epochs", "epochs"),
        changed("epochs: 1", "num_train_epochs: 1"),
    ),
    Mistake(
        "batch as in Trainer",
        "config.unknown_key",
        ("per_device_train_batch_size", "per_device"),
        changed("global: 16", "per_device_train_batch_size: 16"),
    ),
    Mistake(
        "warm-up as in Trainer, elsewhere",
        "config.unknown_key",
        ("warmup_ratio", "train.warmup_ratio"),
        changed("device: cpu", "warmup_ratio: 0.1"),
    ),
    Mistake("section misspelled", "config.unknown_key", ("modle", "model"), changed("model: {name", "modle: {name")),
    Mistake(
        "learning rate outside of train",
        "config.unknown_key",
        ("learning_rate", "train.learning_rate"),
        changed("device: cpu", "learning_rate: 2e-5"),
    ),
    Mistake("fp16 as in Trainer", "config.unknown_key", ("fp16", "precision"), changed("device: cpu", "fp16: true")),
    Mistake(
        "labels of a regression",
        "config.unknown_key",
        ("labels", "regression"),
        changed("kind: classification", "kind: regression"),
    ),
    Mistake(
        "option as a flag",
        "cli.usage",
        ("--weight-decay", "--set train.weight_decay=3"),
        arguments=(*TRAIN, "--weight-decay", "3"),
    ),
    Mistake(
        "option of Trainer as a flag",
        "cli.usage",
        ("--learning_rate", "--set train.learning_rate=2e-5"),
        arguments=(*TRAIN, "--learning_rate", "2e-5"),
    ),
    Mistake(
        "--set without a value", "cli.invalid_value", ("train.epochs",), arguments=(*TRAIN, "--set", "train.epochs")
    ),
]

VALUES = [
    Mistake(
        "words for a number", "config.invalid_value", ("train.epochs", "three"), changed("epochs: 1", "epochs: three")
    ),
    Mistake(
        "negative learning rate",
        "config.invalid_value",
        ("train.learning_rate", "-1"),
        changed("epochs: 1", "epochs: 1, learning_rate: -1"),
    ),
    Mistake("batch of nothing", "config.invalid_value", ("batch.global", "0"), changed("global: 16", "global: 0")),
    Mistake("list for a name", "config.invalid_value", ("model.name",), changed("{name: model}", "{name: [model]}")),
    Mistake(
        "epochs and steps",
        "config.conflict",
        ("train.epochs", "train.max_steps"),
        changed("epochs: 1", "epochs: 1, max_steps: 10"),
    ),
    Mistake(
        "neither epochs nor steps",
        "config.required",
        ("train.epochs", "train.max_steps"),
        changed("epochs: 1", "learning_rate: 2e-5"),
    ),
    Mistake(
        "unknown task",
        "config.unknown_kind",
        ("sentiment", "classification"),
        changed("kind: classification", "kind: sentiment"),
    ),
    Mistake(
        "no task",
        "config.required",
        ("task",),
        changed("task: {kind: classification, labels: [negative, positive]}\n", ""),
    ),
    Mistake("no labels", "config.required", ("task.labels",), changed(", labels: [negative, positive]", "")),
    Mistake("one label", "task.labels", ("positive",), changed("[negative, positive]", "[positive]")),
    Mistake("a label twice", "task.labels", ("positive",), changed("[negative, positive]", "[positive, positive]")),
    Mistake("no model", "config.required", ("model",), changed("model: {name: model}\n", "")),
    Mistake("unknown metric", "metric.unknown", ("bleu", "accuracy"), changed("best: accuracy", "best: bleu")),
    Mistake(
        "best without validation set",
        "data.validation_missing",
        ("evaluate.best",),
        changed("  split: {validation: 0.2}\n", ""),
    ),
    Mistake("unknown precision", "config.invalid_value", ("fp8", "bf16"), changed("device: cpu", "precision: fp8")),
    Mistake(
        "fp16 on a CPU", "precision.needs_gpu", ("fp16", "fp32"), changed("device: cpu", "device: cpu\nprecision: fp16")
    ),
    Mistake("unknown strategy", "config.unknown_kind", ("dpp", "ddp"), changed("device: cpu", "strategy: dpp")),
    Mistake(
        "two processes without ddp", "strategy.too_many_ranks", ("single", "ddp"), arguments=(*TRAIN, "--nproc", "2")
    ),
    Mistake(
        "validation file and split",
        "config.conflict",
        ("data.validation", "data.split.validation"),
        changed("train: data.csv", "train: data.csv\n  validation: v.csv"),
    ),
    Mistake(
        "same file twice",
        "config.conflict",
        ("data.csv",),
        changed("  split: {validation: 0.2}\n", "  validation: data.csv\n"),
    ),
    Mistake(
        "all rows for validation",
        "config.invalid_value",
        ("data.split.validation", "1.0"),
        changed("validation: 0.2", "validation: 1.0"),
    ),
    Mistake("label as text", "config.conflict", ("label",), changed("text: text", "text: label")),
]

FILES = [
    Mistake("no such configuration", "config.file_unreadable", ("d.yaml", "c.yaml"), arguments=("train", "d.yaml")),
    Mistake("tab in YAML", "config.syntax", ("line 2", "spaces"), written("c.yaml", "train:\n\tepochs: 1\n")),
    Mistake(
        "wrong indentation",
        "config.syntax",
        ("line 3",),
        written("c.yaml", "train:\n  epochs: 1\n   learning_rate: 1e-4\n"),
    ),
    Mistake("colon in a value", "config.syntax", ("line 2",), written("c.yaml", "run:\n  name: first: try\n")),
    Mistake(
        "bracket not closed",
        "config.syntax",
        ("line 1",),
        written("c.yaml", "task: {kind: classification, labels: [a, b}\n"),
    ),
    Mistake("key twice", "config.duplicate_key", ("epochs",), changed("epochs: 1", "epochs: 1, epochs: 2")),
    Mistake("empty configuration", "config.syntax", ("c.yaml", "config init"), written("c.yaml", "")),
    Mistake("data as configuration", "config.other_file", ("data.csv", "data.train"), arguments=("train", "data.csv")),
    Mistake(
        "settings of a Trainer as configuration",
        "config.other_file",
        ("c.yaml", "from-trainer"),
        written("c.yaml", SETTINGS),
    ),
    Mistake("missing data file", "data.not_found", ("data.csv",), lambda folder: (folder / "data.csv").unlink()),
    Mistake("missing column", "data.column_missing", ("text", "sentence"), in_data("sentence,label\nx,positive\n")),
    Mistake("unseen label", "data.label_unseen", ("neutral", "row 20"), in_data(rows("a film,neutral"))),
    Mistake(
        "numbers as classes",
        "data.label_unseen",
        ("0.015625", "regression"),
        in_data("text,label\n" + "".join(f"a film,{row / 64}\n" for row in range(64))),
    ),
    Mistake("empty label", "data.value_missing", ("row 20", "data.missing"), in_data(rows("a film,"))),
    Mistake("comma in a text", "data.unreadable", ("line 22", "3 fields"), in_data(rows("good, but long,positive"))),
    Mistake(
        "Cyrillic",
        "data.encoding",
        ("line 22", "0xec"),
        in_data((rows() + "\u043c\u0438\u0440,positive\n").encode("cp1251")),
    ),
]

MODELS = [
    Mistake("no such model folder", "model.not_found", ("./modle",), changed("name: model", "name: ./modle")),
    Mistake("model without tokenizer", "model.files_missing", ("model", "tokenizer.json"), model_without("*token*")),
    Mistake(
        "model without weights", "model.files_missing", ("model", "model.safetensors"), model_without("*.safetensors")
    ),
    Mistake(
        "text longer than the model",
        "data.max_length_unfit",
        ("512", "64"),
        changed("train: data.csv", "train: data.csv\n  max_length: 512"),
    ),
]
MISTAKES = [*KEYS, *VALUES, *FILES, *MODELS]
