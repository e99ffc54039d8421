"""Methods that give effects to words: against autograd, shap, all orders, and arithmetic."""

import warnings
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explained import TEXT, save_tiny
from transformers import AutoModelForSequenceClassification

from paratune.explain.effects import (
    integrated_gradients,
    occlusion,
    owen_values,
    partition_shap,
    partition_tree,
)
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


def owen_by_orders(groups: list[list[int]]) -> list[float]:
    """Return the mean contribution of each word over all orders that keep groups together: Owen's definition."""
    totals, count = np.zeros(5), 0
    for order in permutations(range(5)):
        places = [[order.index(word) for word in group] for group in groups]
        if any(max(place) - min(place) >= len(place) for place in places):
            continue
        count += 1
        visible = np.zeros((6, 5), dtype=bool)
        for step, word in enumerate(order):
            visible[step + 1 :, word] = True
        gains = np.diff(game(visible))
        totals[list(order)] += gains
    return (totals / count).tolist()


def test_owen_values_are_means_over_orders_that_keep_groups_together():
    # Words 0, 1 and 2, 3 are sentences of one paragraph, word 4 is another one.
    tree = partition_tree([np.asarray([0, 0, 0, 0, 1]), np.asarray([0, 0, 1, 1, 2])])
    values = owen_values(game, tree, 5, 1000, 4)
    assert values == pytest.approx(owen_by_orders([[0, 1], [2, 3], [0, 1, 2, 3]]))


def test_few_evaluations_share_the_effect_of_a_branch():
    tree = partition_tree([np.zeros(5, dtype=int)])
    calls = []
    values = owen_values(lambda visible: calls.append(len(visible)) or game(visible), tree, 5, 4, 8)
    # The root is halved into words 0, 1 and 2, 3, 4, which then share its parts: 4 evaluations.
    left, right = game(np.asarray([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])).tolist()
    whole = game(np.ones((1, 5)))[0]
    assert sum(calls) == 4
    assert values[:2] == pytest.approx([(left + whole - right) / 4] * 2)
    assert values[2:] == pytest.approx([(right + whole - left) / 6] * 3)


def test_one_word_has_the_whole_effect():
    assert owen_values(lambda visible: visible[:, 0] * 3.0, partition_tree([np.zeros(1, dtype=int)]), 1, 10, 4) == [3.0]


@pytest.mark.slow
@pytest.mark.parametrize("max_evals", [60, 2000])
def test_shapley_values_are_those_of_shap(output: RowOutput, max_evals: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shap, while it is imported
        shap = pytest.importorskip("shap")
        tree = partition_tree([output.row.paragraphs, output.row.sentences])
        width = len(output.row.words)
        sizes = [1] * width
        clustering = []
        for left, right in tree:
            sizes.append(sizes[left] + sizes[right])
            clustering.append([left, right, 1.0, sizes[-1]])

        def masker(mask: Any, row: Any) -> Any:
            return (np.asarray([mask]),)

        masker.shape = (1, width)  # type: ignore[attr-defined]
        masker.clustering = np.asarray(clustering)  # type: ignore[attr-defined]
        explainer = shap.explainers.Partition(lambda visible: output.values(visible.astype(bool)), masker)
        expected = explainer(np.ones((1, width)), max_evals=max_evals, batch_size=8, silent=True)
    found = partition_shap(output, max_evals)
    assert found == pytest.approx(expected.values[0], abs=1e-5)
    assert np.abs(found).max() > 0.01
