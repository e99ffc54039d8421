"""Tokenizers trained on own Portuguese texts, compared with the vocabularies of known models.

    python benchmarks/tokenizer.py --data FOLDER --out FOLDER             # a minute of one core

FOLDER of --data holds pt_raw_text, squad_v2_pt, stsb_pt_deepl, arquivo_api, assin_ptpt and vocab; $PARATUNE_SHARED_DATA
by default. --out keeps texts and tokenizers, and finished steps are not repeated. Tables are Markdown.
"""

import argparse
import gzip
import html
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from machine import machine_lines
from portuguese import ShingleSet, assin_sentences, column, paratune, words

VOCAB_SIZES = (20_000, 8_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data FOLDER, or $PARATUNE_SHARED_DATA")
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    write_texts(options.data, out / "texts")
    train_tokenizers(out)
    print("\n".join(machine_lines()), flush=True)
    compare_tokenizers(options.data, out)


def write_texts(data: Path, folder: Path) -> None:
    """Write the training texts, without lines that they share with the test texts, and count."""
    if (folder / "counts.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    measured = ShingleSet([*assin_sentences(data), *column(data / "pt_raw_text" / "test.parquet", "text")])
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
    """Yield name and text of each document, without repeated texts."""
    for text in column(data / "pt_raw_text" / f"{split}.parquet", "text"):
        yield "pt_raw_text", text
    if split == "validation":
        return  # the source whose splits consist of pages
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
    """Return a search snippet without its marks; an omission becomes a line break."""
    parts = re.split(r"<span.*?(?:</span>|$)", html.unescape(snippet), flags=re.S)
    return "\n".join(" ".join(re.sub(r"<[^>]*>", "", part).split()) for part in parts)


def train_tokenizers(out: Path) -> None:
    for size in VOCAB_SIZES:
        folder = out / f"tokenizer_{size}"
        if not folder.exists():
            arguments = [str(out / "texts" / "train.parquet"), "--out", str(folder), "--vocab-size", str(size)]
            paratune("tokenizer", "train", *arguments)


def compare_tokenizers(data: Path, out: Path) -> None:
    """Print fertility, coverage and unknown tokens of our tokenizers and of the vocabularies of known models."""
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


if __name__ == "__main__":
    main()
