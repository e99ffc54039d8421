"""Share of planted near-duplicates that are found, speed of the steps of the cleaning over the whole corpus, and their
memory at ten times the input. Prints Markdown.

    python benchmarks/corpus_duplicates.py --data FOLDER

FOLDER holds pt_raw_text/*.parquet (column text) and assin_ptpt/*.parquet. Documents are windows of 150 to 450 words of
the texts; some have a planted copy, in which a share of the words is replaced by other words of the texts.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.console import Display
from paratune.corpus.clean.duplicates import candidate_probability, run_decontaminate, run_duplicates, shingles
from paratune.corpus.clean.quality import run_lines
from paratune.corpus.clean.step import normalized_words
from paratune.corpus.settings import Clean, Corpus, Decontaminate, EvaluationSet
from paratune.corpus.shard import DOCUMENT_SCHEMA, part_file, write_shard
from paratune.corpus.stage import Stage, begin, finish, run_stage
from paratune.hardware import peak_memory_bytes

EDITS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2, 0.3)
PER_SHARD = 2000
STEPS = {"lines": run_lines, "duplicates": run_duplicates, "decontaminate": run_decontaminate}
RUN = partial(run_stage, workers=1, display=Display(speaks=False))


def main() -> None:
    os.environ.setdefault(
        "ARROW_DEFAULT_MEMORY_POOL", "system"
    )  # as the command does; the measured processes are started by this one
    arguments = parse()
    if arguments.step:
        run_step(Path(arguments.work), arguments.step, arguments.data)
        return
    from machine import machine_lines  # imported here, because it imports torch, whose memory is not part of a step

    print("\n".join(machine_lines()))
    words = read_words(arguments.data)
    with tempfile.TemporaryDirectory() as work:
        if arguments.only in (None, "pairs"):
            planted_pairs(words, arguments, Path(work))
        if arguments.only in (None, "memory"):
            memory(words, arguments, Path(work))
        if arguments.only in (None, "changed"):
            changed_sentences(words, arguments.data, Path(work))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"))
    parser.add_argument("--pairs", type=int, default=100, help="planted pairs for each share of edits")
    parser.add_argument("--only", choices=("pairs", "memory", "changed"), help="one of the tables")
    parser.add_argument(
        "--documents", type=int, default=10_000, help="documents of the smaller corpus, a tenth of the larger"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.data = Path(arguments.data)
    return arguments


def read_words(data: Path) -> list[str]:
    texts = [text for path in sorted((data / "pt_raw_text").glob("*.parquet")) for text in read(path)]
    return [word for text in texts for word in text.split()]


def read(path: Path) -> list[str]:
    return pq.read_table(path)["text"].to_pylist()


def document(number: int, text: str) -> dict[str, Any]:
    url = f"http://host{number % 97}.pt/{number}"
    return dict.fromkeys(DOCUMENT_SCHEMA.names) | {"id": f"{number:016x}", "url": url, "text": text}


def write(work: Path, documents: Iterator[dict[str, Any]], num_documents: int) -> None:
    """Write documents as the extraction writes them."""
    stage = Stage("extract", work / "3_extract", DOCUMENT_SCHEMA, list, {}, [])
    begin(stage)
    num_shards = -(-num_documents // PER_SHARD)
    for number in range(num_shards):
        size = min(PER_SHARD, num_documents - number * PER_SHARD)
        write_shard(stage.folder, number, DOCUMENT_SCHEMA, (next(documents) for _ in range(size)))
    finish(stage, num_shards)


def edited(text: list[str], share: float, words: list[str], chance: random.Random) -> list[str]:
    """Replace a share of the words, at least one, at random positions."""
    edited_words = list(text)
    for place in chance.sample(range(len(edited_words)), max(1, round(share * len(edited_words)))):
        edited_words[place] = chance.choice(words)
    return edited_words


def planted_pairs(words: list[str], arguments: argparse.Namespace, work: Path) -> None:
    """Plant edited copies of windows that do not overlap, and count the copies found."""
    chance = random.Random(1)
    starts = list(range(0, len(words) - 450, 450))
    if arguments.pairs * len(EDITS) > len(starts):
        raise SystemExit(f"--pairs {arguments.pairs}: at most {len(starts) // len(EDITS)}, or windows overlap")
    chance.shuffle(starts)
    texts: list[list[str]] = []
    pairs: list[tuple[float, int]] = []
    for number in range(arguments.pairs * len(EDITS)):
        window = words[starts[number] : starts[number] + chance.randrange(150, 450)]
        pairs.append((EDITS[number % len(EDITS)], len(texts)))
        texts += [window, edited(window, EDITS[number % len(EDITS)], words, chance)]
    write(work / "pairs", (document(n, " ".join(text)) for n, text in enumerate(texts)), len(texts))
    corpus = Corpus(work=str(work / "pairs"))
    run_duplicates(corpus, work / "pairs/3_extract", work / "pairs/4_clean/4_duplicates", RUN)
    near = corpus.clean.duplicates
    first_of = {}
    for number in range(-(-len(texts) // PER_SHARD)):
        for row in pq.read_table(work / "pairs/4_clean/4_duplicates" / part_file(number, "dropped")).to_pylist():
            first_of[int(row["id"], 16)] = int(row["detail"].split()[0], 16)
    sets = [set(shingles(normalized_words(" ".join(text)), near.shingle_words)) for text in texts]
    similarities = [len(sets[n] & sets[n + 1]) / len(sets[n] | sets[n + 1]) for _, n in pairs]
    print(
        f"\n{len(pairs)} planted pairs of texts of 150 to 450 words; shingles of {near.shingle_words} words, "
        f"{near.bands} bands of {near.rows}, threshold {near.threshold}\n"
    )
    print(
        "| words replaced | pairs | Jaccard, mean | expected to be compared | found |\n| --- | --- | --- | --- | --- |"
    )
    for edit in EDITS:
        chosen = [index for index, (share, _) in enumerate(pairs) if share == edit]
        mean = sum(similarities[index] for index in chosen) / len(chosen)
        compared = sum(candidate_probability(similarities[index], near.bands, near.rows) for index in chosen)
        hits = sum(first_of.get(pairs[index][1] + 1) == pairs[index][1] for index in chosen)
        print(f"| {edit:.1%} | {len(chosen)} | {mean:.3f} | {compared / len(chosen):.1%} | {hits / len(chosen):.1%} |")
    similar = {n + 1 for (_, n), similarity in zip(pairs, similarities, strict=True) if similarity >= near.threshold}
    hits = sum(first_of.get(n) == n - 1 for n in similar)
    right = 0
    for other, first in first_of.items():
        one, two = sets[first], sets[other]
        right += len(one & two) / len(one | two) >= near.threshold
    print(
        f"\nOf {len(similar)} pairs of a Jaccard similarity of {near.threshold} or more {hits} were found: recall "
        f"{hits / len(similar):.1%}. Of {len(first_of)} documents that were dropped {right} have that similarity to "
        f"the one they name: precision {right / len(first_of):.1%}."
    )


def stream(words: list[str], num_documents: int) -> Iterator[dict[str, Any]]:
    """Yield documents, a tenth of them edited copies of one of the previous hundred; all share two lines."""
    chance = random.Random(2)
    last: list[list[str]] = []
    for number in range(num_documents):
        if last and chance.random() < 0.1:
            text = edited(chance.choice(last), chance.choice((0.0, 0.01, 0.02)), words, chance)
        else:
            text = []
            while len(text) < 250:  # parts of the text in random order: no two documents are equal
                start = chance.randrange(len(words) - 20)
                text += words[start : start + 20]
        last = [*last[-99:], text]
        lines = [" ".join(text[start : start + 50]) for start in range(0, len(text), 50)]
        yield document(number, "\n".join(["Início do sítio de notícias", *lines, f"Atualizado em {number}"]))


def memory(words: list[str], arguments: argparse.Namespace, work: Path) -> None:
    print("\n| step | documents | kept | CPU seconds | documents per CPU second | peak of memory, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for times in (1, 10):
        folder, size = work / f"x{times}", times * arguments.documents
        write(folder, stream(words, size), size)
        for step in STEPS:
            command = [sys.executable, __file__, "--step", step, "--work", str(folder), "--data", str(arguments.data)]
            figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"| {step} | {size} | {figures['kept']} | {figures['cpu_s']:.1f} | {size / figures['cpu_s']:.0f} | "
                f"{figures['peak_mib']:.0f} |",
                flush=True,
            )


def changed_sentences(words: list[str], data: Path, work: Path) -> None:
    """Print how many of 400 sentences with one changed word `decontaminate` finds, and how many other documents."""
    file = data / "assin_ptpt/test.parquet"
    tests = [EvaluationSet(name="assin", files=[str(file)], columns=["sentence1", "sentence2"])]
    sentences = [text.split() for name in tests[0].columns for text in pq.read_table(file)[name].to_pylist()]
    chance = random.Random(0)
    planted = []
    for sentence in chance.sample([words for words in sentences if len(words) >= 5], 400):
        sentence[chance.randrange(len(sentence))] = "outra"
        start = chance.randrange(len(words) - 100)
        planted.append(" ".join([*words[start : start + 50], *sentence, *words[start + 50 : start + 100]]))
    others = {
        "manuals": read(data / "pt_raw_text/train.parquet"),
        "encyclopedia": {*pq.read_table(data / "squad_v2_pt/train.parquet")["context"].to_pylist()},
        "news, Brazilian": {*pq.read_table(data / "assin_ptbr/train.parquet")["sentence1"].to_pylist()},
    }
    print(
        "\n| words | sentences found | "
        + " | ".join(f"{name} ({len(set(own))})" for name, own in others.items())
        + " |"
    )
    print("| --- " * (2 + len(others)) + "|")
    for wanted in (None, 13, 8, 6, 5):
        corpus = Corpus(work=str(work), clean=Clean(decontaminate=Decontaminate(sets=tests, words=wanted)))
        cells = []
        for name, own in {"planted": planted, **others}.items():
            folder, texts = work / f"changed {name} {wanted}", sorted(set(own))
            write(folder, (document(number, text) for number, text in enumerate(texts)), len(texts))
            totals = run_decontaminate(corpus, folder / "3_extract", folder / "4_clean/6_decontaminate", RUN)
            cells.append(str(len(texts) - totals["kept"]))
        print(f"| {wanted or 'default'} | {' | '.join(cells)} |", flush=True)


def run_step(work: Path, step: str, data: Path) -> None:
    """Run one step in this process, and print its figures as JSON."""
    tests = [
        EvaluationSet(name="assin", files=[str(data / "assin_ptpt/*.parquet")], columns=["sentence1", "sentence2"])
    ]
    corpus = Corpus(work=str(work), clean=Clean(decontaminate=Decontaminate(sets=tests)))
    before = resource.getrusage(resource.RUSAGE_SELF)
    totals = STEPS[step](corpus, work / "3_extract", work / f"4_clean/{step}_{step}", RUN)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"kept": totals["kept"], "cpu_s": cpu_s, "peak_mib": (peak_memory_bytes() or 0) / 2**20}))


if __name__ == "__main__":
    main()
