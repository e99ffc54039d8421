"""Samples of several sequences on two ranks: losses, gradients and outputs equal those of one process, in float64.

Samples have 2 to 4 sequences, so that ranks have different numbers of them. Tolerance as in `test_contract.py`.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ranks import Job, Meeting, Outcome, run_meetings, train

pytestmark = pytest.mark.slow
RTOL = 1e-9
ALONE = Job("alone", task="multiple_choice", num_steps=4, num_evaluated=11)
WINDOWS = replace(ALONE, name="windows alone", task="text_windows")
# Pairs of texts with the negatives of their group: 8 samples per step are 4 groups; the fourth step has 3 samples.
PAIRS = replace(ALONE, name="pairs alone", task="embedding")
TOGETHER = {
    "ddp": replace(ALONE, name="ddp", strategy="ddp", accumulation=2, packed=True),
    "zero3": replace(ALONE, name="zero3", strategy="zero3", packed=True),
    "pipeline": replace(ALONE, name="pipeline", strategy="pipeline", options={"stages": 2}, accumulation=4),
    "windows zero2": replace(WINDOWS, name="windows zero2", strategy="zero2", packed=True),
    "windows pipeline": replace(
        WINDOWS, name="windows pipeline", strategy="pipeline", options={"stages": 2}, accumulation=2
    ),
    "pairs ddp": replace(PAIRS, name="pairs ddp", strategy="ddp", accumulation=2),
    "pairs zero3": replace(PAIRS, name="pairs zero3", strategy="zero3", packed=True),
    "pairs pipeline": replace(PAIRS, name="pairs pipeline", strategy="pipeline", options={"stages": 2}, accumulation=4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("choices")
    for alone in (ALONE, WINDOWS, PAIRS):
        (root / alone.name).mkdir()
        train(alone, 0, 1, root / alone.name)
    run_meetings(root, [Meeting(2, list(TOGETHER.values()))])
    return root


@pytest.mark.parametrize("strategy", TOGETHER)
def test_two_ranks_train_and_evaluate_as_one(folder: Path, strategy: str):
    kind = strategy.partition(" ")[0]
    reference = folder / (f"{kind} alone" if kind in ("windows", "pairs") else "alone")
    alone = Outcome(reference).rank()
    first, tensors = Outcome(reference).tensors("first"), Outcome(folder / strategy).tensors("first")
    for rank in range(2):
        outcome = Outcome(folder / strategy).rank(rank)
        assert outcome["losses"] == pytest.approx(alone["losses"], rel=RTOL)
        assert outcome["norms"] == pytest.approx(alone["norms"], rel=RTOL)
        assert outcome["evaluation"]["loss"] == pytest.approx(alone["evaluation"]["loss"], rel=RTOL)
        np.testing.assert_allclose(outcome["evaluation"]["outputs"], alone["evaluation"]["outputs"], rtol=1e-6)
    for name, tensor in first.items():
        np.testing.assert_allclose(tensors[name], tensor, rtol=1e-7, atol=1e-14, err_msg=name)
