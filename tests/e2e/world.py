"""The small data files for the tests of this folder."""

import csv
import random
from pathlib import Path

GOOD, BAD = ["good", "fine", "great", "nice"], ["bad", "poor", "awful", "ugly"]
OTHER = ["the", "film", "is", "very", "story", "was", "really", "it"]

CONFIG = """\
task: {kind: classification, labels: [negative, positive]}
data:
  train: data.csv
  columns: {text: text, label: label, id: id}
  split: {validation: 0.2, stratify: true}
model: {name: model}
train: {epochs: 3, learning_rate: 3e-3}
batch: {global: 16}
evaluate: {best: accuracy}
checkpoint: {every: steps, steps: 4}
measure: {log_every: 3}
"""
"""30 steps of 16 samples, 10 per epoch; a checkpoint every 4 steps, an evaluation every 10."""

REGRESSION = (
    *("--set", "task=regression", "--set", "data.columns.label=score"),
    *("--set", "data.split.stratify=false", "--set", "evaluate.best=rmse"),
)
"""Changes `CONFIG` to a regression on the column `score`."""


def write_data(path: Path, num_rows: int = 200, seed: int = 0) -> None:
    """Write sentences of 4 to 8 words; two of them determine the label, and the score up to noise."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label", "score"])
        for number in range(num_rows):
            is_good = number % 2
            words = draw.sample(OTHER, draw.randint(2, 6)) + draw.sample(GOOD if is_good else BAD, 2)
            draw.shuffle(words)
            label = ["negative", "positive"][is_good]
            writer.writerow([f"row{number}", " ".join(words), label, round(2 * is_good - 1 + draw.random() / 10, 4)])


def rows_of(path: Path) -> list[str]:
    """Return the lines of a file without line ends."""
    return path.read_text(encoding="utf-8").splitlines()
