"""Cost of a whole corpus by the number of pages and of workers: processor time, memory, and whether bytes are equal.

python benchmarks/corpus_whole.py                  # 1,000 and 4,000 pages with 1 and 2 workers, 3 minutes of two cores

The pages are random sentences of frequent Portuguese words, in one WARC file; all stages run with their defaults.
"""

import argparse
import hashlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine_lines

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from demo_captures import record

WORDS = (
    "a casa de o rio que não se via para com uma noite em por mais as dos como mas ao ele das tem seu sua ou quando "
    "muito nos já eu também só pelo pela até isso ela entre depois sem mesmo aos seus quem nas me esse eles você essa"
)
SETTINGS = "work: {work}\nrows_per_shard: 500\nindex: {{warcs: [{warc}]}}\nstore: {{validation: 0.05}}\n"


def capture(number: int) -> bytes:
    """Return a record of a page with 30 sentences."""
    draw = random.Random(number)
    words = WORDS.split()
    lines = [" ".join(draw.choices(words, k=13)).capitalize() + f" casa {draw.randrange(10**6)}." for _ in range(30)]
    text = "".join(f"<p>{' '.join(lines[at : at + 3])}</p>" for at in range(0, 30, 3))
    body = f"<html><head><title>{number}</title></head><body><article>{text}</article></body></html>".encode()
    return record(f"http://www.a{number % 50}.pt/{number}", "2010-05-06T07:08:09Z", body, "text/html")


def one(folder: Path, num_workers: int) -> None:
    """Build the corpus of a folder; print seconds, processor seconds, and MiB of the largest process."""
    begin, command = time.monotonic(), [sys.executable, "-m", "paratune", "corpus", str(folder / "c.yaml")]
    subprocess.run([*command, "--workers", str(num_workers)], check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def tables(work: Path) -> str:
    """Return a SHA-256 over the content of all tables and texts of a corpus."""
    sha = hashlib.sha256()
    for path in sorted(work.rglob("*.parquet")):
        sha.update(str(path.relative_to(work)).encode() + path.read_bytes())
    return sha.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(chosen.one, chosen.workers[0])
        return
    print(*machine_lines(), "", sep="\n")
    print("| pages | workers | processor time | ms a page | time | largest process | tables |")
    print("| --: | --: | --: | --: | --: | --: | --- |", flush=True)
    for number in chosen.pages:
        for workers in chosen.workers:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "a.warc.gz").write_bytes(b"".join(map(capture, range(number))))
                settings = SETTINGS.format(work=folder / "work", warc=folder / "a.warc.gz")
                (folder / "c.yaml").write_text(settings)
                command = [sys.executable, __file__, "--one", name, "--workers", str(workers)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                seconds, cpu_s, mib = map(float, done.stdout.split())
                cells = [f"{number:,}", str(workers), f"{cpu_s:.0f} s", f"{1000 * cpu_s / number:.1f}"]
                print(
                    "|",
                    " | ".join([*cells, f"{seconds:.0f} s", f"{mib:.0f} MiB", tables(folder / "work")]),
                    "|",
                    flush=True,
                )


if __name__ == "__main__":
    main()
