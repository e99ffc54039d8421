"""Finished runs for tests of verdicts: a record in memory, and prediction files as docs/reference/records.md says."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from paratune.records.finished import RunRecord
from paratune.records.predictions import write_predictions
from paratune.records.typed import RunFile, Summary

CLASSES = ("negative", "positive")


def fake_run(name, folder=Path("nowhere"), values=None):
    """Return a run with these values, by their path with dots."""
    records = {"run": {}, "summary": {}}
    for path, value in (values or {}).items():
        *keys, last = path.split(".")
        place = records
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = value
    run, summary = RunFile.model_validate(records["run"]), Summary.model_validate(records["summary"])
    return RunRecord(name, folder, run, summary)


def with_noise_scale(group, value, places=None):
    """Return a group in which all runs, or those at these places, have another noise scale."""
    runs = list(group.runs)
    for place in range(len(runs)) if places is None else places:
        noise = runs[place].summary.noise_scale.model_copy(update={"value": value})
        summary = runs[place].summary.model_copy(update={"noise_scale": noise})
        runs[place] = replace(runs[place], summary=summary)
    return replace(group, runs=tuple(runs))


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
    return fake_run(name, folder, found | {key.replace("__", "."): value for key, value in values.items()})


def write_classes(folder, right, labels, split="test", clusters=None):
    """Write predictions of two classes, right where `right` says; return the accuracy."""
    folder.mkdir(parents=True, exist_ok=True)
    names = np.asarray(CLASSES)
    given = np.where(right, labels, 1 - labels)
    columns = {"label": names[labels].tolist(), "prediction": names[given].tolist()}
    write_predictions(folder, split, rows=np.arange(len(labels)), ids=None, columns=columns, clusters=clusters)
    return float(np.mean(right))
