"""Texts of both varieties of Portuguese from six public sources, in the format of `corpus_clean.py variety`.

python benchmarks/corpus_variety_sources.py --data DATA --bosque BOSQUE --dsltl DSLTL --help-pt PT --help-br BR OUTPUT
python benchmarks/corpus_clean.py variety OUTPUT/corpus.yaml

DATA     assin_ptpt, assin_ptbr, assin2, stsb_pt_deepl, mrpc_ptbr_plue, rte_ptbr_plue, squad_v2_pt,
         pt_raw_text: a folder each, with train.parquet
BOSQUE   git clone https://github.com/UniversalDependencies/UD_Portuguese-Bosque; dev and test are read
DSLTL    git clone https://github.com/LanguageTechnologyLab/DSL-TL; its DSL-TL-Corpus/PT-DSL-TL/PT_train.tsv is read
PT, BR   of Debian 12: apt-get download libreoffice-help-pt libreoffice-help-pt-br; dpkg-deb -x PACKAGE PT
"""

import argparse
import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import trafilatura
import yaml

HELP = "usr/share/libreoffice/help"
HELP_PAGES = 600
"""Pages of each language: the first by name that exist in both."""


def columns(table: Path, names: list[str]) -> Iterator[str]:
    rows = pq.read_table(table, columns=names)
    for name in names:
        yield from rows[name].to_pylist()


def bosque(folder: Path, prefix: str) -> Iterator[str]:
    """Yield the sentences of documents by the prefix of their names: CP is Público, CF is Folha de S.Paulo."""
    for part in ("dev", "test"):
        whole = (folder / f"pt_bosque-ud-{part}.conllu").read_text(encoding="utf-8")
        for sentence in whole.split("\n\n"):
            known = dict(line[2:].split(" = ", 1) for line in sentence.splitlines() if re.match("# .+ = ", line))
            if known.get("sent_id", "").startswith(prefix):
                yield known["text"]


def dsltl(folder: Path, label: str) -> Iterator[str]:
    with (folder / "DSL-TL-Corpus/PT-DSL-TL/PT_train.tsv").open(encoding="utf-8", newline="") as file:
        yield from (row[1] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row[2] == label)


def help_pages(folder: Path, language: str, other: Path, other_language: str) -> Iterator[str]:
    """Yield the lines of the pages that exist in both languages."""
    root, beside = folder / HELP / language, other / HELP / other_language
    names = sorted(
        path.relative_to(root) for path in root.rglob("*.html") if (beside / path.relative_to(root)).exists()
    )
    for name in names[:HELP_PAGES]:
        text = trafilatura.extract((root / name).read_text(encoding="utf-8"), fast=True) or ""
        yield from text.splitlines()


def write(path: Path, texts: Iterable[str]) -> str:
    lines = (re.sub(r"\s+", " ", line).strip().strip('"') for text in texts for line in text.splitlines())
    path.write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "bosque", "dsltl", "help-pt", "help-br"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("output", type=Path)
    chosen = parser.parse_args()
    data, pairs = chosen.data, ["sentence1", "sentence2"]
    chosen.output.mkdir(parents=True, exist_ok=True)

    def texts_of(name: str, names: list[str]) -> list[str]:
        return list(columns(data / name / "train.parquet", names))

    manuals = pq.read_table(data / "pt_raw_text/train.parquet").to_pylist()
    sides = {
        "assin": (texts_of("assin_ptpt", pairs), texts_of("assin_ptbr", pairs)),
        "bosque": (bosque(chosen.bosque, "CP"), bosque(chosen.bosque, "CF")),
        "dsltl": (dsltl(chosen.dsltl, "PT-PT"), dsltl(chosen.dsltl, "PT-BR")),
        "lo": (
            help_pages(chosen.help_pt, "pt", chosen.help_br, "pt-BR"),
            help_pages(chosen.help_br, "pt-BR", chosen.help_pt, "pt"),
        ),
        "sts": (
            texts_of("stsb_pt_deepl", pairs),
            [*texts_of("assin2", pairs), *texts_of("mrpc_ptbr_plue", pairs), *texts_of("rte_ptbr_plue", pairs)],
        ),
        "doc": (
            [page["text"] for page in manuals if page["source"].startswith("debian-")],
            dict.fromkeys(texts_of("squad_v2_pt", ["context"])),
        ),
    }
    sources = [
        {
            "name": name,
            "european": [write(chosen.output / f"{name}_pt.txt", european)],
            "brazilian": [write(chosen.output / f"{name}_br.txt", brazilian)],
        }
        for name, (european, brazilian) in sides.items()
    ]
    settings = {
        "work": str(chosen.output / "work"),
        "index": {"files": ["none.cdx"]},
        "clean": {"variety": {"sources": sources}},
    }
    (chosen.output / "corpus.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
