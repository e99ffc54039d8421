"""Options of each tracker: one class for each; a section in the file switches its tracker on."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from paratune.config.section import Section, Text

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
