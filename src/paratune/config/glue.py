"""The options that follow from a task: labels and columns of GLUE, usual columns, and headline metrics.

Ids, label names and columns are those of the data sets on the hub (nyu-mll/glue). A file may set other values, for the
same tasks in other languages.
"""

from dataclasses import dataclass
from typing import Any, Final

from paratune.config.layers import Layer
from paratune.config.metric_names import EMBEDDING_SCORES, HEADLINES, METRICS, OWN_PREFIX
from paratune.config.problems import Problem, SourceLocation
from paratune.config.task_sections import EmbeddingTask, OwnTask, Task


@dataclass(frozen=True)
class GlueTask:
    """One of the nine tasks."""

    metrics: tuple[str, ...]
    """Metrics of the benchmark."""
    texts: tuple[str, ...]
    """Columns of the text, or of both texts."""
    classes: tuple[str, ...] = ()
    """Names in the order of their ids; empty for a regression."""

    @property
    def kind(self) -> str:
        return "classification" if self.classes else "regression"

    def labels(self) -> dict[Any, str]:
        """Return the class of each value in files: some have ids, some have names."""
        return dict(enumerate(self.classes)) | {name: name for name in self.classes}

    def options(self) -> dict[str, Any]:
        """Return the options that the task sets, by dotted key."""
        columns = dict(zip(("text", "text_pair"), self.texts, strict=False))
        options: dict[str, Any] = {"task.kind": self.kind}
        if self.classes:
            options["task.labels"] = self.labels()
        return options | {f"data.columns.{key}": name for key, name in (columns | {"label": "label"}).items()}


_ENTAILMENT: Final = ("entailment", "not_entailment")
_SENTENCES: Final = ("sentence1", "sentence2")
GLUE: Final[dict[str, GlueTask]] = {
    "cola": GlueTask(("matthews",), ("sentence",), ("unacceptable", "acceptable")),
    "sst2": GlueTask(("accuracy",), ("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(("accuracy", "f1"), _SENTENCES, ("not_equivalent", "equivalent")),
    "stsb": GlueTask(("pearson", "spearman"), _SENTENCES),
    "qqp": GlueTask(("accuracy", "f1"), ("question1", "question2"), ("not_duplicate", "duplicate")),
    "mnli": GlueTask(("accuracy",), ("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": GlueTask(("accuracy",), ("question", "sentence"), _ENTAILMENT),
    "rte": GlueTask(("accuracy",), _SENTENCES, _ENTAILMENT),
    "wnli": GlueTask(("accuracy",), _SENTENCES, ("not_entailment", "entailment")),
}
"""Tasks by the name in `task: NAME`.

Source: Wang et al., GLUE, ICLR 2019, Table 1 (metrics); the data card of nyu-mll/glue (ids, names, columns).
"""


def headline_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics of a task for small tables: at least one of its `METRICS`."""
    name = getattr(task, "glue", None)
    if isinstance(task, EmbeddingTask):
        return EMBEDDING_SCORES[task.loss][:2]
    if isinstance(task, OwnTask) and task.scores:
        return tuple(OWN_PREFIX + score for score in task.scores[:1])
    return GLUE[name].metrics if name is not None else HEADLINES.get(task.kind, METRICS[task.kind][:1])


def counts_as_glue(task: Task) -> bool:
    """Return whether the labels are those of the GLUE task, so that ids have the order of the benchmark."""
    name = getattr(task, "glue", None)
    labels = getattr(task, "labels", None)
    if name is None or not isinstance(labels, dict):
        return False
    # The keys in the description of a model folder are texts.
    return {str(key): value for key, value in labels.items()} == {
        str(key): value for key, value in GLUE[name].labels().items()
    }


def fill_implied(layer: Layer) -> None:
    """Add, in place, the options of a GLUE task, and the usual columns of the task, that the files do not set.

    `task: mrpc` and `task: {kind: mrpc}` are `task: {glue: mrpc}`.
    """
    task = layer.values.get("task")
    if not isinstance(task, dict):
        return
    kind = task.get("kind")
    for key, column in IMPLIED_COLUMNS.get(kind, {}).items() if isinstance(kind, str) else ():
        set_default(layer, f"data.columns.{key}", column, SourceLocation(f"task.kind: {kind}"))
    if isinstance(kind, str) and kind in GLUE:
        if task.get("glue", kind) != kind:
            message = f"task.kind: {kind} and task.glue: {task['glue']} are different tasks; keep one of them"
            layer.problems.append(Problem(message, ("task.kind", "task.glue"), code="config.conflict"))
        task["glue"] = task.pop("kind")
        if "task.kind" in layer.places:
            layer.places["task.glue"] = layer.places.pop("task.kind")
    name = task.get("glue")
    if not isinstance(name, str):
        return
    if name not in GLUE:
        # A kind with an option glue, so that its check lists the allowed names.
        task.setdefault("kind", "classification")
        return
    for key, value in GLUE[name].options().items():
        set_default(layer, key, value, SourceLocation(f"task.glue: {name}"))


QA_COLUMNS: Final[dict[str, str]] = {"text": "question", "text_pair": "context", "label": "answers", "id": "id"}
"""Columns of SQuAD, in its own layout and in that of `datasets`."""

IMPLIED_COLUMNS: Final[dict[str, dict[str, str]]] = {
    "qa": QA_COLUMNS,
    "token_classification": {"text": "tokens", "label": "tags"},
    "mlm": {"text": "text"},
}
"""Columns by the kind of the task, which a file need not name."""


def set_default(layer: Layer, dotted: str, value: Any, place: SourceLocation) -> None:
    """Set a key that is not set. Where a section is not a mapping, nothing is set: the checks report it."""
    *path, key = dotted.split(".")
    section = layer.values
    for name in path:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return
    if key not in section:
        section[key] = value
        layer.places[dotted] = place
        if isinstance(value, dict):
            layer.places.update({f"{dotted}.{inner_key}": place for inner_key in value})
