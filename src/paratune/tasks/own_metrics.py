"""Scores of the user's own metrics: functions, classes of torchmetrics, and modules of the library `evaluate`.

Dimensions: `N` samples, `C` classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.config.metric_names import OWN_PREFIX
from paratune.config.own_code import METRICS_KEY, import_callable, metric_script, own_code_errors
from paratune.config.permission import require_allowed
from paratune.config.sections import OwnMetric
from paratune.data.load import Split
from paratune.errors import ConfigError, require
from paratune.metrics.values import known
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

Array = npt.NDArray[Any]


def own_scores(metrics: Sequence[OwnMetric], recipe: TaskRecipe, split: Split, outputs: Outputs) -> Scores:
    """Return the scores of own metrics by their names, own_NAME; None where one is undefined or an output is NaN.

    `metrics` are empty for tasks without `TaskRecipe.metric_input`; `outputs` are (N, K), row outputs of an evaluation.
    Errors as in `own_score`.
    """
    scores: Scores = {}
    for metric in metrics:
        assert split.labels is not None
        values = recipe.metric_input(outputs, metric.input)
        scores[OWN_PREFIX + metric.name] = None if values is None else own_score(metric, values, split.labels)
    return scores


def own_score(metric: OwnMetric, predictions: Array, labels: Array) -> float | None:
    """Return the score of one metric for a whole split; None where the metric returns None or NaN.

    Predictions are (N,) or (N, C), as `metric.input` states; labels are (N,) class ids or targets, or (N, C) sets of
    classes.

    Raises:
        ConfigError: The metric cannot be imported, raises an error, or does not return one number.
        MissingDependency: It is a module of `evaluate`, which is not installed.
    """
    name = str(metric.function or metric.evaluate)
    given = f"{metric.input} {predictions.shape} of {predictions.dtype}"
    call = f"{given}, labels {labels.shape} of {labels.dtype}, and the options"
    with own_code_errors(name, METRICS_KEY, call=call):
        # Copies: a metric that changes its arguments in place must not change saved predictions and other scores.
        result = _result(metric, predictions.copy(), labels.copy())
    return _number(metric, name, result)


def _result(metric: OwnMetric, predictions: Array, labels: Array) -> Any:
    if metric.evaluate is not None:
        require_allowed(metric.evaluate, f"{METRICS_KEY}.evaluate", metric.options)
        script = metric_script(metric.evaluate, f"{METRICS_KEY}.evaluate")
        module = require("evaluate", extra="hub").load(str(script), keep_in_memory=True)
        return module.compute(predictions=predictions, references=labels, **metric.options)
    function = import_callable(str(metric.function), f"{METRICS_KEY}.function", metric.options)
    if isinstance(function, type) and hasattr(function, "update") and hasattr(function, "compute"):
        import torch

        collected = function(**metric.options)
        if hasattr(collected, "sync_on_compute"):  # torchmetrics: every rank already has all samples
            collected.sync_on_compute = False
        collected.update(torch.as_tensor(predictions), torch.as_tensor(labels))
        return collected.compute()
    return function(predictions, labels, **metric.options)


def _number(metric: OwnMetric, name: str, result: Any) -> float | None:
    value = result
    if isinstance(result, Mapping):
        entry = metric.entry if metric.entry is not None else next(iter(result)) if len(result) == 1 else None
        if entry not in result:
            entries = ", ".join(map(str, result))
            what = f"entry: {entry} is not in the result of {name}" if entry else f"{name} returned several values"
            message = f"{METRICS_KEY}: {what}; set entry to one of: {entries}"
            raise ConfigError(message, code="own_code.wrong_result", key=METRICS_KEY, value=name)
        value = result[entry]
    elif metric.entry is not None:
        raise _wrong(name, result, f"; entry: {metric.entry} needs a mapping")
    if value is None:
        return None
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        raise _wrong(name, value) from None
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise _wrong(name, value)
    return known(float(array.reshape(())))


def _wrong(name: str, value: Any, more: str = "") -> ConfigError:
    shape = getattr(value, "shape", None)
    returned = type(value).__name__ + ("" if shape is None else f" {tuple(shape)}")
    wanted = "one number, None where it is undefined, or a mapping of numbers"
    message = f"{METRICS_KEY}: {name} returned {returned}{more}; return {wanted}"
    return ConfigError(message, code="own_code.wrong_result", key=METRICS_KEY, value=name)
