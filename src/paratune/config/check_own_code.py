"""Checks of options that name the user's own code; the code is imported only when the run starts."""

from collections import Counter
from collections.abc import Callable, Iterator

from paratune.config.contradictions import conflict, no_effect, unused
from paratune.config.metric_names import LOWER_ENDINGS, METRICS, OWN_PREFIX
from paratune.config.own_code import CALLBACKS_KEY, CLASS_KEY, HEAD_KEY, METRICS_KEY
from paratune.config.problems import Problem
from paratune.config.section import OwnOptimizer
from paratune.config.sections import Config, OwnMetric
from paratune.config.task_sections import OwnTask, RegressionTask

ONE_ANSWER = ("classification", "multi_label", "ordinal", "regression")
"""Kinds of tasks with one answer for each text."""


def metrics_of(config: Config) -> tuple[str, ...]:
    """Return the names of all metrics of a run: those of its task and its own ones."""
    task_scores = config.task.scores if isinstance(config.task, OwnTask) else ()
    return (
        *METRICS[config.task.kind],
        *(OWN_PREFIX + name for name in task_scores),
        *(OWN_PREFIX + metric.name for metric in config.evaluate.metrics),
    )


def _metrics(config: Config) -> Iterator[Problem]:
    """Check the user's own metrics."""
    metrics, kind = config.evaluate.metrics, config.task.kind
    if metrics and kind not in ONE_ANSWER:
        message = (
            f"{METRICS_KEY}: own metrics are for task.kind: {', '.join(ONE_ANSWER)}, and task.kind is {kind}, whose "
            "outputs are not one answer for each text; leave them out, and score the prediction files"
        )
        yield Problem(message, (METRICS_KEY, "task.kind"), code="task.unsupported")
    for name, count in Counter(metric.name for metric in metrics).items():
        if count > 1:
            message = f"{METRICS_KEY}: {name} is the name of {count} metrics; give each another name"
            yield Problem(message, (METRICS_KEY,), code="metric.own_name")
    for number, metric in enumerate(metrics):
        yield from _metric(config, f"{METRICS_KEY}[{number}]", metric)


def _metric(config: Config, key: str, metric: OwnMetric) -> Iterator[Problem]:
    if metric.function is None and metric.evaluate is None:
        yield Problem(
            f"{key}.function or {key}.evaluate is required: the metric", (key, METRICS_KEY), code="config.required"
        )
    if metric.function is not None and metric.evaluate is not None:
        yield conflict(f"{key}.function", metric.function, f"{key}.evaluate", metric.evaluate)
    is_lower = metric.name.endswith(LOWER_ENDINGS)
    if is_lower == metric.higher_is_better:
        endings = ", ".join(LOWER_ENDINGS)
        must = "must not end" if metric.higher_is_better else "must end"
        message = (
            f"{key}.name: {metric.name} {must} in one of {endings}, because higher_is_better is "
            f"{str(metric.higher_is_better).lower()}: reports find the better direction of a metric by its name"
        )
        yield Problem(message, (f"{key}.name", key, METRICS_KEY), code="metric.own_name")
    if metric.input == "probabilities" and isinstance(config.task, RegressionTask):
        message = f"{key}.input: a regression has no probabilities; use predictions or outputs"
        yield Problem(message, (f"{key}.input", key, METRICS_KEY), code="task.unsupported")


def _own_task(config: Config) -> Iterator[Problem]:
    """Check for options that a task of the user's own does not support."""
    task = config.task
    if not isinstance(task, OwnTask):
        return
    for name, count in Counter(task.scores).items():
        if count > 1:
            yield Problem(f"task.scores has {name} twice", ("task.scores",), code="metric.own_name")
    wanted = "with task.kind: own, whose prediction files have no known meaning"
    yield from unused(config, "evaluate.slices", wanted, "task.kind")


def _model(config: Config) -> Iterator[Problem]:
    """Check an own head and an own model class."""
    model, kind = config.model, config.task.kind
    named = {HEAD_KEY: model.head and model.head.function, CLASS_KEY: model.class_}
    given = {key: value for key, value in named.items() if value is not None}
    if len(given) == 2:
        yield conflict(f"{HEAD_KEY}.function", named[HEAD_KEY], CLASS_KEY, named[CLASS_KEY])
    for key, value in given.items():
        if kind not in ONE_ANSWER:
            message = (
                f"{key}: {value} is for task.kind: {', '.join(ONE_ANSWER)}, and task.kind is {kind}, whose outputs "
                "are not one answer for each text; leave it out"
            )
            yield Problem(message, (key, "task.kind"), code="task.unsupported")
        if config.baseline is not None:
            yield no_effect(key, value, f"with baseline: {config.baseline.kind}, which has no encoder", "baseline")


def _training(config: Config) -> Iterator[Problem]:
    """Check for options without effect with an own optimizer, or without steps."""
    optimizer = config.train.optimizer
    if isinstance(optimizer, OwnOptimizer) or optimizer == "adafactor":
        wanted = "with train.optimizer: adafactor, which has neither; leave it out"
        if isinstance(optimizer, OwnOptimizer):
            wanted = f"with train.optimizer.function: {optimizer.function}; put it into train.optimizer.options"
        yield from unused(config, ("train.betas", "train.eps"), wanted, "train.optimizer")
    if config.run.callbacks and config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which has no steps"
        yield no_effect(CALLBACKS_KEY, config.run.callbacks[0].function, wanted, "baseline")


OWN_CODE_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (_metrics, _own_task, _model, _training)
