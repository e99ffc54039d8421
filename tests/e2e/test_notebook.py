"""The functions of paratune in the kernel of a notebook."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

TOUR = Path(__file__).parents[2] / "docs" / "tutorials" / "python_tour.ipynb"
CELLS = [
    """
import logging, signal
import paratune

def state():
    logger = logging.getLogger("paratune")
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logger.handlers[:], logger.level

before = state()
short = {"train.epochs": None, "train.max_steps": 4}
first = paratune.train("c.yaml", short, run_name="first")
assert state() == before
""",
    """
second = paratune.train("c.yaml", {**short, "batch.layout": "padded"}, run_name="second")
assert state() == before
""",
    "first",
    "paratune.compare(first, second)",
    "paratune.report(first, second)",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # from packages of Jupyter
def test_a_notebook_trains_twice_and_shows_progress_and_results(world: Path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(world)}}).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    for trained in outputs[:2]:
        (progress,) = [output.data["text/plain"] for output in trained if output.output_type == "display_data"]
        assert "2/2" in progress
    for (shown,), text in zip(outputs[2:], ["validation accuracy", "second", "second"], strict=True):
        assert text in shown.data["text/html"]


def test_the_tour_has_no_stored_outputs_and_no_path_of_a_machine():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
    assert re.search("/(home|root|tmp|Users|work)/", TOUR.read_text(encoding="utf-8")) is None
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.slow
@pytest.mark.thorough  # `make tour` runs its cells
@pytest.mark.filterwarnings("ignore")  # from packages of Jupyter
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    results = [
        output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    shown = [next((result[kind] for kind in ("text/html", "text/plain") if kind in result), "") for result in results]
    expected = ["validation accuracy", "0.", "wall_ms", "padded", "padded", "zero3", "score_positive"]
    assert len(shown) == len(expected)
    assert [part for text, part in zip(shown, expected, strict=True) if part not in text] == []
