"""Masked LM and question answering with paratune and Hugging Face Trainer: the same rows, windows, settings, seeds.

    python benchmarks/quality_tokens.py --data FOLDER

FOLDER (default: $PARATUNE_SHARED_DATA) holds mtsamples/ (column transcription) and squad_v2/ with train.parquet
and validation.parquet. Both sides' models are scored by `paratune evaluate` on the validation rows, so that masks and
the definition of F1 are the same; tests compare its scores with standard implementations. Each finished run is a line
of --out; existing runs are not repeated. The table is Markdown.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from machine import machine_lines

from paratune.models.locate import locate

PEER = Path(__file__).parent / "peers" / "hf_trainer_tokens.py"
SIDES = {"mlm": ("untrained", "paratune", "trainer"), "qa": ("paratune", "trainer")}
"""untrained: the initial model of both sides, after one step with learning rate 0; its head is new."""
COMMON: dict[str, Any] = {"model": "demo:minilm", "precision": "bf16", "warmup_ratio": 0.1, "weight_decay": 0.01}
TASKS: dict[str, dict[str, Any]] = {
    "mlm": {
        **COMMON,
        "folder": "mtsamples",
        # One window per document, truncated at the limit: the same windows on both sides.
        "task": {"kind": "mlm", "windows": "documents"},
        "columns": {"text": "transcription"},
        "rows": {"train": 500, "validation": 200},
        "max_length": 128,
        "epochs": 2,
        "batch_size": 16,
        "learning_rate": 5e-4,
    },
    "qa": {
        **COMMON,
        "folder": "squad_v2",
        # One threshold for both sides, because the training is compared.
        "task": {"kind": "qa", "stride": 64, "null_threshold": 0.0},
        "columns": {},
        "rows": {"train": 500, "validation": 200},
        "max_length": 256,
        "epochs": 2,
        "batch_size": 16,
        "learning_rate": 1e-4,
    },
}
METRICS = {"mlm": ("perplexity", "loss", "accuracy"), "qa": ("f1", "exact", "has_answer_f1", "no_answer_f1")}


def main() -> None:
    """Run missing trainings, then print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "paratune-quality-tokens")
    parser.add_argument("--out", type=Path, help="JSON lines, one per run; default: in --work")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--table-only", action="store_true", help="run nothing, print the tables of --out")
    options = parser.parse_args()
    if options.data is None:
        parser.error("the folder of the data sets is missing: --data FOLDER or $PARATUNE_SHARED_DATA")
    options.work.mkdir(parents=True, exist_ok=True)
    out = options.out or options.work / "quality_tokens.jsonl"
    existing = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    for seed in options.seeds:
        for name in options.tasks:
            for side in SIDES[name]:
                key = {"task": name, "side": side, "seed": seed, "settings": TASKS[name]}
                if options.table_only or any(key.items() <= row.items() for row in existing):
                    continue
                print(f"{time.strftime('%H:%M:%S')} {name} {side} seed {seed} ...", file=sys.stderr, flush=True)
                row = {**key, **_run(name, side, seed, Path(options.data), options.work)}
                print(f"  {row['scores']}", file=sys.stderr, flush=True)
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                existing.append(row)
    print("\n".join([*machine_lines(), *(line for name in options.tasks for line in _table(name, existing))]))


def _run(name: str, side: str, seed: int, data: Path, work: Path) -> dict[str, Any]:
    settings = TASKS[name]
    files = {}
    for split, count in settings["rows"].items():
        table = pq.read_table(data / settings["folder"] / f"{split}.parquet")
        files[split] = str(work / f"{name}-{split}.parquet")
        pq.write_table(table.slice(0, count), files[split])
    run = work / "runs" / f"{name}-{side}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    ours = work / "runs" / f"{name}-paratune-{seed}" / "model"
    if side != "trainer":
        config = _config(name, side, seed, files, work)
        _call([sys.executable, "-m", "paratune", "train", str(config), "--overwrite", "--json"])
        model = run / "model"
    else:
        model = run / "model"
        peer_settings = {**settings, "kind": name, "model": locate(settings["model"]), "seed": seed, "files": files}
        path = work / f"{name}-{seed}.json"
        path.write_text(json.dumps({**peer_settings, "folder": str(model)}), encoding="utf-8")
        _call([sys.executable, str(PEER), str(path)])
        # Task, columns and token limit, for the command.
        shutil.copy(ours / "paratune.json", model)
    command = [sys.executable, "-m", "paratune", "evaluate", str(model), "--data", files["validation"], "--json"]
    return {"scores": json.loads(_call(command))["scores"]}


def _config(name: str, side: str, seed: int, files: dict[str, str], work: Path) -> Path:
    settings = TASKS[name]
    train = (
        {"max_steps": 1, "learning_rate": 1e-12}
        if side == "untrained"
        else {"epochs": float(settings["epochs"]), "learning_rate": settings["learning_rate"]}
    )
    config = {
        "run": {"name": f"{name}-{side}-{seed}", "folder": str(work / "runs"), "seed": seed},
        "task": settings["task"],
        "data": {
            **files,
            "columns": settings["columns"],
            "max_length": settings["max_length"],
            "cache_dir": str(work / "cache"),
        },
        "model": {"name": settings["model"]},
        "train": {
            **train,
            "warmup_ratio": 0.0 if side == "untrained" else settings["warmup_ratio"],
            "weight_decay": settings["weight_decay"],
        },
        "batch": {"global": settings["batch_size"]},
        "evaluate": {"every": "never"},
        "checkpoint": {"every": "never"},
        "precision": settings["precision"],
    }
    path = work / f"{name}-{side}-{seed}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def _call(command: list[str]) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def _table(name: str, results: list[dict[str, Any]]) -> list[str]:
    settings, metrics = TASKS[name], METRICS[name]
    runs = [row for row in results if row["task"] == name and row["settings"] == settings]
    row_counts = ", ".join(f"{count} {split}" for split, count in settings["rows"].items())
    lines = [
        *("", f"### {name}: {settings['folder']}", ""),
        f"{row_counts} rows; windows of {settings['max_length']} tokens; {settings['epochs']} epochs of batches of "
        f"{settings['batch_size']}; learning rate {settings['learning_rate']:g}, linear, warm-up "
        f"{settings['warmup_ratio']:g}; {settings['precision']}; the last model, on the validation rows.",
        "",
        "| side | seed | " + " | ".join(metrics) + " |",
        "|" + "---|" * (2 + len(metrics)),
    ]
    lines += [
        _line(row["side"], str(row["seed"]), [f"{row['scores'][metric]:.4f}" for metric in metrics]) for row in runs
    ]
    for side in SIDES[name]:
        mine = [row["scores"] for row in runs if row["side"] == side]
        if len(mine) > 1:
            values = [[scores[metric] for scores in mine] for metric in metrics]
            cells = [f"**{np.mean(value):.4f}** ± {np.std(value, ddof=1):.4f}" for value in values]
            lines.append(_line(f"**{side}**", f"{len(mine)} runs", cells))
    return lines


def _line(*cells: Any) -> str:
    *first, others = cells
    return "| " + " | ".join([*first, *others]) + " |"


if __name__ == "__main__":
    main()
