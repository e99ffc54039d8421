"""Sentence embeddings: paratune and the trainer of sentence-transformers, at the same settings, over seeds.

Both train the first layers of an encoder with the cosine loss on rows of the STS benchmark. Usage:
python benchmarks/embeddings.py FOLDER --data data/stsb --model MODEL --seeds 1 2 3
"""

import argparse
import json
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from machine import machine_lines

SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "learning_rate": 5e-5,
    "batch": 16,
    "weight_decay": 0.01,
    "warmup_steps": 3,
    "max_length": 64,
}
NUM_ROWS = {"train": 480, "test": 300}


def write_model(model: Path, folder: Path, num_layers: int) -> None:
    """Write the first layers of an encoder, so that a run takes seconds."""
    from transformers import AutoModel, AutoTokenizer

    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    AutoModel.from_pretrained(model, num_hidden_layers=num_layers).save_pretrained(folder)


def by_sentence_transformers(folder: Path, seeds: list[int]) -> list[dict[str, Any]]:
    """Train with SentenceTransformerTrainer."""
    files = {split: str(folder / f"{split}.parquet") for split in NUM_ROWS}
    path = folder / "peer.json"
    job = {**SETTINGS, "model": str(folder / "model"), "files": files, "seeds": seeds, "output": str(folder / "peer")}
    path.write_text(json.dumps(job))
    completed = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "peers" / "st_sts.py"), str(path)],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    results: list[dict[str, Any]] = json.loads(completed.stdout.strip().split("\n")[-1])
    return results


def by_paratune(folder: Path, seed: int) -> dict[str, Any]:
    """Train with paratune."""
    config = {
        "run": {"name": f"seed{seed}", "folder": str(folder / "runs"), "seed": seed},
        "task": {"kind": "embedding", "loss": "cosine_similarity", "score_range": [0, 5]},
        "data": {
            **{split: str(folder / f"{split}.parquet") for split in NUM_ROWS},
            "columns": {"text": "sentence1", "text_pair": "sentence2", "label": "score"},
            "max_length": SETTINGS["max_length"],
            "cache_dir": str(folder / "cache"),
        },
        "model": {"name": str(folder / "model")},
        "train": {key: SETTINGS[key] for key in ("epochs", "learning_rate", "weight_decay", "warmup_steps")},
        "batch": {"global": SETTINGS["batch"]},
        "device": "cpu",
    }
    path = folder / f"seed{seed}.yaml"
    path.write_text(json.dumps(config))
    subprocess.run([sys.executable, "-m", "paratune", "train", str(path)], check=True, capture_output=True)
    summary = json.loads((folder / "runs" / f"seed{seed}" / "summary.json").read_text())
    return {"num_steps": summary["num_steps"], "scores": summary["scores"]["test"]}


def table(results: dict[str, list[dict[str, Any]]], seeds: list[int]) -> str:
    """Return one row per run, and mean and standard deviation of each tool over the seeds."""
    lines = ["| tool | seed | steps | Spearman | Pearson |", "|---|---|---|---|---|"]
    for name, runs in results.items():
        for seed, run in zip(seeds, runs, strict=True):
            scores = run["scores"]
            lines.append(
                f"| {name} | {seed} | {run['num_steps']} | {scores['spearman']:.4f} | {scores['pearson']:.4f} |"
            )
        cells = []
        for metric in ("spearman", "pearson"):
            values = [run["scores"][metric] for run in runs]
            cells.append(f"{statistics.fmean(values):.4f} ({statistics.stdev(values):.4f})")
        lines.append(f"| {name} | mean (s.d.) | | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.parquet and test.parquet of STS-B")
    parser.add_argument("--model", type=Path, required=True, help="folder of an encoder, such as demo:minilm's")
    parser.add_argument("--layers", type=int, default=2, help="layers that are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in NUM_ROWS.items():
        rows = pq.read_table(options.data / f"{split}.parquet")
        pq.write_table(
            rows.take(list(range(0, rows.num_rows, rows.num_rows // count))[:count]), folder / f"{split}.parquet"
        )
    write_model(options.model, folder / "model", options.layers)
    results = {
        "sentence-transformers": by_sentence_transformers(folder, options.seeds),
        "paratune": [by_paratune(folder, seed) for seed in options.seeds],
    }
    print(*machine_lines(), f"- sentence-transformers {version('sentence-transformers')}", sep="\n")
    before = results["sentence-transformers"][0]["before"]
    print(f"\nBefore training: Spearman {before['spearman']:.4f}, Pearson {before['pearson']:.4f}.\n")
    print(table(results, options.seeds))


if __name__ == "__main__":
    main()
