"""The files of a finished run, without a training: its record, the predictions of a test set, and a model folder."""

from pathlib import Path
from typing import Any

import numpy as np
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.records import RUN_FILE, SUMMARY_FILE, write_json
from paratune.records.predictions import write_predictions

LABELS = ["no|pe", "<b>yes</b>"]
"""With markup of Markdown and HTML."""
RIGHT = 8
"""Correct predictions of ten."""


def write_finished_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a classification run with data files in `folder`'s parent; return run.json and summary.json."""
    run: dict[str, Any] = {
        **WHOLE_RUN,
        "config": {
            "task": {"kind": "classification", "labels": LABELS},
            "data": {"columns": {"text": "te_xt", "text_pair": None}},
            "model": {"name": str(folder.parent / "base"), "from_scratch": False, "revision": None, "adapter": None},
            "train": {"learning_rate": 3e-5, "freeze": {"blocks": 0, "names": []}, "compile": False},
            "precision": "fp32",
        },
        "task": {"kind": "classification", "labels": LABELS, "metrics": ["accuracy", "f1_macro"]},
        "data": {
            "train": {
                "source": "hub:stanfordnlp/sst2@train",
                "sources": [],
                "num_rows": 1000,
                "fingerprint": "ab" * 32,
            },
            "validation": None,
            "test": {"source": str(folder.parent / "te`st.csv"), "sources": [], "num_rows": 10, "num_samples": 10},
        },
        "model": {"num_parameters": 24450, "num_trainable": 24450},
        "batch": {"global_batch_size": 16},
        "seed": 7,
        "world_size": 2,
        "strategy": {"kind": "ddp"},
        "hardware": [
            {"hostname": "secret-host", "cpu_model": "CPU X", "num_usable_cores": 4, "gpus": [{"name": "G"}] * 2}
        ],
        "versions": {"python": "3.11.7", "torch": "2.9.0", "triton": None},
    }
    summary: dict[str, Any] = {
        **WHOLE_SUMMARY,
        "scores": {"test": {"accuracy": RIGHT / 10, "loss": 0.5, "f1": None}},
        "baseline": {"predicts": "majority class", "scores": {"test": {"accuracy": 0.5}}},
        "best": None,
        "kept_step": 30,
        "num_steps": 30,
        "num_epochs": 3.0,
        "time": {"total_s": 75.0, "train_s": 50.0},
        "utilisation": {"energy_j": 7.2e6},
        "memory": {"largest_bytes": 2**30},
    }
    (folder / "model").mkdir(parents=True)
    write_json(folder / "model" / "paratune.json", {"max_length": 64, "truncation": "longest_first"})
    classes = [number % 2 for number in range(10)]
    columns = {
        "label": [LABELS[number] for number in classes],
        "prediction": [LABELS[number if row < RIGHT else 1 - number] for row, number in enumerate(classes)],
    }
    write_predictions(folder, "test", rows=np.arange(10), ids=None, columns=columns)
    write_json(folder / RUN_FILE, run)
    write_json(folder / SUMMARY_FILE, summary)
    return run, summary
