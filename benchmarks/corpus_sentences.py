"""Cost of the stage `sentences` of a corpus, and perplexity of good text, shuffled words and English.

Each size runs in a separate process; the table has its CPU seconds and peak memory. Larger inputs are copies of the
texts with some words replaced, so that their sentences differ.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from machine import machine_lines

from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.sentences.ngram import load_ngram, ngram_perplexity, train
from paratune.corpus.sentences.run import run_sentences
from paratune.corpus.sentences.split import ngram_words, rejection_reason, split_sentences
from paratune.corpus.settings import CleanPart, Corpus, Index, SentenceSettings
from paratune.corpus.shard import DOCUMENT_SCHEMA, write_shard
from paratune.corpus.stage import Stage, begin, finish
from paratune.hardware import peak_memory_bytes

MIB = 2**20
DOCUMENTS_PER_SHARD = 800
MODEL_WORDS = 400_000
"""Words that the model learns from at every size: memory grows with these, not with the corpus."""


def main() -> None:
    os.environ.setdefault(
        "ARROW_DEFAULT_MEMORY_POOL", "system"
    )  # as the command does; the measured processes are started by this one
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PARATUNE_SHARED_DATA", "../shared/data")))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--parts", nargs="+", default=["splitting", "costs", "training", "separation"])
    parser.add_argument("--one", type=Path, help="run the stage in this folder, print its figures, and exit")
    parser.add_argument("--train", type=int, help="train on this number of copies, print the figures, and exit")
    options = parser.parse_args()
    if options.one or options.train:
        print(json.dumps(one(options.one) if options.one else train_once(options.data, options.train)))
        return
    print("\n".join(machine_lines()), "\n")
    parts = {
        "splitting": splitting,
        "costs": partial(costs, sizes=options.sizes),
        "training": training,
        "separation": separation,
    }
    for name in options.parts:
        parts[name](options.data)


def texts_of(data: Path, split: str = "train") -> list[str]:
    return pq.read_table(data / f"pt_raw_text/{split}.parquet")["text"].to_pylist()


def varied(text: str, copy: int) -> str:
    """Return a text with about every seventh word replaced: most sentences differ between copies."""
    if copy == 0:
        return text
    chance = random.Random(f"{copy} {hashlib.sha256(text.encode()).hexdigest()}")
    return " ".join(w[::-1] if w.isalpha() and chance.random() < 1 / 7 else w for w in text.split(" "))


def costs(data: Path, sizes: list[int]) -> None:
    print("| texts | MB | shards | sentences found | kept | CPU s | sentences/CPU s | peak MiB |")
    print("|---|---|---|---|---|---|---|---|")
    texts = texts_of(data)
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            num_bytes = documents(Path(folder), texts, size)
            figures = in_process("--one", folder)
        num_sentences = figures["kept"] + sum(figures["dropped"].values())
        print(
            f"| {size}x | {num_bytes / 1e6:.1f} | {figures['shards']} | {num_sentences:,} | {figures['kept']:,} | "
            f"{figures['cpu_s']:.1f} | {num_sentences / figures['cpu_s']:,.0f} | {figures['peak_mib']:.0f} |",
            flush=True,
        )


def in_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *arguments]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def peak_mib() -> float:
    return (peak_memory_bytes() or 0) / MIB


def documents(folder: Path, texts: list[str], size: int) -> int:
    """Write cleaned documents, and return their number of bytes of text."""
    stage = Stage("documents", output_folder(settings_of(folder)), DOCUMENT_SCHEMA, list, None, size)
    begin(stage)
    all_texts = [(copy, number) for copy in range(size) for number in range(len(texts))]
    shards = [all_texts[at : at + DOCUMENTS_PER_SHARD] for at in range(0, len(all_texts), DOCUMENTS_PER_SHARD)]
    num_bytes = 0
    for number, shard in enumerate(shards):
        rows = []
        for copy, place in shard:
            text = varied(texts[place], copy)
            num_bytes += len(text.encode())
            known = {"id": f"{copy}-{place}", "url": f"http://a.pt/{copy}/{place}", "text": text}
            rows.append({**dict.fromkeys(DOCUMENT_SCHEMA.names), **known})
        write_shard(stage.folder, number, DOCUMENT_SCHEMA, rows)
    finish(stage, len(shards))
    return num_bytes


def settings_of(folder: Path) -> Corpus:
    clean = CleanPart(max_words=MODEL_WORDS)
    return Corpus(work=str(folder), index=Index(files=["unused"]), sentences=SentenceSettings(clean=clean))


def one(folder: Path) -> dict[str, Any]:
    began = time.process_time()
    totals = run_sentences(settings_of(folder), 1, Display(speaks=False))
    return {
        "cpu_s": time.process_time() - began,
        "peak_mib": peak_mib(),
        **{name: totals[name] for name in ("kept", "dropped", "shards")},
    }


def training(data: Path) -> None:
    """Print the cost of training for several numbers of words: copies of the text with some words replaced."""
    print("\n| words | vocabulary | n-grams | ARPA MB | CPU s | words/CPU s | loading CPU s | peak MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for size in (1, 4, 12):
        figures = in_process("--data", str(data), "--train", str(size))
        print(
            f"| {figures['num_words']:,} | {figures['vocabulary_size']:,} | {sum(figures['num_ngrams']):,} | "
            f"{figures['arpa_mb']:.0f} | {figures['cpu_s']:.1f} | {figures['num_words'] / figures['cpu_s']:,.0f} | "
            f"{figures['loading_s']:.1f} | {figures['peak_mib']:.0f} |",
            flush=True,
        )


def train_once(data: Path, size: int) -> dict[str, Any]:
    texts = texts_of(data)
    sentences = [s for copy in range(size) for text in texts for s in split_sentences(varied(text, copy))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.arpa"
        began = time.process_time()
        learnt = train(lambda: map(ngram_words, sentences), path, vocabulary=200_000)
        trained = time.process_time()
        peak = peak_mib()
        load_ngram(str(path), "")
        assert learnt is not None
        loading = time.process_time() - trained
        size_mb = path.stat().st_size / 1e6
    figures = {"cpu_s": trained - began, "loading_s": loading, "arpa_mb": size_mb, "peak_mib": peak}
    return {**asdict(learnt), **figures}


def splitting(data: Path) -> None:
    """Print how many sentences the texts have, and the CPU time to find them: the best of three."""
    print("| texts | MB | sentences | CPU s | MB/CPU s |\n|---|---|---|---|---|")
    manuals = [text for split in ("train", "test", "validation") for text in texts_of(data, split)]
    reviews = pq.read_table(data / "imdb/train.parquet")["text"].to_pylist()[:3000]
    for name, texts in (("manuals, Portuguese", manuals), ("film reviews, English", reviews)):
        times = []
        for _ in range(3):
            start = time.process_time()
            found = sum(1 for text in texts for _ in split_sentences(text))
            times.append(time.process_time() - start)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        print(f"| {name} | {megabytes:.1f} | {found:,} | {min(times):.2f} | {megabytes / min(times):.0f} |")


def separation(data: Path) -> None:
    """Print perplexities of held-out text, its shuffled words, and English, by a model of the training part."""
    settings = SentenceSettings()

    def fit(texts: list[str]) -> list[str]:
        return list(
            dict.fromkeys(s for t in texts for s in split_sentences(t) if rejection_reason(s, settings) is None)
        )

    learnt = fit(texts_of(data))
    known = set(learnt)
    good = [s for s in fit(texts_of(data, "validation") + texts_of(data, "test")) if s not in known]
    chance = random.Random(0)
    shuffled = [" ".join(chance.sample(words, len(words))) for words in map(ngram_words, good)]
    english = fit(pq.read_table(data / "imdb/train.parquet")["text"].to_pylist()[:40])[: len(good)]
    portuguese = fit(assin(data))[: len(good)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.arpa"
        train(lambda: map(ngram_words, learnt), path, vocabulary=200_000)
        model = load_ngram(str(path), "separation")
        groups = {
            "learnt from (train)": learnt,
            "good (held out)": good,
            "news, Portuguese (ASSIN)": portuguese,
            "shuffled words": shuffled,
            "English": english,
        }
        print("\n| sentences | number | 5% | median | 95% | above 1,000 | AUC against good |")
        print("|---|---|---|---|---|---|---|")
        values = {name: np.array([ngram_perplexity(model, s) for s in sentences]) for name, sentences in groups.items()}
        for name, perplexities in values.items():
            low, middle, high = np.quantile(perplexities, [0.05, 0.5, 0.95])
            print(
                f"| {name} | {len(perplexities):,} | {low:,.0f} | {middle:,.0f} | {high:,.0f} | "
                f"{np.mean(perplexities > 1000):.1%} | {auc(perplexities, values['good (held out)']):.3f} |"
            )
        bars(values)


def assin(data: Path) -> list[str]:
    table = pq.read_table(data / "assin_ptpt/train.parquet")
    return table["sentence1"].to_pylist()


def auc(found: np.ndarray, good: np.ndarray) -> float:
    """Return how often a value of `found` is higher than a value of `good`."""
    ranks = np.argsort(np.argsort(np.concatenate([found, good]))) + 1
    return (ranks[: len(found)].sum() - len(found) * (len(found) + 1) / 2) / (len(found) * len(good))


def bars(values: dict[str, np.ndarray]) -> None:
    """Print a histogram of each group as text: one column per fifth of a decade, from 1 to 10^6."""
    edges = np.arange(0, 6.01, 0.2)
    print("\n```")
    for name, perplexities in values.items():
        shares = np.histogram(np.log10(perplexities), edges)[0] / len(perplexities)
        print(f"{name:>25} |{''.join(' ▁▂▃▄▅▆▇█'[min(8, round(8 * share / 0.25))] for share in shares)}|")
    print(f"{'':>25}  1    10   10²  10³  10⁴  10⁵  10⁶\n```")


if __name__ == "__main__":
    main()
