"""Scores of the user's own metrics for the outputs of a task."""

from collections.abc import Sequence

from paratune.config.metric_names import OWN_PREFIX
from paratune.config.sections import OwnMetric
from paratune.data.load import Split
from paratune.metrics.own import own_score
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe


def own_scores(metrics: Sequence[OwnMetric], recipe: TaskRecipe, split: Split, outputs: Outputs) -> Scores:
    """Return the scores of own metrics by their names, own_NAME; None where one is undefined or an output is NaN.

    `metrics` are empty for tasks without `TaskRecipe.metric_input`; `outputs` are (N, K), row outputs of an evaluation.
    Errors as in `paratune.metrics.own.own_score`.
    """
    scores: Scores = {}
    for metric in metrics:
        assert split.labels is not None
        values = recipe.metric_input(outputs, metric.input)
        scores[OWN_PREFIX + metric.name] = None if values is None else own_score(metric, values, split.labels)
    return scores
