"""The tasks of GLUE by name: their labels, columns and metrics; and which metrics stand for a task in tables.

Floor 1. Ids, label names and columns are those of the data sets on the hub (nyu-mll/glue). Files of other languages
with the same tasks say what differs.
"""

from dataclasses import dataclass
from typing import Any, Final

from paratune.config.implied import put_under
from paratune.config.layers import Layer
from paratune.config.metric_names import METRICS
from paratune.config.problems import Problem, SourceLocation
from paratune.config.task_sections import Task


@dataclass(frozen=True)
class GlueTask:
    """One of the nine."""

    title: str
    """As the benchmark writes it."""
    metrics: tuple[str, ...]
    """That the benchmark scores it by."""
    texts: tuple[str, ...]
    """Columns of the text or of both."""
    classes: tuple[str, ...] = ()
    """Names in the order of their ids; none where the target is a number."""

    @property
    def kind(self) -> str:
        return "classification" if self.classes else "regression"

    def labels(self) -> dict[Any, str]:
        """Return the name of each value: of ids and of names, as some files have the one and some the other."""
        return dict(enumerate(self.classes)) | {name: name for name in self.classes}

    def options(self) -> dict[str, Any]:
        """Return what a file does not have to say, by dotted key."""
        columns = dict(zip(("text", "text_pair"), self.texts, strict=False))
        found: dict[str, Any] = {"task.kind": self.kind}
        if self.classes:
            found["task.labels"] = self.labels()
        return found | {f"data.columns.{key}": name for key, name in (columns | {"label": "label"}).items()}


_ENTAILMENT: Final = ("entailment", "not_entailment")
_SENTENCES: Final = ("sentence1", "sentence2")
GLUE: Final[dict[str, GlueTask]] = {
    "cola": GlueTask("CoLA", ("matthews",), ("sentence",), ("unacceptable", "acceptable")),
    "sst2": GlueTask("SST-2", ("accuracy",), ("sentence",), ("negative", "positive")),
    "mrpc": GlueTask("MRPC", ("accuracy", "f1"), _SENTENCES, ("not_equivalent", "equivalent")),
    "stsb": GlueTask("STS-B", ("pearson", "spearman"), _SENTENCES),
    "qqp": GlueTask("QQP", ("accuracy", "f1"), ("question1", "question2"), ("not_duplicate", "duplicate")),
    "mnli": GlueTask("MNLI", ("accuracy",), ("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": GlueTask("QNLI", ("accuracy",), ("question", "sentence"), _ENTAILMENT),
    "rte": GlueTask("RTE", ("accuracy",), _SENTENCES, _ENTAILMENT),
    "wnli": GlueTask("WNLI", ("accuracy",), _SENTENCES, ("not_entailment", "entailment")),
}
"""By the name in `task: NAME`.

Source: Wang et al., GLUE, ICLR 2019, Table 1 (metrics); the data card of nyu-mll/glue (ids, names, columns).
"""

_HEADLINES: Final[dict[str, tuple[str, ...]]] = {
    "classification": ("accuracy", "f1_macro"),
    "regression": ("rmse", "mae", "r2"),
    "multi_label": ("f1_micro", "f1_macro"),
    "ordinal": ("qwk", "mae", "accuracy"),
    "qa": ("exact", "f1"),
}
"""By kind; of others, the first of their `METRICS`."""


def headline_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics that stand for a task where there is room for few: at least one, each of its `METRICS`."""
    name = getattr(task, "glue", None)
    return GLUE[name].metrics if name is not None else _HEADLINES.get(task.kind, METRICS[task.kind][:1])


def counts_as_glue(task: Task) -> bool:
    """Return whether ids are read in the benchmark's order because the task has its name, and not as the file says."""
    name = getattr(task, "glue", None)
    labels = getattr(task, "labels", None)
    if name is None or not isinstance(labels, dict):
        return False
    # Keys are texts in what a model folder says of its task.
    return {str(key): value for key, value in labels.items()} == {
        str(key): value for key, value in GLUE[name].labels().items()
    }


def fill_glue(layer: Layer) -> None:
    """Put what the task's name says under what the files say, in place; nothing when no task of GLUE is named.

    `task: mrpc` and `task: {kind: mrpc}` are `task: {glue: mrpc}`.
    """
    task = layer.values.get("task")
    if not isinstance(task, dict):
        return
    if isinstance(task.get("kind"), str) and task["kind"] in GLUE:
        if task.get("glue", task["kind"]) != task["kind"]:
            message = f"task.kind: {task['kind']} and task.glue: {task['glue']} are two tasks; keep one of them"
            layer.problems.append(Problem(message, ("task.kind", "task.glue"), code="task.glue"))
        task["glue"] = task.pop("kind")
        if "task.kind" in layer.places:
            layer.places["task.glue"] = layer.places.pop("task.kind")
    name = task.get("glue")
    if not isinstance(name, str):
        return
    if name not in GLUE:
        # A kind that has tasks of GLUE, so that the check of its options says which there are.
        task.setdefault("kind", "classification")
        return
    for key, value in GLUE[name].options().items():
        put_under(layer, key, value, SourceLocation(f"task.glue: {name}"))
