"""Where a run's figures go besides its own record: one section a tracker, all off; a section that is there is on."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from paratune.config.section import Section, Text

PACKAGES: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "trackio": "trackio",
}
"""The package that each tracker needs; the extra that brings it has the name of the tracker."""


class TensorBoard(Section):
    """TensorBoard, on this machine."""

    folder: Text | None = None
    """Folder of its event files; `tensorboard` in the run folder when not given."""


class MLflow(Section):
    """MLflow, on this machine unless `uri` says otherwise."""

    uri: Text | None = None
    """Tracking server or store, such as http://server:5000; mlflow.db (SQLite) in `run.folder` when not given."""
    experiment: Text = "paratune"
    """Experiment, made when absent."""
    name: Text | None = None
    """Name of the run there; `run.name` when not given."""


class WandB(Section):
    """Weights & Biases, offline unless `mode` says otherwise."""

    mode: Literal["offline", "online"] = "offline"
    """offline writes files for `wandb sync`; online sends figures and configuration to the server."""
    project: Text = "paratune"
    """Project."""
    entity: Text | None = None
    """User or team; that of the login when not given."""
    group: Text | None = None
    """Group of runs."""
    tags: list[Text] = Field(default_factory=list)
    """Tags of the run."""
    name: Text | None = None
    """Name of the run there; `run.name` when not given."""
    folder: Text | None = None
    """Folder in which the package makes its folder `wandb`; the run folder when not given."""


class Trackio(Section):
    """Trackio, on this machine unless `space` says otherwise."""

    project: Text = "paratune"
    """Project."""
    name: Text | None = None
    """Name of the run there; `run.name` when not given."""
    group: Text | None = None
    """Group of runs."""
    folder: Text | None = None
    """Folder of its data; that of the package ($TRACKIO_DIR) when not given."""
    space: Text | None = None
    """Space on the hub, such as user/name, to which figures and configuration are sent; made private when absent."""


class Trackers(Section):
    """Trackers that are told the figures of the run; none may hold it up (see docs/howto/trackers.md)."""

    tensorboard: TensorBoard | None = None
    """TensorBoard (extra: tensorboard)."""
    mlflow: MLflow | None = None
    """MLflow (extra: mlflow)."""
    wandb: WandB | None = None
    """Weights & Biases (extra: wandb)."""
    trackio: Trackio | None = None
    """Trackio (extra: trackio)."""

    def named(self) -> dict[str, Section]:
        """Return the section of each tracker that is on, by its name."""
        sections = {name: getattr(self, name) for name in PACKAGES}
        return {name: section for name, section in sections.items() if section is not None}
