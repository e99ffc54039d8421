"""Methods that give effects to words: against autograd, all orders, and arithmetic."""

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from explained import TEXT, save_tiny
from transformers import AutoModelForSequenceClassification

from paratune.explain.effects import integrated_gradients, occlusion, shapley
from paratune.explain.outputs import ExplainedOutput, RowOutput
from paratune.explain.rows import read_rows

NEGATIVE = ExplainedOutput("classification", 2)


@pytest.fixture
def output(tmp_path: Path) -> RowOutput:
    trained, split = save_tiny(tmp_path, "classification").read(TEXT)
    return RowOutput(trained, read_rows(trained, split)[0], NEGATIVE, 8)


def by_word(output: RowOutput, tokens: Any) -> Any:
    owners = output.row.token_words
    return [float(tokens.detach()[owners == word].sum()) for word in range(len(output.row.words))]


def test_integrated_gradients_are_those_of_autograd(output: RowOutput):
    """The integral written out: the gradients at 200 midpoints between the embeddings of hidden words and the words."""
    width = len(output.row.words)
    embedding = output.model.hf.get_input_embeddings()
    with torch.no_grad():
        given, hidden = embedding(output.ids(np.asarray([[True] * width, [False] * width])))
    total = torch.zeros_like(given)
    for share in (np.arange(200) + 0.5) / 200:
        point = (hidden + share * (given - hidden))[None].requires_grad_(True)
        handle = embedding.register_forward_hook(lambda *_, point=point: point)
        total += torch.autograd.grad(output.read(torch.from_numpy(output.row.ids)[None]).sum(), point)[0][0] / 200
        handle.remove()
    expected = by_word(output, ((given - hidden) * total).sum(dim=1))
    found = integrated_gradients(output, 25, 200)
    assert found == pytest.approx(expected, abs=2e-3)
    assert np.abs(found).max() > 0.01


def test_other_methods_need_no_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained, split = save_tiny(tmp_path, "classification").read(TEXT)
    row = read_rows(trained, split)[0]
    monkeypatch.setattr(type(trained.model.hf), "get_input_embeddings", lambda self: pytest.fail("no embeddings"))
    output = RowOutput(trained, row, NEGATIVE, 8)
    assert len(occlusion(output, np.arange(len(row.words)))) == len(row.words)


def test_integrated_gradients_become_complete_with_steps(output: RowOutput):
    width = len(output.row.words)
    end, start = output.values(np.asarray([[True] * width, [False] * width]))
    few, many = (integrated_gradients(output, 2, most).sum() - (end - start) for most in (2, 256))
    assert many == pytest.approx(0, abs=0.01 * abs(end - start))
    assert abs(few) > abs(many)


def test_occlusion_is_the_fall_of_the_output(output: RowOutput, tmp_path: Path):
    whole = torch.from_numpy(output.row.ids)[None]
    without = torch.where(torch.from_numpy(output.row.token_words) == 3, output.replacement_id, whole)
    with torch.no_grad():
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        logits = [model(input_ids=ids).logits[0].double() for ids in (whole, without)]
    log_odds = [float(row[2] - row[:2].logsumexp(0)) for row in logits]
    effects = occlusion(output, np.arange(len(output.row.words)))
    assert effects[3] == pytest.approx(log_odds[0] - log_odds[1], abs=1e-4)
    assert len(occlusion(output, output.row.sentences)) == 3


def game(visible: Any) -> Any:
    """Return a number with interactions between words of one group and of two groups."""
    a, b, c, d, e = (visible[:, word].astype(float) for word in range(5))
    return 2 * a - b + 3 * a * b + c * d - 4 * a * e + b * c * e


def shapley_by_orders() -> list[float]:
    """Return the mean contribution of each word over all orders: the definition."""
    totals, orders = np.zeros(5), list(permutations(range(5)))
    for order in orders:
        visible = np.zeros((6, 5), dtype=bool)
        for step, word in enumerate(order):
            visible[step + 1 :, word] = True
        totals[list(order)] += np.diff(game(visible))
    return (totals / len(orders)).tolist()


def played(sentences: list[int]) -> Any:
    return SimpleNamespace(
        values=game, batch_size=4, row=SimpleNamespace(words=range(5), sentences=np.asarray(sentences))
    )


def test_shapley_values_are_means_over_orders():
    values = shapley(played([0] * 5), 20_000, seed=0)
    assert values == pytest.approx(shapley_by_orders(), abs=0.05)
    assert values.sum() == pytest.approx(2 - 1 + 3 + 1 - 4 + 1)
    assert shapley(played([0] * 5), 60, seed=1).tolist() == shapley(played([0] * 5), 60, seed=1).tolist()


def test_words_of_a_sentence_share_its_value_where_evaluations_are_few():
    values = shapley(played([0, 0, 2, 2, 2]), 30, seed=0)
    # Two sentences: the first alone gives 4, the second alone 1, both 2.
    assert values.tolist() == pytest.approx([values[0]] * 2 + [values[2]] * 3)
    assert 2 * values[0] + 3 * values[2] == pytest.approx(2.0)
    assert 2 * values[0] == pytest.approx((4 + (2 - 1)) / 2, abs=1.0)
