"""Extraction of texts: documents of each kind per CPU-second, and memory at ten times the input.

    python benchmarks/corpus_extract.py --data FOLDER

FOLDER holds pt_docs (PDF, HTML and text of Debian's and LibreOffice's Portuguese manuals). Word, OpenDocument and RTF
files are made from the text by functions of the tests.
"""

import argparse
import importlib.metadata
import itertools
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from corpus_files import docx, fetched, fetched_row, odt, pdf, rtf

from paratune.console import Display
from paratune.corpus.extract.document import extract
from paratune.corpus.extract.process import ExtractedText
from paratune.corpus.extract.run import LIBRARIES, run_extract
from paratune.corpus.settings import Corpus, Extract
from paratune.hardware import peak_memory_bytes

KEPT = Extract(min_characters=1, max_characters=10**7)
SECONDS, RUNS = 1.5, 3
MIB = 2**20


def pages(folder: Path, name: str) -> list[bytes]:
    with tarfile.open(folder / name) as archive:
        files = (archive.extractfile(member) for member in archive if member.name.endswith((".html", ".xhp")))
        return [file.read() for file in files if file is not None]


def documents(folder: Path) -> dict[str, list[bytes]]:
    """Return documents of each kind; generated ones contain a tenth of the text each."""
    text = (folder / "debian-faq.pt.txt").read_text(encoding="utf-8")
    lines = text.split("\n")
    tenths = [lines[start : start + len(lines) // 10] for start in range(0, len(lines) - 10, len(lines) // 10)]
    plain = [[line.encode("cp1252", "ignore").decode("cp1252") for line in tenth] for tenth in tenths]
    safe = [[line.replace("&", "e").replace("<", "(").replace(">", ")") for line in tenth] for tenth in plain]
    return {
        "HTML, LibreOffice help": pages(folder, "libreoffice-help-pt.sample.html.tar.gz"),
        "HTML, Debian FAQ": pages(folder, "debian-faq.pt.html.tar.gz"),
        "text, UTF-8": ["\n".join(tenth).encode() for tenth in tenths],
        "text, windows-1252, not declared": ["\n".join(tenth).encode("cp1252") for tenth in plain],
        "PDF, 75 pages": [(folder / "debian-faq.pt.pdf").read_bytes()],
        "PDF, 17 pages": [(folder / "audacity-manual.pdf").read_bytes()],
        "Word (docx)": [docx(*tenth) for tenth in safe],
        "OpenDocument": [odt(*tenth) for tenth in safe],
        "RTF": [
            rtf(*(line.replace("\\", "/").replace("{", "(").replace("}", ")") for line in tenth)) for tenth in plain
        ],
    }


def rate(payloads: list[bytes]) -> tuple[float, int]:
    """Return documents per CPU-second of this process, and the number of their characters."""
    began, num_read, num_characters = time.process_time(), 0, 0
    while time.process_time() - began < SECONDS:
        for payload in payloads:
            extracted = extract(payload, None, KEPT)
            num_read += 1
            if num_read <= len(payloads) and isinstance(extracted, ExtractedText):
                num_characters += len(extracted.text)
    return num_read / (time.process_time() - began), num_characters


def print_rates(folder: Path) -> None:
    print("| documents | number | KiB each | characters each | documents per CPU-second | MB per CPU-second |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, payloads in documents(folder).items():
        measured = [rate(payloads) for _ in range(RUNS)]
        rates = sorted(speed for speed, _ in measured)
        size = sum(map(len, payloads)) / len(payloads)
        middle = rates[len(rates) // 2]
        print(
            f"| {name} | {len(payloads)} | {size / 1024:.0f} | {measured[0][1] / len(payloads):.0f} "
            f"| {middle:.1f} ({rates[0]:.1f}-{rates[-1]:.1f}) | {middle * size / 1e6:.2f} |"
        )


def rows(folder: Path, number: int) -> Iterator[dict[str, object]]:
    """Yield `number` rows: pages, texts, PDFs and Word files in a fixed random order, repeatedly."""
    payloads = [payload for name, group in documents(folder).items() if name != "PDF, 75 pages" for payload in group]
    payloads += [pdf([f"Página {number}."] * 20) for number in range(20)]
    random.Random(1).shuffle(payloads)
    for position, payload in zip(range(number), itertools.cycle(payloads), strict=False):
        yield fetched_row(position, payload, mime=None)


def print_memory(folder: Path, number: int) -> None:
    print(
        "| documents | shards | kept | CPU-seconds | documents per CPU-second | peak of the stage | peak of its child |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for num_documents, num_shards in ((number, 1), (10 * number, 10), (10 * number, 1)):
        with tempfile.TemporaryDirectory() as work:
            all_rows = list(rows(folder, num_documents))
            size = -(-num_documents // num_shards)
            fetched(Path(work), *(all_rows[start : start + size] for start in range(0, num_documents, size)))
            command = [sys.executable, __file__, "--data", str(folder.parent), "--work", work]
            figures = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        kept, cpu_s, own, child_kib = int(figures[0]), float(figures[1]), int(figures[2]), int(figures[3])
        print(
            f"| {num_documents} | {num_shards} | {kept} | {cpu_s:.0f} | {num_documents / cpu_s:.1f} "
            f"| {own / 1024:.0f} MiB | {child_kib / 1024:.0f} MiB |",
            flush=True,
        )


def run(work: str) -> None:
    """Run the stage in this process, and print kept, CPU-seconds, and the peaks of both processes in KiB."""
    totals = run_extract(Corpus(work=work), 1, Display(speaks=False))
    used = [resource.getrusage(process) for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peaks = (peak_memory_bytes() or 0) // 1024, used[1].ru_maxrss
    print(totals["kept"], sum(process.ru_utime + process.ru_stime for process in used), *peaks)


def main() -> None:
    os.environ.setdefault(
        "ARROW_DEFAULT_MEMORY_POOL", "system"
    )  # as the command does; the measured processes are started by this one
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=300, help="documents of the first row of the memory table")
    parser.add_argument("--only", choices=("rates", "memory"), help="one of the two tables")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        run(chosen.work)
        return
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES.values()), "\n")
    if chosen.only != "memory":
        print_rates(chosen.data / "pt_docs")
        print()
    if chosen.only != "rates":
        print_memory(chosen.data / "pt_docs", chosen.documents)


if __name__ == "__main__":
    main()
