import subprocess
import sys

import pytest
from patience import PATIENCE_S

from paratune.config.metric_names import METRICS, direction
from paratune.metrics.classification import choice_scores, classification_scores, multi_label_scores
from paratune.metrics.regression import ordinal_scores, regression_scores
from paratune.metrics.values import is_better


@pytest.mark.parametrize(
    ("task_kind", "scores", "outputs", "labels"),
    [
        ("classification", classification_scores, [[1.0, 0.0], [0.0, 1.0]], [0, 1]),
        ("multi_label", multi_label_scores, [[1.0, -1.0], [-1.0, 1.0]], [[1, 0], [1, 1]]),
        ("multiple_choice", choice_scores, [[1.0, 0.0], [0.0, 1.0]], [0, 0]),
        ("ordinal", ordinal_scores, [[1.0, -1.0], [-1.0, -1.0]], [1, 2]),
        ("regression", regression_scores, [1.0, 2.0], [1.0, 2.5]),
    ],
)
def test_scores_are_all_metrics_without_the_loss(task_kind, scores, outputs, labels):
    assert (*scores(outputs, labels), "loss") == METRICS[task_kind]


def test_the_direction_of_errors_is_min_and_of_scores_max():
    smaller = {"loss", "rmse", "mse", "mae", "hamming_loss", "perplexity"}
    for names in METRICS.values():
        for name in names:
            assert direction(name) == ("min" if name in smaller else "max")
    with pytest.raises(KeyError, match="acuracy"):
        direction("acuracy")


@pytest.mark.parametrize(
    ("metric", "new", "old", "min_delta", "better"),
    [
        ("accuracy", 0.91, 0.90, 0.0, True),
        ("accuracy", 0.90, 0.90, 0.0, False),
        ("accuracy", 0.89, 0.90, 0.0, False),
        ("accuracy", 0.75, 0.50, 0.25, False),  # exactly min_delta better is not more than it
        ("loss", 0.50, 0.60, 0.0, True),
        ("loss", 0.60, 0.50, 0.0, False),
        ("rmse", 0.50, 0.75, 0.25, False),
        ("rmse", 0.50, 0.76, 0.25, True),
        ("pearson", 0.1, None, 0.0, True),
        ("pearson", None, None, 0.0, False),
        ("pearson", None, -1.0, 0.0, False),
        ("loss", float("nan"), 0.5, 0.0, False),
        ("loss", 0.5, float("nan"), 0.0, True),
    ],
)
def test_is_better(metric, new, old, min_delta, better):
    assert is_better(metric, new, old, min_delta) is better


def test_importing_the_metrics_does_not_import_scikit_learn():
    # It takes a second, which only an evaluation should pay.
    modules = "paratune.metrics.values, paratune.metrics.classification, paratune.metrics.regression"
    code = f"import sys, {modules}; assert not {{'sklearn', 'scipy', 'torch'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
