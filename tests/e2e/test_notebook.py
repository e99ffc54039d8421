"""The functions in the kernel of a notebook."""

from pathlib import Path

import nbclient
import nbformat
import pytest

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
@pytest.mark.filterwarnings("ignore")  # of the packages of Jupyter
def test_a_notebook_trains_twice_and_shows_progress_and_results(world: Path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(world)}}).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    for trained in outputs[:2]:
        (progress,) = [output.data["text/plain"] for output in trained if output.output_type == "display_data"]
        assert "2/2" in progress
    for (shown,), text in zip(outputs[2:], ["validation accuracy", "second", "second"], strict=True):
        assert text in shown.data["text/html"]
