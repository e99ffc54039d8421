"""Perplexity and accuracy of windows, as they are defined."""

import math

import numpy as np
import pytest

from paratune.config.metric_names import METRICS
from paratune.metrics.masked_lm import masked_lm_scores


def test_all_hidden_tokens_count_alike():
    # Mean loss (2 + 10) / (1 + 3) = 3; 3 of 4 found.
    found = masked_lm_scores([[2.0, 1, 0], [10.0, 3, 3]])
    assert found == {"perplexity": pytest.approx(math.exp(3)), "accuracy": 0.75}
    assert (*found, "loss") == METRICS["mlm"]


def test_a_model_that_knows_nothing_is_as_perplexed_as_there_are_words():
    assert masked_lm_scores([[5 * math.log(30522), 5, 0]])["perplexity"] == pytest.approx(30522)


@pytest.mark.parametrize("loss", [1e4, math.nan, math.inf])
def test_what_is_not_known_or_too_large_is_none(loss):
    assert masked_lm_scores(np.array([[loss, 1, 0]])) == {"perplexity": None, "accuracy": 0.0}


def test_nothing_hidden_has_no_score():
    assert masked_lm_scores(np.zeros((2, 3))) == {"perplexity": None, "accuracy": None}
    with pytest.raises(ValueError, match=r"\(2, 2\); \(windows, 3\) is needed"):
        masked_lm_scores(np.zeros((2, 2)))
