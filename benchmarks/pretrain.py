"""Is pre-training worth it: tokenizers of Portuguese, a small BERT from scratch by AdamW and by LAMB, and ASSIN pt-PT.

    python benchmarks/pretrain.py --data FOLDER --out FOLDER             # all of it, an hour of one core
    python benchmarks/pretrain.py --data FOLDER --out FOLDER --only tokenizers

FOLDER of --data holds pt_raw_text, squad_v2_pt, stsb_pt_deepl, arquivo_api, assin_ptpt and vocab; $PARATUNE_SHARED_DATA
when not given. Every step is a command of paratune; --out keeps texts, configurations, runs and their records, and what
is finished there is not done again. Tables are Markdown.
"""

import argparse
import gzip
import html
import json
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from machine import machine_lines

STEPS = ("tokenizers", "pretrain", "finetune")
VOCAB_SIZES = (20_000, 8_000)
"""The second one is the encoder's: fewer embeddings for so few texts."""
SHARED_WORDS = 8
"""A line that has so many words in a row with a text that is measured on is left out of the training texts."""
ENCODER: dict[str, Any] = {
    "name": "demo:minilm",
    "from_scratch": True,
    "overrides": {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    },
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "learning_rate": 2e-3, "eps": 1e-6},
    "lamb": {"optimizer": "lamb", "learning_rate": 1e-2, "eps": 1e-6},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument(
        "--encoders", nargs="+", choices=("new_weights", *OPTIMIZERS), default=["new_weights", *OPTIMIZERS]
    )
    parser.add_argument("--layers", type=int, default=4, help="of the encoder")
    parser.add_argument("--steps", type=int, default=1200, help="of pre-training, of 32 windows of 128 tokens")
    parser.add_argument("--epochs", type=int, default=4, help="of fine-tuning")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of fine-tuning")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER, or $PARATUNE_SHARED_DATA")
    ENCODER["overrides"]["num_hidden_layers"] = options.layers
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    write_texts(options.data, out / "texts")
    train_tokenizers(out)
    print("\n".join(machine_lines()), flush=True)
    if "tokenizers" in options.only:
        compare_tokenizers(options.data, out)
    if "pretrain" in options.only:
        pretrain(out, options.steps, options.encoders)
    if "finetune" in options.only:
        finetune(options.data, out, options.seeds, options.encoders, options.epochs)


def write_texts(data: Path, folder: Path) -> None:
    """Write the texts to train on, without what they share with those that are measured on, and count."""
    if (folder / "counts.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    measured = ShingleSet(
        SHARED_WORDS, [*assin_sentences(data), *column(data / "pt_raw_text" / "test.parquet", "text")]
    )
    counts: dict[str, dict[str, int]] = {}
    for split in ("train", "validation"):
        documents = []
        for source, text in sources(data, split):
            lines = [line for line in text.splitlines() if line.strip()]
            kept = [line for line in lines if line not in measured]
            count = counts.setdefault(f"{split}: {source}", {"documents": 0, "words": 0, "lines left out": 0})
            count["lines left out"] += len(lines) - len(kept)
            if kept:
                documents.append("\n".join(kept))
                count["documents"] += 1
                count["words"] += len(words(documents[-1]))
        pq.write_table(pa.table({"text": documents}), folder / f"{split}.parquet")
    held_out = column(data / "pt_raw_text" / "test.parquet", "text")
    pq.write_table(pa.table({"text": held_out}), folder / "held_out_pages.parquet")
    pq.write_table(pa.table({"text": assin_sentences(data)}), folder / "held_out_assin.parquet")
    (folder / "counts.json").write_text(json.dumps(counts, indent=1, ensure_ascii=False))


def sources(data: Path, split: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each document, each text once."""
    for text in column(data / "pt_raw_text" / f"{split}.parquet", "text"):
        yield "pt_raw_text", text
    if split == "validation":
        return  # of the one source whose parts are cut by pages
    for name in ("context", "question"):
        for text in dict.fromkeys(column(data / "squad_v2_pt" / "train.parquet", name)):
            yield "squad_v2_pt", text
    pairs = pq.read_table(data / "stsb_pt_deepl" / "train.parquet")
    for text in dict.fromkeys(pairs["sentence1"].to_pylist() + pairs["sentence2"].to_pylist()):
        yield "stsb_pt_deepl", text
    with gzip.open(data / "arquivo_api" / "textsearch_response_items.jsonl.gz", "rt", encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    for text in dict.fromkeys(f"{item['title']}\n{plain(item['snippet'])}" for item in items):
        yield "arquivo_api", text


def plain(snippet: str) -> str:
    """Return a snippet of a search without its marks, what it leaves out on a line's end."""
    parts = re.split(r"<span.*?(?:</span>|$)", html.unescape(snippet), flags=re.S)
    return "\n".join(" ".join(re.sub(r"<[^>]*>", "", part).split()) for part in parts)


def column(path: Path, name: str) -> list[str]:
    return pq.read_table(path, columns=[name])[name].to_pylist()


def assin_sentences(data: Path) -> list[str]:
    """Return both sentences of every pair of ASSIN pt-PT, of all three parts."""
    return [
        text
        for split in ("train", "validation", "test")
        for name in ("sentence1", "sentence2")
        for text in column(data / "assin_ptpt" / f"{split}.parquet", name)
    ]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


class ShingleSet:
    """All runs of so many words in some texts; a shorter text is a run of its own."""

    def __init__(self, length: int, texts: Iterable[str]) -> None:
        self._length = length
        self._runs = {run for text in texts for line in text.splitlines() for run in self._of(line)}

    def _of(self, line: str) -> Iterator[tuple[str, ...]]:
        found = words(line)
        for begin in range(max(1, len(found) - self._length + 1)):
            yield tuple(found[begin : begin + self._length])

    def __contains__(self, line: str) -> bool:
        return any(run in self._runs for run in self._of(line))


def train_tokenizers(out: Path) -> None:
    for size in VOCAB_SIZES:
        folder = out / f"tokenizer_{size}"
        if not folder.exists():
            arguments = [str(out / "texts" / "train.parquet"), "--output", str(folder), "--vocab-size", str(size)]
            paratune("tokenizer", "train", *arguments)


def compare_tokenizers(data: Path, out: Path) -> None:
    """Print fertility, coverage and unknowns of our tokenizers and of the vocabularies of known models."""
    counts = json.loads((out / "texts" / "counts.json").read_text())
    print("\n| texts to train on | documents | words | lines left out |\n|---|---|---|---|")
    for name, count in counts.items():
        print(f"| {name} | {count['documents']} | {count['words']} | {count['lines left out']} |")
    names = ("bert-base-uncased", "bert-base-cased", "bert-base-portuguese-cased")
    tokenizers = [*(out / f"tokenizer_{size}" for size in VOCAB_SIZES)]
    tokenizers += [data / "vocab" / f"{name}.vocab.txt" for name in names]
    for held_out in ("held_out_pages", "held_out_assin"):
        texts = str(out / "texts" / f"{held_out}.parquet")
        print(f"\n{held_out}:\n", flush=True)
        print(paratune("tokenizer", "compare", *map(str, tokenizers), "--texts", texts), flush=True)


def pretrain(out: Path, num_steps: int, encoders: list[str]) -> None:
    """Train the encoder by each optimizer, and print how its perplexity falls."""
    curves = {}
    for name, train in ((name, OPTIMIZERS[name]) for name in encoders if name in OPTIMIZERS):
        section = {**train, "max_steps": num_steps, "warmup_ratio": 0.1, "weight_decay": 0.01}
        config = {
            "task": {"kind": "mlm"},
            "data": {
                "train": str(out / "texts" / "train.parquet"),
                "validation": str(out / "texts" / "validation.parquet"),
                "columns": {"text": "text"},
                "max_length": 128,
            },
            "model": {**ENCODER, "tokenizer": str(out / f"tokenizer_{VOCAB_SIZES[-1]}")},
            "train": section,
            "batch": {"global": 32, "micro_batch_size": 32},
            "evaluate": {"every": "steps", "steps": max(1, num_steps // 5), "batch_size": 32},
            "checkpoint": {"every": "steps", "steps": max(1, num_steps // 4), "keep": 1},
            "measure": {"noise_scale_every": None},
            "run": {"name": f"pretrain_{name}", "folder": str(out / "runs"), "seed": 1},
        }
        curves[name] = train_run(out, config)
    print("\n| step | " + " | ".join(f"{name}: validation perplexity" for name in curves) + " |")
    print("|---|" + "---|" * len(curves))
    evaluations = {name: perplexities(run) for name, run in curves.items()}
    for step in next(iter(evaluations.values())):
        print(f"| {step} | " + " | ".join(f"{found[step]:.1f}" for found in evaluations.values()) + " |")
    for name, run in curves.items():
        print(f"\n{name}: {cpu_s(run):.0f} CPU seconds")


def perplexities(run: Path) -> dict[int, float]:
    lines = (json.loads(line) for line in (run / "events.rank0000.jsonl").read_text().splitlines())
    found = [line for line in lines if line.get("event") == "evaluation" and line.get("split") == "validation"]
    return {line["step"]: line["scores"]["perplexity"] for line in found}


def finetune(data: Path, out: Path, seeds: list[int], encoders: list[str], epochs: int) -> None:
    """Train similarity of ASSIN pt-PT from each encoder and from new weights, and print scores and verdicts."""
    tokenizer = str(out / f"tokenizer_{VOCAB_SIZES[-1]}")
    models = {"new_weights": {**ENCODER, "tokenizer": tokenizer}}
    models |= {name: {"name": str(out / "runs" / f"pretrain_{name}" / "model")} for name in OPTIMIZERS}
    models = {name: models[name] for name in encoders}
    scores: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        for name, model in models.items():
            config = {
                "task": {"kind": "regression", "start_at_mean": True},
                "data": {
                    **{
                        split: str(data / "assin_ptpt" / f"{split}.parquet")
                        for split in ("train", "validation", "test")
                    },
                    "columns": {"text": "sentence1", "text_pair": "sentence2", "label": "score", "id": "id"},
                    "max_length": 128,
                },
                "model": model,
                "train": {"epochs": epochs, "learning_rate": 5e-4, "warmup_ratio": 0.1, "eps": 1e-6},
                "batch": {"global": 32},
                "evaluate": {"best": "pearson"},
                "checkpoint": {"every": "epoch", "keep": 1},
                "measure": {"noise_scale_every": None},
                "run": {"name": f"assin_{name}_{seed}", "folder": str(out / "runs"), "seed": seed},
            }
            summary = json.loads((train_run(out, config) / "summary.json").read_text())
            scores.setdefault(name, []).append(summary["scores"]["test"])
    print("\n| encoder | " + " | ".join(f"seed {seed}: pearson" for seed in seeds) + " | mean ± spread | rmse |")
    print("|---|" + "---|" * (len(seeds) + 2))
    for name, found in scores.items():
        pearson = [each["pearson"] for each in found]
        rmse = [each["rmse"] for each in found]
        each_seed = " | ".join(f"{value:.4f}" for value in pearson)
        print(f"| {name} | {each_seed} | **{mean(pearson)}** | {mean(rmse)} |")
    groups = [",".join(str(out / "runs" / f"assin_{name}_{seed}") for seed in seeds) for name in models]
    if len(groups) > 1:
        print("\n" + paratune("compare", *groups, "--allow", "model", "--margin", "pearson=0.01"), flush=True)


def mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def train_run(out: Path, config: dict[str, Any]) -> Path:
    """Run a configuration unless it has finished, and return its folder."""
    run = out / "runs" / config["run"]["name"]
    if not (run / "summary.json").exists():
        path = out / f"{run.name}.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        paratune("train", str(path), *(["--resume"] if run.exists() else []))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (out / f"{run.name}.cpu_s").write_text(f"{spent:.1f}")
        print(f"{run.name}: {spent:.0f} CPU seconds", file=sys.stderr, flush=True)
    return run


def cpu_s(run: Path) -> float:
    return float((run.parents[1] / f"{run.name}.cpu_s").read_text())


def paratune(*arguments: str) -> str:
    """Run a command of paratune, and return what it prints; it stops this script where it fails."""
    done = subprocess.run([sys.executable, "-m", "paratune", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
