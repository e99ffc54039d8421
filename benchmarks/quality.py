"""Quality of paratune and Hugging Face Trainer: the same data, model and settings, over several seeds.

    python benchmarks/quality.py --data FOLDER                    # sizes for one hour of a CPU
    python benchmarks/quality.py --data FOLDER --full --tasks imdb    # all rows, 256 tokens, 3 epochs: for a GPU

FOLDER holds a folder of each task, with train.parquet, validation.parquet and, for some tasks, test.parquet; default:
$PARATUNE_SHARED_DATA. Each finished run is a line of --out; existing runs are not repeated. The table is Markdown.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from machine import machine_lines

from paratune.models.locate import locate

PEER = Path(__file__).parent / "peers" / "hf_trainer.py"
SIDES = ("paratune", "trainer")
LAYOUTS = ("packed", "bucketed", "padded")
"""Further sides: paratune with this `batch.layout`; `paratune` uses its default."""


@dataclass(frozen=True)
class Settings:
    """The settings of both sides."""

    columns: dict[str, str]
    best: str
    """Validation metric that chooses the epoch."""
    num_labels: int
    rows: dict[str, int]
    """Number of first rows of each file."""
    max_length: int
    truncation: str
    epochs: int
    batch_size: int
    learning_rate: float
    centre: bool = False
    """Subtract the training mean from the targets: with a head that starts at 0, a short run would spend its steps on
    reaching the mean, and Adam's steps, all in one direction, saturate the pooler on the way."""
    precision: str = "bf16"
    """fp32 or bf16 (autocast): the same on both sides."""
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    model: str = "demo:minilm"
    adapter: dict[str, float] | None = None
    """Rank, alpha and dropout of a LoRA adapter on query and value; None trains the whole model."""


PAIRS = Settings(
    columns={"text": "sentence1", "text_pair": "sentence2", "label": "label"},
    best="accuracy",
    num_labels=2,
    rows={},
    max_length=128,
    truncation="longest_first",
    epochs=3,
    batch_size=32,
    learning_rate=5e-5,
)
"""Classes of pairs; the 6 x 384 MiniLM was published with such settings (Wang et al. 2020, learning rates to 5e-5)."""
SIMILARITY = replace(
    PAIRS,
    columns={"text": "sentence1", "text_pair": "sentence2", "label": "score"},
    best="pearson",
    num_labels=1,
    rows={"train": 2000, "validation": 500, "test": 1379},
    epochs=2,
    centre=True,
)
TASKS = {
    "imdb": Settings(
        columns={"text": "text", "label": "label"},
        best="accuracy",
        num_labels=2,
        rows={"train": 800, "validation": 200, "test": 600},
        max_length=128,
        truncation="longest_first",
        epochs=2,
        batch_size=16,
        learning_rate=5e-5,
    ),
    "ielts": Settings(
        columns={"text": "Question", "text_pair": "Essay", "label": "Overall"},
        best="rmse",
        num_labels=1,
        rows={"train": 816, "validation": 123, "test": 181},
        max_length=128,
        truncation="only_second",
        epochs=2,
        batch_size=8,
        learning_rate=5e-5,
        centre=True,
    ),
    "mrpc": replace(PAIRS, rows={"train": 3668, "validation": 408, "test": 1325}, epochs=3),
    "rte": replace(PAIRS, rows={"train": 2490, "validation": 277}, epochs=3),
    "wnli": replace(PAIRS, rows={"train": 635, "validation": 71}, epochs=3),
    "stsb": SIMILARITY,
    "stsb_pt_deepl": SIMILARITY,
    "mrpc_lora": replace(
        PAIRS,
        rows={"train": 1200, "validation": 408, "test": 800},
        max_length=64,
        learning_rate=1e-3,
        adapter={"rank": 8, "alpha": 16, "dropout": 0.05},
    ),
    "assin_ptpt": replace(SIMILARITY, rows={"train": 2500, "validation": 500, "test": 1600}),
}
METRICS = {
    "accuracy": ("accuracy", "f1"),
    "rmse": ("rmse", "mae", "pearson"),
    "pearson": ("pearson", "spearman", "rmse"),
}
"""Columns of the table, by the metric that chooses the epoch."""
FULL = {
    "imdb": {"rows": {"train": 12_000, "validation": 2_000, "test": 5_000}, "max_length": 256, "epochs": 3},
    "ielts": {"max_length": 512, "epochs": 5},
}


def main() -> None:
    """Run missing trainings, then print the table."""
    options = _options()
    tasks = {name: _settings(name, options) for name in options.tasks}
    options.work.mkdir(parents=True, exist_ok=True)
    existing = list(_rows(options.out))
    for seed in options.seeds:
        for name, settings in tasks.items():
            for side in options.sides:
                key = {"task": name, "side": side, "seed": seed, "settings": asdict(settings)}
                if options.table_only or any(key.items() <= row.items() for row in existing):
                    continue
                row = {**key, **_run(side, name, settings, seed, options)}
                with options.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
                existing.append(row)
    print("\n".join(_table(existing, tasks, options.data)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "paratune-quality")
    parser.add_argument("--out", type=Path, help="JSON lines, one per run; default: in --work")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=[*SIDES, *LAYOUTS], default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--full", action="store_true", help="all rows, longer texts, more epochs")
    for split in ("train", "validation", "test"):
        parser.add_argument(f"--{split}-rows", type=int)
    for name, kind in (("max-length", int), ("epochs", int), ("batch-size", int), ("learning-rate", float)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.add_argument("--table-only", action="store_true", help="run nothing, print the table of --out")
    options = parser.parse_args()
    if options.data is None:
        parser.error("the folder of the data sets is missing: --data FOLDER or $PARATUNE_SHARED_DATA")
    options.data = Path(options.data).resolve()
    options.out = options.out or options.work / "quality.jsonl"
    return options


def _settings(name: str, options: argparse.Namespace) -> Settings:
    settings = replace(TASKS[name], **FULL.get(name, {})) if options.full else TASKS[name]
    rows = {split: getattr(options, f"{split}_rows") or number for split, number in settings.rows.items()}
    overrides = {
        key: getattr(options, key) for key in ("max_length", "epochs", "batch_size", "learning_rate", "precision")
    }
    return replace(settings, rows=rows, **{key: value for key, value in overrides.items() if value is not None})


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def _files(name: str, settings: Settings, options: argparse.Namespace) -> dict[str, str]:
    """Write the first rows of each split as files that both sides read."""
    target = settings.columns["label"]
    parts = {split: _first_rows(name, split, settings, options.data) for split in settings.rows}
    mean = parts["train"][target].to_numpy().mean() if settings.centre else 0
    files = {}
    for split, table in parts.items():
        path = options.work / f"{name}-{split}.parquet"
        values = pa.array(table[target].to_numpy() - mean)
        pq.write_table(table.set_column(table.schema.get_field_index(target), target, values), path)
        files[split] = str(path)
    return files


def _first_rows(name: str, split: str, settings: Settings, data: Path) -> pa.Table:
    columns = list(settings.columns.values())
    path = data / name.removesuffix("_lora") / f"{split}.parquet"
    return pq.read_table(path, columns=columns).slice(0, settings.rows[split])


def _run(side: str, name: str, settings: Settings, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one training in a separate process; return the values to record."""
    files = _files(name, settings, options)
    print(f"{time.strftime('%H:%M:%S')} {name} {side} seed {seed} ...", file=sys.stderr, flush=True)
    run, is_ours = f"{name}-{side}-{seed}", side != "trainer"
    if is_ours:
        command = _paratune_command(run, settings, files, seed, options.work, side if side in LAYOUTS else None)
    else:
        command = _trainer_command(run, settings, files, seed, options.work)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(finished.stdout if is_ours else finished.stdout.splitlines()[-1])
    if is_ours:
        record = json.loads((options.work / "runs" / run / "run.json").read_text(encoding="utf-8"))
        result = _of_paratune(result, record)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result |= {"process_s": round(time.perf_counter() - begin, 1), "process_cpu_s": round(cpu_s, 1)}
    print(f"  {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def _paratune_command(
    run: str, settings: Settings, files: dict[str, str], seed: int, work: Path, layout: str | None
) -> list[str]:
    classes = settings.num_labels > 1
    config = {
        "run": {"name": run, "folder": str(work / "runs"), "seed": seed},
        "task": {"kind": "classification", "labels": list(range(settings.num_labels))}
        if classes
        else {"kind": "regression"},
        "data": {
            **files,
            "columns": settings.columns,
            "max_length": settings.max_length,
            "truncation": settings.truncation,
            "cache_dir": str(work / "cache"),
        },
        "model": {
            "name": settings.model,
            **({} if settings.adapter is None else {"adapter": {"kind": "lora", **settings.adapter}}),
        },
        "train": {
            "epochs": float(settings.epochs),
            "learning_rate": settings.learning_rate,
            "warmup_ratio": settings.warmup_ratio,
            "weight_decay": settings.weight_decay,
        },
        "batch": {"global": settings.batch_size, **({"layout": layout} if layout else {})},
        "evaluate": {"best": settings.best},
        "checkpoint": {"every": "never"},
        "precision": settings.precision,
    }
    path = work / f"{run}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return [sys.executable, "-m", "paratune", "train", str(path), "--overwrite", "--json"]


def _trainer_command(run: str, settings: Settings, files: dict[str, str], seed: int, work: Path) -> list[str]:
    peer_settings = {**asdict(settings), "model": locate(settings.model), "seed": seed, "files": files}
    path = work / f"{run}.json"
    path.write_text(json.dumps({**peer_settings, "folder": str(work / "trainer" / run)}), encoding="utf-8")
    return [sys.executable, str(PEER), str(path)]


def _of_paratune(summary: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_steps": summary["num_steps"],
        "num_train_tokens": record["data"]["train"]["num_tokens"],
        "train_and_evaluate_s": summary["time"]["train_s"] + summary["time"]["evaluate_s"],
        "best_step": summary["best"]["step"],
        "scores": summary["scores"],
    }


def _table(rows: list[dict[str, Any]], tasks: dict[str, Settings], data: Path) -> list[str]:
    """Return the head, and for each task its settings, its runs, and mean and spread over seeds."""
    lines = machine_lines()
    for name, settings in tasks.items():
        settings_now = asdict(settings)
        runs = [row for row in rows if row["task"] == name and row["settings"] == settings_now]
        if not runs:
            continue
        metrics = METRICS[settings.best]
        lines += ["", f"### {name}", "", _said(settings), ""]
        lines += [
            _line(
                ["side", "seed", "steps", "best step", "training tokens", *_heads(settings, metrics), "process CPU s"]
            )
        ]
        lines += [_line(["---"] * (6 + len(_heads(settings, metrics))))]
        lines += [_line(_run_cells(run, metrics)) for run in runs]
        lines += [
            _line(_mean_cells(side, runs, metrics))
            for side in (*SIDES, *LAYOUTS)
            if any(r["side"] == side for r in runs)
        ]
        if settings.num_labels == 1:
            lines += ["", _baseline(name, settings, data)]
    return lines


def _said(settings: Settings) -> str:
    rows = ", ".join(f"{number} {split}" for split, number in settings.rows.items())
    centred = "targets minus the training mean; " if settings.centre else ""
    if settings.adapter is not None:
        centred += "LoRA, " + ", ".join(f"{key} {value:g}" for key, value in settings.adapter.items()) + "; "
    return (
        f"{rows} rows; at most {settings.max_length} tokens ({settings.truncation}); {settings.epochs} epochs of "
        f"batches of {settings.batch_size}; learning rate {settings.learning_rate:g}, linear, warm-up "
        f"{settings.warmup_ratio:g}; {settings.precision}; {centred}"
        f"weight decay {settings.weight_decay:g}; best epoch by validation {settings.best}."
    )


def _heads(settings: Settings, metrics: tuple[str, ...]) -> list[str]:
    return [f"{split} {metric}" for split in _evaluated(settings) for metric in metrics]


def _evaluated(settings: Settings) -> list[str]:
    return [split for split in settings.rows if split != "train"]


def _run_cells(run: dict[str, Any], metrics: tuple[str, ...]) -> list[str]:
    values = [f"{scores[metric]:.4f}" for scores in run["scores"].values() for metric in metrics]
    counts = [str(run[key]) for key in ("seed", "num_steps", "best_step", "num_train_tokens")]
    return [run["side"], *counts, *values, f"{run['process_cpu_s']:.0f}"]


def _mean_cells(side: str, runs: list[dict[str, Any]], metrics: tuple[str, ...]) -> list[str]:
    """Return mean ± sample standard deviation over the seeds."""
    mine = [run for run in runs if run["side"] == side]

    def spread(values: list[float]) -> str:
        deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        return f"**{np.mean(values):.4f}**{deviation}"

    cells = [spread([r["scores"][split][m] for r in mine]) for split in mine[0]["scores"] for m in metrics]
    return [
        f"**{side}**",
        f"{len(mine)} runs",
        "",
        "",
        "",
        *cells,
        f"{np.mean([r['process_cpu_s'] for r in mine]):.0f}",
    ]


def _baseline(name: str, settings: Settings, data: Path) -> str:
    """Return a sentence with the score of predicting the mean of the training targets on the same rows."""
    target = settings.columns["label"]
    targets = {split: _first_rows(name, split, settings, data)[target].to_numpy() for split in settings.rows}
    mean = targets["train"].mean()
    rmse = [f"{np.sqrt(np.mean((targets[split] - mean) ** 2)):.4f} {split}" for split in _evaluated(settings)]
    return f"Predicting the training mean ({mean:.4f}): RMSE {', '.join(rmse)}."


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
