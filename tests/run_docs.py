"""Runs the `sh` and `python` blocks of pages and the cells of notebooks, each page in a new folder: `make tour`.

    python tests/run_docs.py README.md docs/tutorials/python_tour.ipynb

It needs only the standard library, so that it runs in the environment of the quick start and in that of a wheel. The
folder has `configs/` of the repository and `reviews.csv`, the file of the reader of own_data.md. Lines of `make` and
`export` made the environment, and are left out.
"""

# ruff: noqa: T201
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "100",
}


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, language and text of each block that is run; a notebook is one block."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = (cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        yield 1, "python", "\n".join("".join(lines) for lines in cells)
        return
    for match in re.finditer(r"^```(sh|python)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        lines = match[2].splitlines()
        kept = [line for line in lines if not line.startswith(("make ", "export "))]
        if kept:
            yield text[: match.start()].count("\n") + 2, match[1], "\n".join(kept)


def run(page: Path) -> bool:
    """Run the blocks of a page in order, up to the first that fails; return whether there are any and all succeeded."""
    if not (found := list(blocks(page))):
        print(f"{page}: it has no block to run")
        return False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "configs", folder / "configs")
        _write_reviews(folder)
        environment = {**ENVIRONMENT, "PARATUNE_CACHE": str(folder / "cache")}
        for line, language, text in found:
            command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
            begin = time.perf_counter()
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            first = text.splitlines()[0]
            print(
                f"{page}:{line}: {time.perf_counter() - begin:.0f} s, exit code {done.returncode}: {first}", flush=True
            )
            if done.returncode:
                print(f"{text}\n\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
                return False
    return True


def _write_reviews(folder: Path) -> None:
    with (ROOT / "src" / "paratune" / "demo" / "sentences.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[::5]
    for name, columns in {"reviews.csv": ("review", "sentiment"), "new.csv": ("review",)}.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows((row["sentence"], row["label"])[: len(columns)] for row in rows)


if __name__ == "__main__":
    results = [run(Path(name)) for name in sys.argv[1:]]
    sys.exit(0 if all(results) else 1)
