"""Options of baselines, of a distillation, and of each tracker."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from paratune.config.section import Columnar, Positive, PositiveFloat, Section, Text
from paratune.errors import ConfigError


class TfidfOptions(Section):
    """A linear model over TF-IDF features of words, fitted by scikit-learn in one process on the CPU."""

    kind: Literal["tfidf"]
    estimator: Literal["linear", "svm"] = "linear"
    """linear: ridge regression for numbers, logistic regression for classes; svm: a linear support vector machine for
    both."""
    max_ngram: Positive = 2
    """Maximum number of neighbouring words in a feature."""
    min_rows: Positive = 2
    """Minimum number of training rows with a feature."""
    max_features: Positive = 50_000
    """Maximum number of features; the most frequent ones are kept."""
    inverse_regularization: Annotated[list[PositiveFloat], Field(min_length=1)] = Field(
        default_factory=lambda: [0.01, 0.1, 1.0, 10.0, 100.0]
    )
    """Values of scikit-learn's C; the validation set selects one. The alpha of ridge regression is 1 / (2 C)."""


def refuse_baseline(baseline: TfidfOptions | None, use: str) -> None:
    """Refuse a baseline where steps are needed.

    Args:
        use: Use of the steps for the message, such as "paratune plan predicts".

    Raises:
        ConfigError: The configuration has a baseline.
    """
    if baseline is not None:
        message = f"baseline: {baseline.kind} has no steps, which {use}; leave it out: --set baseline=null"
        raise ConfigError(message, code="baseline.no_model", key="baseline", kind=baseline.kind)


DEFAULT_TEMPERATURE = 2.0
"""Temperature where none is set, that of DistilBERT (Sanh et al. 2019)."""


class Distil(Section):
    """Train a smaller model, the student, with the outputs of trained models in addition to the labels (Hinton et al.
    2015). The outputs of the teachers for the training rows are computed once, before the first step."""

    teacher: Columnar
    """Run or model folder with the same task and labels; a list is an ensemble, whose mean output is learned. Its
    tokenizer and architecture may differ from those of `model`."""
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share w of the teacher in the loss of a row: (1 - w) * loss of the task + w * distance from the teacher."""
    distance: Literal["kl", "mse"] | None = None
    """Distance from the teacher. kl: T^2 times the KL divergence between the probabilities of teacher and student at
    temperature T (classification only); mse: mean squared difference of the outputs, such as logits. Default: kl in
    classification, otherwise mse."""
    temperature: PositiveFloat | None = None
    """With `distance: kl`: temperature T, by which logits are divided; default: 2."""


def distance_of(distil: Distil, task_kind: str) -> Literal["kl", "mse"]:
    """Return the distance from the teacher of a distillation, the given one or the default of the task."""
    return distil.distance or ("kl" if task_kind == "classification" else "mse")


def teacher_names(distil: Distil) -> list[str]:
    """Return the teachers as a list."""
    return [distil.teacher] if isinstance(distil.teacher, str) else list(distil.teacher)


PACKAGES: Mapping[str, str] = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Package of each tracker, in the extra `trackers`."""


class TensorBoard(Section):
    """TensorBoard, on this machine."""

    folder: Text | None = None
    """Folder of the event files; default: `tensorboard` in the run folder."""


class MLflow(Section):
    """MLflow, on this machine unless `uri` names another one."""

    uri: Text | None = None
    """Tracking server or store, such as http://server:5000; default: mlflow.db (SQLite) in `run.folder`."""
    experiment: Text = "paratune"
    """Experiment; created when absent."""
    name: Text | None = None
    """Name of the run in the tracker; default: `run.name`."""


class WandB(Section):
    """Weights & Biases, offline unless `mode` is online."""

    mode: Literal["offline", "online"] = "offline"
    """offline writes files for `wandb sync`; online sends metrics and configuration to the server."""
    project: Text = "paratune"
    """Project."""
    entity: Text | None = None
    """User or team; default: that of the login."""
    group: Text | None = None
    """Group of runs."""
    tags: list[Text] = Field(default_factory=list)
    """Tags of the run."""
    name: Text | None = None
    """Name of the run in the tracker; default: `run.name`."""
    folder: Text | None = None
    """Folder in which the package creates `wandb`; default: the run folder."""


class Trackers(Section):
    """Trackers that receive the metrics of the run; a slow or failing tracker does not delay it (see
    docs/howto/trackers.md)."""

    tensorboard: TensorBoard | None = None
    """TensorBoard (extra: trackers)."""
    mlflow: MLflow | None = None
    """MLflow (extra: trackers)."""
    wandb: WandB | None = None
    """Weights & Biases (extra: trackers)."""

    def named(self) -> dict[str, Section]:
        """Return the sections of the trackers that are on, by name."""
        sections = {name: getattr(self, name) for name in PACKAGES}
        return {name: section for name, section in sections.items() if section is not None}
