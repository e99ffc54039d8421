import subprocess
import sys

import pytest
from patience import PATIENCE_S

from paratune.config.metric_names import METRICS, direction
from paratune.metrics.scores import SCORES, is_better, scores

OUTPUTS = {
    "classification": ([[1.0, 0.0], [0.0, 1.0]], [0, 1]),
    "multi_label": ([[1.0, -1.0], [-1.0, 1.0]], [[1, 0], [1, 1]]),
    "multiple_choice": ([[1.0, 0.0], [0.0, 1.0]], [0, 0]),
    "ordinal": ([[1.0, -1.0], [-1.0, -1.0]], [1, 2]),
    "regression": ([1.0, 2.0], [1.0, 2.5]),
}


@pytest.mark.parametrize("task_kind", sorted(SCORES))
def test_scores_are_all_metrics_without_the_loss(task_kind):
    assert (*scores(task_kind, *OUTPUTS[task_kind]), "loss") == METRICS[task_kind]


def test_every_task_with_metrics_can_be_scored():
    # Others need more than outputs and labels: metrics/masked_lm.py, squad.py, entities.py, embeddings.py, recipes.
    assert set(METRICS) - set(SCORES) == {"mlm", "own", "qa", "token_classification", "embedding"}


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
    code = "import sys, paratune.metrics.scores as s; assert not {'sklearn', 'scipy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
