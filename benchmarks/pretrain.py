"""Gain from pre-training: a small encoder, trained from scratch on unlabelled pairs, then scored on ASSIN pt-PT.

    python benchmarks/pretrain.py --data FOLDER --out FOLDER             # all of it, an hour of one core

FOLDER of --data holds assin_ptpt and the folders of PAIRS; default: $PARATUNE_SHARED_DATA. Every step is a
command of paratune: a tokenizer; masked language modelling (MLM) on pairs, both sentences of a pair in one window; then
classification of matched and unmatched pairs; then similarity of ASSIN pt-PT, from each encoder and from new
weights. --out keeps texts, configurations, runs and their records, and finished steps are not repeated. Tables
are Markdown.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from machine import machine_lines
from portuguese import ShingleSet, assin_sentences, column, paratune, words

PAIRS = ("assin2", "stsb_pt_deepl", "assin_ptbr", "mrpc_ptbr_plue", "rte_ptbr_plue", "wnli_ptbr_plue")
"""Only sentence1 and sentence2 of their train splits are used, without scores or labels."""
NUM_VALIDATION = 600
"""Validation pairs; training pairs that share a sentence with them are left out."""
ARCHITECTURE: dict[str, Any] = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "global_attn_every_n_layers": 1,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
"""ModernBERT as a config.json, for short texts: every layer attends to the whole text."""
VOCAB_SIZE = 4_000
ENCODERS = ("new_weights", "pairs", "mlm", "mlm_pairs")
"""Pre-training of each encoder before ASSIN: none, one of the two objectives, or both in sequence."""


class Pair(NamedTuple):
    source: str
    first: str
    second: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=ENCODERS)
    parser.add_argument("--steps", type=int, default=2000, help="steps of MLM, of 64 pairs")
    parser.add_argument("--pair-steps", type=int, default=700, help="steps of matched or not, of 64 pairs")
    parser.add_argument("--epochs", type=int, default=6, help="of ASSIN")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5], help="of ASSIN")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER, or $PARATUNE_SHARED_DATA")
    options.data, out = Path(options.data).resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    write_pairs(options.data, out)
    make_model_folder(out)
    print("\n".join(machine_lines()), flush=True)
    print_pairs(out)
    if any(name.startswith("mlm") for name in options.encoders):
        pretrain(out, options.steps)
    for name in ("pairs", "mlm_pairs"):
        if name in options.encoders:
            match_pairs(out, name, options.pair_steps)
    finetune(options.data, out, options.encoders, options.seeds, options.epochs)


def write_pairs(data: Path, out: Path) -> None:
    """Write pairs as documents, single sentences for the tokenizer, and pairs matched or not, and count."""
    if (out / "counts.json").exists():
        return
    measured = ShingleSet(assin_sentences(data))
    counts: dict[str, dict[str, int]] = {}
    unique_pairs: dict[Pair, None] = {}
    for source in PAIRS:
        path = data / source / "train.parquet"
        for first, second in zip(column(path, "sentence1"), column(path, "sentence2"), strict=True):
            left_out = first in measured or second in measured
            count = counts.setdefault(source, {"pairs": 0, "words": 0, "left out": 0})
            count["left out"] += left_out
            if not left_out and Pair(source, first, second) not in unique_pairs:
                unique_pairs[Pair(source, first, second)] = None
                count["pairs"] += 1
                count["words"] += len(words(first)) + len(words(second))
    draw = random.Random(1)
    pairs = list(unique_pairs)
    draw.shuffle(pairs)
    validation = pairs[:NUM_VALIDATION]
    held_out = {text for pair in validation for text in pair[1:]}
    train = [pair for pair in pairs[NUM_VALIDATION:] if held_out.isdisjoint(pair[1:])]
    for split, some in (("train", train), ("validation", validation)):
        documents = [f"{pair.first} [SEP] {pair.second}" for pair in some]
        pq.write_table(pa.table({"text": documents}), out / f"pairs.{split}.parquet")
        pq.write_table(matched_or_not(some, draw), out / f"matched.{split}.parquet")
        counts[f"{split}, all together"] = {
            "pairs": len(some),
            "words": sum(len(words(document)) - 1 for document in documents),  # without SEP
            "left out": 0 if some is validation else len(pairs) - len(validation) - len(train),
        }
    sentences = dict.fromkeys(text for pair in train for text in pair[1:])
    pq.write_table(pa.table({"text": list(sentences)}), out / "sentences.parquet")
    (out / "counts.json").write_text(json.dumps(counts, indent=1))


def matched_or_not(pairs: list[Pair], draw: random.Random) -> pa.Table:
    """Return each pair once as it is (1) and once with the second sentence of another pair of its source (0)."""
    seconds: dict[str, list[str]] = {}
    for pair in pairs:
        seconds.setdefault(pair.source, []).append(pair.second)
    belong = {pair[1:] for pair in pairs}
    rows = [(pair.first, pair.second, 1) for pair in pairs]
    for pair in pairs:
        others = draw.sample(seconds[pair.source], min(8, len(seconds[pair.source])))
        other = next((text for text in others if text != pair.first and (pair.first, text) not in belong), None)
        if other is not None:
            rows.append((pair.first, other, 0))
    draw.shuffle(rows)
    first, second, label = zip(*rows, strict=True)
    return pa.table({"sentence1": first, "sentence2": second, "label": label})


def make_model_folder(out: Path) -> None:
    """Write the architecture, and train the tokenizer."""
    (out / "architecture").mkdir(exist_ok=True)
    (out / "architecture" / "config.json").write_text(json.dumps({**ARCHITECTURE, "vocab_size": VOCAB_SIZE}, indent=1))
    if not (out / "tokenizer").exists():
        texts, output = str(out / "sentences.parquet"), str(out / "tokenizer")
        paratune("tokenizer", "train", texts, "--out", output, "--vocab-size", str(VOCAB_SIZE), "--lowercase")


def print_pairs(out: Path) -> None:
    print("\n| sentences in pairs, unlabelled | pairs | words | left out |\n|---|---|---|---|")
    for name, count in json.loads((out / "counts.json").read_text()).items():
        print(f"| {name} | {count['pairs']} | {count['words']} | {count['left out']} |")


def new_weights(out: Path) -> dict[str, Any]:
    return {"name": str(out / "architecture"), "from_scratch": True, "tokenizer": str(out / "tokenizer")}


def pretrain(out: Path, num_steps: int) -> None:
    """Train MLM on pairs, and print the perplexity during training."""
    config = {
        "task": {"kind": "mlm", "windows": "documents", "mask_probability": 0.3},
        "data": {
            "train": str(out / "pairs.train.parquet"),
            "validation": str(out / "pairs.validation.parquet"),
            "columns": {"text": "text"},
            "max_length": 128,
        },
        "model": new_weights(out),
        "train": {
            "max_steps": num_steps,
            "learning_rate": 2e-3,
            "warmup_ratio": 0.1,
            "weight_decay": 0.01,
            "eps": 1e-6,
        },
        "batch": {"global": 64, "micro_batch_size": 64},
        "evaluate": {"every": "steps", "steps": max(1, num_steps // 8), "batch_size": 64},
        "checkpoint": {"every": "steps", "steps": max(1, num_steps // 4), "keep": 1},
    }
    print_curve(train_run(out, "mlm", 1, config), "perplexity", "accuracy")


def match_pairs(out: Path, name: str, num_steps: int) -> None:
    """Train an encoder to classify matched and unmatched pairs, and print its scores."""
    config = {
        "task": {"kind": "classification", "labels": {0: "apart", 1: "matched"}},
        "data": {
            "train": str(out / "matched.train.parquet"),
            "validation": str(out / "matched.validation.parquet"),
            "columns": {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
            "max_length": 128,
        },
        "model": {"name": str(out / "runs" / "mlm" / "model")} if name == "mlm_pairs" else new_weights(out),
        "train": {"max_steps": num_steps, "learning_rate": 1e-3, "warmup_ratio": 0.1, "eps": 1e-6},
        "batch": {"global": 64, "micro_batch_size": 64},
        "evaluate": {"every": "steps", "steps": max(1, num_steps // 4), "batch_size": 64},
        "checkpoint": {"every": "steps", "steps": max(1, num_steps // 4), "keep": 1},
    }
    print_curve(train_run(out, name, 1, config), "accuracy", "loss")


def finetune(data: Path, out: Path, encoders: list[str], seeds: list[int], epochs: int) -> None:
    """Train similarity of ASSIN pt-PT from each encoder, and print scores and verdicts."""
    scores: dict[str, list[dict[str, dict[str, float]]]] = {}
    for seed in seeds:
        for name in encoders:
            splits = {part: str(data / "assin_ptpt" / f"{part}.parquet") for part in ("train", "validation", "test")}
            columns = {"text": "sentence1", "text_pair": "sentence2", "label": "score", "id": "id"}
            config = {
                "task": {"kind": "regression", "start_at_mean": True},
                "data": {**splits, "columns": columns, "max_length": 128},
                "model": new_weights(out) if name == "new_weights" else {"name": str(out / "runs" / name / "model")},
                "train": {"epochs": epochs, "learning_rate": 5e-4, "warmup_ratio": 0.1, "eps": 1e-6},
                "batch": {"global": 32, "micro_batch_size": 32},
                "evaluate": {"best": "pearson", "batch_size": 64},
                "checkpoint": {"every": "epoch", "keep": 1},
            }
            run = train_run(out, f"assin_{name}_{seed}", seed, config)
            scores.setdefault(name, []).append(json.loads((run / "summary.json").read_text())["scores"])
    print("\n| encoder | test Pearson, seeds " + ", ".join(map(str, seeds)), end=" ")
    print("| mean ± spread | validation Pearson | test RMSE | CPU s a run |\n|---|---|---|---|---|---|")
    for name, results in scores.items():
        each_seed = ", ".join(f"{seed_scores['test']['pearson']:.3f}" for seed_scores in results)
        columns = [("test", "pearson"), ("validation", "pearson"), ("test", "rmse")]
        means = [mean([seed_scores[part][metric] for seed_scores in results]) for part, metric in columns]
        spent = statistics.mean(cpu_s(out, f"assin_{name}_{seed}") for seed in seeds)
        print(f"| {name} | {each_seed} | **{means[0]}** | {means[1]} | {means[2]} | {spent:.0f} |")
    groups = [",".join(str(out / "runs" / f"assin_{name}_{seed}") for seed in seeds) for name in encoders]
    if len(groups) > 1:
        print("\n" + paratune("compare", *groups, "--allow", "model", "--margin", "pearson=0.01"), flush=True)


def mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def print_curve(run: Path, *metrics: str) -> None:
    print(f"\n{run.name}, {cpu_s(run.parents[1], run.name):.0f} CPU seconds; validation:\n")
    print("| step | " + " | ".join(metrics) + " |\n|---|" + "---|" * len(metrics))
    for line in (run / "events.rank0000.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "evaluation" and event.get("split") == "validation":
            print(f"| {event['step']} | " + " | ".join(f"{event['scores'][name]:.3f}" for name in metrics) + " |")
    sys.stdout.flush()


def train_run(out: Path, name: str, seed: int, config: dict[str, Any]) -> Path:
    """Run a configuration unless it has finished, and return its folder."""
    run = out / "runs" / name
    if not (run / "summary.json").exists():
        path = out / f"{name}.yaml"
        config["measure"] = {"noise_scale_every": None}
        config["run"] = {"name": name, "folder": str(out / "runs"), "seed": seed}
        path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        paratune("train", str(path), *(["--resume"] if run.exists() else []))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (out / f"{name}.cpu_s").write_text(f"{spent:.1f}")
        print(f"{name}: {spent:.0f} CPU seconds", file=sys.stderr, flush=True)
    return run


def cpu_s(out: Path, name: str) -> float:
    return float((out / f"{name}.cpu_s").read_text())


if __name__ == "__main__":
    main()
