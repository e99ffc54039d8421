"""Memory and start of a pre-training from tokens in shards, by the size of the corpus.

python benchmarks/token_memory.py                     # 0.12, 1.2 and 12 GB of text, 2 ranks
python benchmarks/token_memory.py --data DATA         # how fast `paratune corpus` makes tokens of real text

With DATA (DATA/pt_raw_text/train.parquet has documents in a column `text`), 80,000 documents are stored, a tokenizer is
trained on them, and their tokens are made with 1 and with 2 workers. Without it, the tokens are synthetic: 4.25 bytes
of text a token (a WordPiece of 20,000 entries on Portuguese), windows of 512, in shards of 50,000 windows. Each size
is trained for 6 steps, and compared with a corpus of 1,000 windows: model and program need the same memory in all.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import corpus_store
import numpy as np
import pyarrow.parquet as pq
from machine import machine_lines

from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.store import run_store, store_tokens
from paratune.corpus.tokenizer import TokenizerRecipe, save_tokenizer, train_tokenizer
from paratune.data.token_shards import finish_tokens, shard_entry
from paratune.data.token_store import StoreWriter, open_store
from paratune.tasks.corpus_tokens import TokenWriter

BYTES_A_TOKEN, WINDOW, SHARD = 4.25, 512, 50_000
MIB = 2**20


def write_tokens(folder: Path, tokenizer: Path, num_windows: int) -> int:
    """Write random tokens of whole windows; return the bytes of all files."""
    random, entries = np.random.default_rng(0), []
    for number, start in enumerate(range(0, num_windows, SHARD)):
        count, place = min(SHARD, num_windows - start), folder / f"{number:05d}"
        with StoreWriter(place, "<u2", has_type_ids=True, unknown_id=1) as writer:
            for begin in range(0, count, 1000):
                ids = random.integers(5, 2000, (min(1000, count - begin), WINDOW), dtype=np.uint16)
                ids[:, 0], ids[:, -1] = 2, 3
                rows = len(ids)
                # `add` takes lists; a flat write of the same bytes is much faster.
                for name, values in (("tokens", ids), ("type_ids", np.zeros(ids.shape, np.uint8))):
                    writer._files[name].write(values.tobytes())
                writer._lengths += [WINDOW] * rows
                writer._full_lengths += [WINDOW] * rows
            rows = np.arange(count, dtype=np.int32)
            writer.finish(WINDOW, {"num_maskable": np.full(count, WINDOW - 2, np.int32), "example": rows})
        entries.append(shard_entry(place, open_store(place), count))
    finish_tokens(folder, TokenWriter(str(tokenizer), WINDOW, "joined", False).settings(), entries)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def trained(work: Path, tokens: Path, name: str, ranks: int) -> tuple[dict, float]:
    """Train; return the summary of the run and the seconds of the command."""
    overrides = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = {
        "task": {"kind": "mlm"},
        "data": {"train": str(tokens), "max_length": WINDOW},
        "model": {
            "name": "demo:minilm", "from_scratch": True, "tokenizer": str(work / "tokenizer"), "overrides": overrides
        },
        "train": {"max_steps": 6, "learning_rate": 5e-4},
        "batch": {"global": 8, "micro_batch_size": 4},
        "checkpoint": {"every": "steps", "steps": 4},
        "strategy": "ddp" if ranks > 1 else "single",
    }  # fmt: skip
    file = work / f"{name}.yaml"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "paratune", "train", str(file), "--nproc", str(ranks), "--set", f"run.name={name}"]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=work, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads((work / "runs" / name / "summary.json").read_text()), time.monotonic() - begin


def measure_stage(work: Path, data: Path, num_documents: int) -> None:
    """Print how fast tokens are made of real documents: processor time and wall time."""
    corpus_store.write(work / "corpus", data / "pt_raw_text" / "train.parquet", num_documents, 1)
    tokens = {"tokenizer": str(work / "tokenizer")}
    settings = {"work": str(work / "corpus"), "clean": {"skip": corpus_store.STEPS}, "store": {"tokens": tokens}}
    corpus, display = Corpus.model_validate(settings), Display(speaks=False)
    run_store(corpus, 1, display)
    texts = work / "corpus/6_store/texts/train.parquet"
    train = ["tokenizer", "train", str(texts), "--vocab-size", "20000", "--out", str(work / "tokenizer")]
    subprocess.run([sys.executable, "-m", "paratune", *train], check=True, capture_output=True)
    num_bytes = sum(len(text.encode()) for text in pq.read_table(texts, columns=["text"])["text"].to_pylist())
    print("| text | workers | processor time | MB per processor second | time | tokens |")
    print("| --- | --: | --: | --: | --: | --: |", flush=True)
    for workers in (1, 2, 1, 2):
        shutil.rmtree(work / "corpus/6_store/tokens", ignore_errors=True)
        before, begin = processor_s(), time.monotonic()
        counts = store_tokens(corpus, workers, display, make_writer=TokenWriter, finish_tokens=finish_tokens)
        seconds, cpu_s = time.monotonic() - begin, processor_s() - before
        cells = [f"{num_bytes / 1e6:.0f} MB", str(workers), f"{cpu_s:.0f} s", f"{num_bytes / 1e6 / cpu_s:.1f}"]
        print("|", " | ".join([*cells, f"{seconds:.0f} s", f"{counts['train']:,}"]), "|", flush=True)


def processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.12, 1.2, 12.0], help="GB of text")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files are; default: the temporary folder")
    parser.add_argument("--data", type=Path, help="folder that holds pt_raw_text")
    parser.add_argument("--documents", type=int, default=80_000)
    chosen = parser.parse_args()
    print(*machine_lines(), "", sep="\n")
    if chosen.data is not None:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
            measure_stage(Path(name), chosen.data.resolve(), chosen.documents)
        return
    print("| text | windows | files | startup | command | peak a rank | above the smallest |")
    print("| --- | --: | --: | --: | --: | --: | --: |", flush=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        work, least = Path(name), None
        texts = ["o jogo foi bom e a bola entrou " * 3, *(f"palavra{number} " * 2 for number in range(3000))]
        recipe = TokenizerRecipe(vocab_size=4000)
        save_tokenizer(train_tokenizer(lambda: texts, recipe)[0], recipe, work / "tokenizer", {})
        for size in [None, *chosen.sizes]:
            num_windows = 1000 if size is None else int(size * 1e9 / BYTES_A_TOKEN / WINDOW)
            tokens = work / f"tokens-{size}"
            num_bytes = write_tokens(tokens, work / "tokenizer", num_windows)
            summary, seconds = trained(work, tokens, f"run-{size}", chosen.ranks)
            peak = summary["memory"]["largest_bytes"] / MIB
            least = peak if least is None else least
            startup = summary["time"]["startup_s"]
            cells = ["1,000 windows" if size is None else f"{size:g} GB", f"{num_windows:,}"]
            cells += [f"{num_bytes / MIB:,.0f} MiB", f"{startup:.1f} s", f"{seconds:.1f} s"]
            print("|", " | ".join([*cells, f"{peak:,.0f} MiB", f"{peak - least:+,.0f} MiB"]), "|", flush=True)


if __name__ == "__main__":
    main()
