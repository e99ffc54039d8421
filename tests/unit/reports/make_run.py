"""Run folders for tests, written by hand as docs/reference/records.md says; no run is made."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from paratune.records.run_folder import trained_fingerprint

PHASE_TEXTS = {
    "single": {
        "get_batch": "reading tokens, padding, copy to the device",
        "forward": "forward pass and loss",
        "backward": "backward pass",
        "optimizer": "gradient norm, clipping, AdamW update",
    },
    "ddp": {
        "get_batch": "reading tokens, padding, copy to the device",
        "forward": "forward pass and loss",
        "backward": "backward pass and the all-reduce of gradients, overlapped",
        "optimizer": "gradient norm, clipping, AdamW update of the whole model on each rank",
    },
}
SHARES = {"get_batch": 0.02, "forward": 0.30, "backward": 0.55, "optimizer": 0.10, "other": 0.03}
GIB = 2**30


def make_run(
    folder: Path,
    *,
    kind: str = "single",
    world_size: int = 1,
    task: str = "classification",
    labels: tuple[str, ...] = ("negative", "positive"),
    seed: int = 42,
    step_ms: float = 80.0,
    num_steps: int = 225,
    finished: bool = True,
    run_changes: dict[str, Any] | None = None,
    summary_changes: dict[str, Any] | None = None,
) -> Path:
    """Write the record of a run to `folder`; `..._changes` set values by dotted paths."""
    folder.mkdir(parents=True)
    run = _run(folder.name, kind, world_size, task, labels, seed, num_steps)
    summary = _summary(folder.name, world_size, task, len(labels), step_ms, num_steps)
    for record, changes in ((run, run_changes), (summary, summary_changes)):
        for path, value in (changes or {}).items():
            _set(record, path, value)
    _write(folder / "run.json", run)
    for rank in range(world_size):
        _events(folder / f"events.rank{rank:04d}.jsonl", seed, step_ms, num_steps if finished else num_steps // 2)
    if finished:
        if task == "regression":
            _predictions(folder, seed)
        _write(folder / "summary.json", summary)
    return folder


def make_certificate(folder: Path, run: Path, *strategies: dict[str, Any], **changes: Any) -> Path:
    """Write the certificate of a run as `paratune certify` does; return its folder."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    findings = [
        {
            "strategy": "ddp",
            "kind": "ddp",
            "options": {},
            "world_size": 2,
            "precision": "fp64",
            "status": "holds",
            "reason": None,
            "same_samples": True,
            "same_order": True,
            "same_weights": True,
            "gradient_difference": 1.25e-13,
            "gradient_tensor": "w",
            "loss_difference": 0.0,
            "norm_difference": 0.0,
            "losses": [0.7],
            "grad_norms": [1.0],
            **each,
        }
        for each in strategies or ({},)
    ]
    folder.mkdir(exist_ok=True)
    value = {
        "schema_version": 1,
        "verdict": "holds",
        "config_fingerprint": trained_fingerprint(record["config"]),
        "data": record["data"],
        "model": record["model"],
        "global_batch_size": record["batch"]["global_batch_size"],
        "num_steps": 4,
        "tolerance": {"fp64": {"gradients": 1e-9, "losses": 1e-9}},
        "reference": {"precision": "fp64"},
        "strategies": findings,
    }
    _write(folder / "certificate.json", value | changes)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Change top-level values of a JSON file."""
    value = json.loads(path.read_text(encoding="utf-8"))
    _write(path, value | changes)


def _set(record: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        record = record[key]
    record[last] = value


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _run(name: str, kind: str, world_size: int, task: str, labels: tuple[str, ...], seed: int, num_steps: int) -> Any:
    task_values = {"kind": task} | ({"labels": list(labels)} if task == "classification" else {})
    return {
        "schema_version": 1,
        "run_id": name,
        "created": "2026-11-21T10:00:00+00:00",
        "command": ["paratune", "train", f"{name}.yaml"],
        "config": {
            "run": {"name": name, "folder": "runs", "seed": seed},
            "task": task_values,
            "data": {
                "train": "demo:sentences",
                "columns": {"text": "text", "label": "label"},
                "max_length": 128,
                "truncation": "longest_first",
            },
            "model": {"name": "demo:minilm", "overrides": {}},
            "train": {"epochs": 3, "learning_rate": 5e-5, "schedule": "linear", "warmup_ratio": 0.1},
            "batch": {"global": 32},
            "evaluate": {"every": "epoch", "best": None, "patience": None, "min_delta": 0.0},
            "strategy": {"kind": kind},
            "precision": "fp32",
            "measure": {"warmup_steps": 5, "log_every": 10},
        },
        "config_origin": {"strategy.kind": f"{name}.yaml:14", "run.seed": "--set"},
        "versions": {"paratune": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "transformers": "5.23.0"},
        "code": {"git_commit": None, "git_dirty": None},
        "hardware": [
            {
                "hostname": "node-a",
                "cpu_model": "Example CPU 2.0 GHz",
                "num_physical_cores": 2,
                "num_logical_cores": 4,
                "ram_bytes": 16 * GIB,
                "storage": "ssd",
                "gpus": [],
            }
        ],
        "world_size": world_size,
        "seed": seed,
        "strategy": {"kind": kind, "traits": {"kind": kind, "phases": dict(PHASE_TEXTS[kind])}, "options": {}},
        "batch": {"global_batch_size": 32, "micro_batch_size": 32 // world_size, "grad_accum_steps": 1},
        "task": task_values,
        "data": {
            split: {"source": "demo:sentences", "num_rows": rows, "fingerprint": "ab" * 32, "num_tokens": 30 * rows}
            for split, rows in (("train", 2400), ("validation", 300), ("test", 300))
        },
        "model": {
            "name": "demo:minilm",
            "architecture": "BertForSequenceClassification",
            "num_parameters": 22_713_986,
            "num_trainable": 22_713_986,
            "init_fingerprint": f"{seed:064x}",
        },
        "plan": {"num_steps": num_steps, "steps_per_epoch": 75, "num_epochs": 3},
    }


def _summary(name: str, world_size: int, task: str, num_classes: int, step_ms: float, num_steps: int) -> Any:
    measured = num_steps - 5
    train_s = num_steps * step_ms / 1000
    scores = (
        {"accuracy": 0.9233, "f1": 0.9241, "loss": 0.2104}
        if task == "classification"
        else {"rmse": 0.6123, "mae": 0.4711, "r2": 0.6234, "pearson": 0.7911, "loss": 0.3749}
    )
    # Of the rows of each class a tenth is taken for the next one.
    of_class = 300 // num_classes
    confusion = [[0] * num_classes for _ in range(num_classes)]
    for true in range(num_classes):
        confusion[true][true] = of_class - of_class // 10
        confusion[true][(true + 1) % num_classes] = of_class // 10
    return {
        "schema_version": 1,
        "run_id": name,
        "status": "finished",
        "finished": "2026-11-21T10:03:00+00:00",
        "num_steps": num_steps,
        "num_epochs": 3.0,
        "stop_reason": "epochs",
        "world_size": world_size,
        "num_interruptions": 0,
        "time": {
            "startup_s": 2.5,
            "tokenize_s": 0.4,
            "train_s": train_s,
            "evaluate_s": 1.5,
            "checkpoint_s": 0.8,
            "total_s": train_s + 5.2,
        },
        "throughput": {
            "samples_per_s": 32_000 / step_ms,
            "tokens_per_s": 960_000 / step_ms,
            "padded_tokens_per_s": 1_200_000 / step_ms,
            "padding_share": 0.2,
            "num_steps_measured": measured,
        },
        "phases": {
            phase: {
                "total_s": share * step_ms * measured / 1000,
                "median_ms": share * step_ms * 0.98,
                "p10_ms": share * step_ms * 0.9,
                "p90_ms": share * step_ms * 1.1,
                "share": share,
            }
            for phase, share in SHARES.items()
        },
        "step_ms": {"median": step_ms * 0.98, "p10": step_ms * 0.9, "p90": step_ms * 1.1},
        "ranks": [
            {"rank": rank, "peak_memory_bytes": int((1.2 + 0.05 * rank) * GIB), "phases_total_s": {}, "device": "cpu"}
            for rank in range(world_size)
        ],
        "memory": {
            "kind": "rss",
            "largest_bytes": int((1.2 + 0.05 * (world_size - 1)) * GIB),
            "sum_bytes": sum(int((1.2 + 0.05 * rank) * GIB) for rank in range(world_size)),
        },
        "loss": {"first": 0.7, "last": 0.2, "mean_last_epoch": 0.2216},
        "scores": {"validation": scores, "test": scores},
        "confusion": {"validation": confusion, "test": confusion} if task == "classification" else None,
        "best": None,
        "recorder": {"cost_ms_per_step": 0.021, "cost_share": 0.00026},
    }


def _events(path: Path, seed: int, step_ms: float, num_steps: int) -> None:
    noise = np.random.default_rng(seed)
    lines = []
    for step in range(1, num_steps + 1):
        loss = 0.2 + 0.5 * math.exp(-step / 60) + 0.05 * float(noise.standard_normal())
        step_values = {"step": step, "epoch": step / 75, "loss": loss, "wall_ms": step_ms, "warmup": step <= 5}
        lines.append({"event": "step", "time": 1.0 * step, **step_values})
        if step % 75 == 0:
            scores = {"loss": loss + 0.02, "accuracy": 0.9}
            lines.append(
                {"event": "evaluation", "time": 1.0 * step, "step": step, "epoch": step / 75}
                | {"split": "validation", "scores": scores}
            )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def _predictions(folder: Path, seed: int) -> None:
    noise = np.random.default_rng(seed)
    labels = np.round(noise.normal(6.0, 1.0, 300) * 2) / 2
    columns = {"index": np.arange(300), "label": labels, "prediction": labels + noise.normal(0, 0.6, 300)}
    for split in ("validation", "test"):
        parquet.write_table(pa.table(columns), folder / f"predictions.{split}.parquet")
