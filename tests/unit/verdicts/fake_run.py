"""Finished runs for tests of verdicts: a record in memory, and prediction files as docs/reference/records.md says."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paratune.records.predictions import write_predictions

CLASSES = ("negative", "positive")


@dataclass(frozen=True)
class FakeRun:
    """What `paratune.verdicts.rows.ComparedRun` asks for; values by their path with dots."""

    name: str
    folder: Path = Path("nowhere")
    values: dict = field(default_factory=dict)

    def get(self, source):
        return self.values.get(source if isinstance(source, str) else ".".join(source))

    number = get


def make_run(name, seed, samples_per_s, folder=Path("nowhere"), **values):
    """Return a run of a classification with two classes; `values` by path, dots written as two underscores."""
    found = {
        "run.seed": seed,
        "run.task.kind": "classification",
        "run.task.labels": list(CLASSES),
        "run.task.metrics": ["accuracy"],
        "run.batch.global_batch_size": 32,
        "summary.throughput.samples_per_s": samples_per_s,
    }
    return FakeRun(name, folder, found | {key.replace("__", "."): value for key, value in values.items()})


def write_classes(folder, right, labels, split="test", clusters=None):
    """Write predictions of two classes, right where `right` says; return the accuracy."""
    folder.mkdir(parents=True, exist_ok=True)
    names = np.asarray(CLASSES)
    given = np.where(right, labels, 1 - labels)
    columns = {"label": names[labels].tolist(), "prediction": names[given].tolist()}
    write_predictions(folder, split, rows=np.arange(len(labels)), ids=None, columns=columns, clusters=clusters)
    return float(np.mean(right))
