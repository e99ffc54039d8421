"""Perplexity and accuracy of windows by their definitions."""

import math

import numpy as np
import pytest

from paratune.config.metric_names import METRICS
from paratune.metrics.masked_lm import masked_lm_scores


def test_all_hidden_tokens_have_the_same_weight():
    # Mean loss (2 + 10) / (1 + 3) = 3; 3 of 4 found.
    actual = masked_lm_scores([[2.0, 1, 0], [10.0, 3, 3]])
    assert actual == {"perplexity": pytest.approx(math.exp(3)), "accuracy": 0.75}
    assert (*actual, "loss") == METRICS["mlm"]


def test_the_perplexity_of_a_uniform_model_is_the_number_of_words():
    assert masked_lm_scores([[5 * math.log(30522), 5, 0]])["perplexity"] == pytest.approx(30522)


@pytest.mark.parametrize("loss", [1e4, math.nan, math.inf])
def test_unknown_and_infinite_scores_are_none(loss):
    assert masked_lm_scores(np.array([[loss, 1, 0]])) == {"perplexity": None, "accuracy": 0.0}


def test_without_hidden_tokens_scores_are_none():
    assert masked_lm_scores(np.zeros((2, 3))) == {"perplexity": None, "accuracy": None}
    with pytest.raises(ValueError, match=r"\(2, 2\); \(windows, 3\) is needed"):
        masked_lm_scores(np.zeros((2, 2)))
