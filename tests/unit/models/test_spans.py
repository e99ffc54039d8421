"""The loss of first and last tokens, and the best answers of a row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_config
from tiny_questions import tiny_qa_model, tiny_windows

from paratune.batch import Batch
from paratune.models.objectives import OBJECTIVES, Objective, question_answering, weighted_sum
from paratune.models.task_model import TaskModel

QA = OBJECTIVES["qa"]


def batch(num_windows: int, *, num_rows: int | None = None, length: int | None = None) -> Batch:
    collator = tiny_windows(20)
    return collator(np.arange(num_windows), 1.0, num_rows=num_rows, length=length)


def test_without_padding_the_loss_equals_transformers():
    model = tiny_qa_model(tiny_config(dropout=0.0)).double().eval()
    wrapped = TaskModel(model, "qa")
    for number in range(6):
        (single,) = [tiny_windows(20)(np.asarray([number]), 1.0)]
        with torch.no_grad():
            actual = wrapped.loss_sum(wrapped(single), single)
            start, end = single.labels.T
            expected = model(single.input_ids, single.attention_mask, start_positions=start, end_positions=end).loss
        assert float(actual) == pytest.approx(float(expected), rel=1e-12)


def test_padding_and_filler_do_not_change_the_loss():
    model = TaskModel(tiny_qa_model(tiny_config(dropout=0.0)).double().eval(), "qa")
    plain, padded = batch(4), batch(4, num_rows=7, length=40)
    with torch.no_grad():
        first, second = (float(model.loss_sum(model(value), value)) for value in (plain, padded))
        singles = [tiny_windows(20)(np.asarray([number]), 1.0) for number in range(4)]
        alone = sum(float(model.loss_sum(model(value), value)) for value in singles)
    assert first == pytest.approx(second, rel=1e-9)
    assert first == pytest.approx(alone, rel=1e-9)


def test_best_spans_by_hand():
    single = Batch(
        input_ids=torch.zeros((1, 3), dtype=torch.int64),
        row_weight=torch.ones(1),
        index=torch.zeros(1, dtype=torch.int64),
        num_samples=1,
        num_tokens=2,
        num_padded_tokens=3,
        loss_denominator=1.0,
        attention_mask=torch.tensor([[1, 1, 0]]),
        labels=torch.tensor([[0, 1]]),
    )
    outputs = torch.tensor([[[np.log(3), 0.0], [0.0, 0.0], [50.0, 50.0]]])
    # First token: softmax (3/4, 1/4), so -log 3/4; last token: (1/2, 1/2), so log 2; the padding has no part.
    expected = (-np.log(3 / 4) + np.log(2)) / 2
    assert float(weighted_sum(QA, outputs, single)) == pytest.approx(expected)


def by_trying(outputs: np.ndarray[Any, Any], bounds: list[int], longest: int) -> list[tuple[float, int, int]]:
    """Return (score, first, last) of every answer, the best first."""
    _, begin, behind = bounds
    spans = [
        (outputs[first, 0] + outputs[last, 1], first, last)
        for first in range(begin, behind)
        for last in range(first, min(first + longest, behind))
    ]
    return sorted(spans, reverse=True)


@pytest.mark.parametrize(("num_best", "longest"), [(4, 3), (20, 1), (5, 1000), (200, 30)])
def test_best_answers_equal_a_search_over_all_pairs(num_best: int, longest: int):
    rows = batch(6, length=30)
    outputs = torch.randn((6, 30, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    row_outputs = question_answering(num_best=num_best, max_answer_tokens=longest).row_outputs(outputs, rows).numpy()
    assert row_outputs.shape == (6, 4 * num_best + 2)
    for row in range(6):
        starts, ends, first, last = row_outputs[row, :-2].reshape(4, num_best)
        bounds = rows.row_bounds[row].tolist()
        wanted = by_trying(outputs[row].numpy(), bounds, longest)[:num_best]
        actual = np.stack([starts + ends, first, last], axis=1)[: len(wanted)]
        assert actual == pytest.approx(np.asarray(wanted))
        assert np.isneginf(starts[len(wanted) :]).all()
        assert (first[len(wanted) :] == -1).all()
        assert row_outputs[row, -2:] == pytest.approx(outputs[row, bounds[0]].numpy())


def test_half_precision_logits_become_float32():
    rows = batch(2)
    outputs = torch.zeros((2, rows.input_ids.shape[1], 2), dtype=torch.bfloat16)
    row_outputs = QA.row_outputs(outputs, rows)
    assert row_outputs.dtype == torch.float32
    assert row_outputs.shape == (2, 82)


def test_a_model_takes_the_objective_of_its_options():
    own: Objective = question_answering(num_best=2)
    model = TaskModel(tiny_qa_model(tiny_config()).eval(), "qa", objective=own)
    rows = batch(3)
    with torch.no_grad():
        outputs = model(rows)
    assert outputs.shape == (3, rows.input_ids.shape[1], 2)
    assert model.row_outputs(outputs, rows).shape == (3, 10)


def test_filler_rows_have_a_context_of_their_own():
    # The first window is longer than a filler row, and its answer may be behind it.
    for collator in (tiny_windows(20, seed=seed) for seed in range(5)):
        filler = collator(np.zeros(0, dtype=np.int64), 1.0)
        assert filler.row_bounds.tolist() == [[0, 0, 1]]
        assert filler.labels.tolist() == [[0, 0]]
        outputs = torch.zeros((*filler.input_ids.shape, 2))
        assert float(weighted_sum(QA, outputs, filler)) == 0
        assert torch.isfinite(QA.row_outputs(outputs, replace(filler, labels=None))[:, 0]).all()
