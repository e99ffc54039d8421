"""The folders of the trials: tiny models with random weights, small files, and a configuration that takes seconds."""

import csv
import json
import random
import shutil
from pathlib import Path

from archive import page, write_warc
from tiny import WORDS, tiny_config, tiny_masked_lm, tiny_model, tiny_tokenizer
from tiny_questions import tiny_qa_model, write_squad

GOOD, BAD = ["good", "fine", "great", "nice"], ["bad", "poor", "awful", "ugly"]
OTHER = ["the", "film", "is", "very", "story", "was", "really", "it"]
COMMON = """\
model: {name: model}
train: {epochs: 2, learning_rate: 3e-3}
batch: {global: 16}
checkpoint: {every: steps, steps: 3}
measure: {log_every: 1}
device: cpu
"""
"""6 steps per epoch of 96 rows; checkpoints after steps 3, 6, 9 and 12."""
SENTENCES = """\
task: {kind: classification, labels: [negative, positive]}
data:
  train: data.csv
  columns: {text: text, label: label, id: id}
  split: {validation: 0.2, stratify: true}
  predict: {new: new.csv}
evaluate: {every: steps, steps: 5, best: accuracy}
"""


def sentences(folder: Path) -> None:
    """Write a model of two classes, its data and c.yaml."""
    tiny_model(folder / "model")
    _write_rows(folder)
    (folder / "c.yaml").write_text(SENTENCES + COMMON)


def regression(folder: Path) -> None:
    tiny_model(folder / "model")
    _write_rows(folder)
    task = SENTENCES.replace("task: {kind: classification, labels: [negative, positive]}", "task: regression")
    task = task.replace("label: label", "label: score").replace(", stratify: true", "").replace("accuracy", "rmse")
    (folder / "c.yaml").write_text(task + COMMON)


def pairs(folder: Path) -> None:
    tiny_model(folder / "model", 3)
    _write_rows(folder)
    task = SENTENCES.replace(
        "{kind: classification, labels: [negative, positive]}", '{kind: ordinal, labels: ["0", "1", "2"]}'
    )
    task = task.replace("text: text, label: label", "text: text, text_pair: second, label: grade")
    (folder / "c.yaml").write_text(task + COMMON)


def labels(folder: Path) -> None:
    tiny_model(folder / "model", 3)
    _write_rows(folder)
    task = SENTENCES.replace(
        "{kind: classification, labels: [negative, positive]}", "{kind: multi_label, labels: [a, b, c]}"
    )
    task = task.replace("label: label", "label: set").replace(", stratify: true", "").replace("accuracy", "f1_micro")
    (folder / "c.yaml").write_text(task + COMMON)


def questions(folder: Path) -> None:
    tiny_qa_model(tiny_config()).save_pretrained(folder / "model")
    tiny_tokenizer(folder / "model")
    for seed, (name, number) in enumerate({"a": 60, "b": 20}.items()):
        write_squad(folder / f"{name}.json", number, seed=seed)
    data = "task: {kind: qa, stride: 8}\ndata: {train: a.json, validation: b.json, max_length: 24}\n"
    (folder / "c.yaml").write_text(data + "evaluate: {every: steps, steps: 5, best: loss}\n" + COMMON)


def masked(folder: Path) -> None:
    tiny_masked_lm(folder / "model", dropout=0.1)
    draw = random.Random(5)
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(150)]
    (folder / "texts.txt").write_text("\n".join(lines[:120]) + "\n")
    (folder / "other.txt").write_text("\n".join(lines[120:]) + "\n")
    data = "task: {kind: mlm}\ndata: {train: texts.txt, validation: other.txt, columns: {text: text}, max_length: 16}\n"
    (folder / "c.yaml").write_text(data + "evaluate: {every: steps, steps: 5, best: loss}\n" + COMMON)


def matrix(folder: Path) -> None:
    """Write c.yaml and a matrix of two runs on top of it."""
    sentences(folder)
    base = "name: m\nbase: {extends: c.yaml, train: {epochs: 1}}\n"
    (folder / "m.yaml").write_text(base + "axes: {train.learning_rate: [3e-3, 1e-4]}\n")


def side_by_side(folder: Path) -> None:
    """Write c.yaml and a matrix of four runs on top of it, of which two run at a time."""
    sentences(folder)
    base = "name: m\nbase: {extends: c.yaml, train: {epochs: 1}}\n"
    (folder / "m.yaml").write_text(base + "axes: {train.learning_rate: [3e-3, 1e-4], run.seed: [1, 2]}\n")


def folds(folder: Path) -> None:
    """Write c.yaml and a cross-validation of three folds on top of it."""
    sentences(folder)
    base = "base: {extends: c.yaml, train: {epochs: 1}, data: {split: {validation: null, folds: 3}}}\n"
    (folder / "m.yaml").write_text(f"name: m\n{base}axes: {{data.split.fold: [0, 1, 2]}}\n")


def seeds(folder: Path) -> None:
    """Write c.yaml and a matrix of two learning rates, one of which learns nothing, with at most four seeds."""
    sentences(folder)
    base = "name: m\nbase: {extends: c.yaml, train: {epochs: 1}, data: {predict: {}}}\n"
    (folder / "m.yaml").write_text(f"{base}axes: {{train.learning_rate: [3e-3, 1e-6], run.seed: [1, 2, 3, 4]}}\n")


def own_code(folder: Path) -> None:
    """Write c.yaml with head, loss, metric, optimizer, schedule and callback of a module beside it."""
    sentences(folder)
    shutil.copy(Path(__file__).with_name("own.py"), folder)
    train = "{optimizer: {function: own:Momentum}, schedule: {function: own:steps_down}}"
    metric = "{name: margin, function: own:margin, input: outputs, higher_is_better: true}"
    _extend(
        folder,
        "run: {callbacks: [{function: own:Callback}]}",
        "model: {head: {function: own:Head}}",
        "task: {loss: {function: own:loss}}",
        f"train: {train}",
        f"evaluate: {{metrics: [{metric}]}}",
    )


def embedding(folder: Path) -> None:
    """Write pairs of texts; those of a group are the negatives of each other."""
    sentences(folder)
    task = SENTENCES.replace("{kind: classification, labels: [negative, positive]}", "{kind: embedding, group_size: 8}")
    task = task.replace("label: label", "text_pair: second").replace(", stratify: true", "").replace("accuracy", "mrr")
    (folder / "c.yaml").write_text(task.replace("  predict: {new: new.csv}\n", "") + COMMON)


def windows(folder: Path) -> None:
    """Write c.yaml with windows of four words, to which most texts do not fit."""
    sentences(folder)
    _extend(folder, "task: {windows: {stride: 1, max_windows: 3}}", "data: {max_length: 6}")


def distillation(folder: Path) -> None:
    """Write teacher.yaml, and c.yaml of a student with one layer that learns from it."""
    sentences(folder)
    shutil.copy(folder / "c.yaml", folder / "teacher.yaml")
    _extend(
        folder,
        "model: {keep_layers: [0]}",
        "distil: {teacher: runs/teacher}",
    )


def _extend(folder: Path, *lines: str) -> None:
    """Put further settings on top of c.yaml."""
    (folder / "c.yaml").rename(folder / "base.yaml")
    (folder / "c.yaml").write_text("\n".join(["extends: base.yaml", *lines, ""]))


def corpus(folder: Path) -> None:
    """Write two WARC files of pages, some of them twice, and the configuration of a corpus with all stages."""
    draw = random.Random(6)
    words = ["casa", "cidade", "tempo", "gente", "livro", "noite", "jardim", "escola", "viagem", "mercado"]
    for number in range(2):
        records = []
        for row in range(8):
            text = ". ".join(" ".join(draw.choices(words, k=9)).capitalize() for _ in range(12)) + "."
            body = page(text if row else "O mesmo texto de sempre. " * 12)
            head = [("Content-Type", "text/html; charset=utf-8")]
            records.append((f"http://a.pt/{number}/{row}", f"2005010203{number:02d}{row:02d}", "200 OK", head, body))
        write_warc(folder / f"{number}.warc.gz", records)
    steps = ["language", "variety", "quality", "decontaminate", "personal"]
    settings = {"work": "work", "workers": 1, "rows_per_shard": 5, "index": {"warcs": ["*.warc.gz"]}}
    (folder / "corpus.yaml").write_text(json.dumps({**settings, "clean": {"skip": steps}}))


def _write_rows(folder: Path, num_rows: int = 120, num_new: int = 40) -> None:
    """Write data.csv (id, text, second, label, score, grade, set) and new.csv (id, text, second)."""
    draw = random.Random(4)
    rows = []
    for number in range(num_rows + num_new):
        is_good = number % 2
        words = draw.sample(OTHER, draw.randint(2, 6)) + draw.sample(GOOD if is_good else BAD, 2)
        draw.shuffle(words)
        chosen = "|".join(name for name in "abc" if draw.random() < 0.5)
        score = round(2 * is_good - 1 + draw.random() / 10, 4)
        label = ("negative", "positive")[is_good]
        second = " ".join(draw.sample(OTHER, 3))
        rows.append([f"row{number}", " ".join(words), second, label, score, number % 3, chosen])
    for name, part, width in (("data.csv", rows[:num_rows], 7), ("new.csv", rows[num_rows:], 3)):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text", "second", "label", "score", "grade", "set"][:width])
            writer.writerows(row[:width] for row in part)
