"""One cell of a matrix: a combination of values of its axes, with its whole configuration or its problems."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paratune.config.glue import headline_metrics
from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.records.sweep import Kind, run_fingerprint


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    name: str
    values: Mapping[str, str]
    """The name of its value on each axis, by the axis' label."""
    num_processes: int
    num_nodes: int | None
    """Nodes that the matrix asks for; None: the program that starts the run decides."""
    loaded: LoadedConfig | None
    """Its configuration; None when it has problems."""
    problems: tuple[Problem, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that the matrix sets; None unsets one."""
    kind: Kind = "full"
    repeat: int = 1
    teachers: tuple[str, ...] = ()
    """Names of the runs of the matrix that are its teachers (`distil.teacher`)."""
    impossible: str | None = None
    """Why it cannot run, although the file is correct; None when it can."""

    @property
    def config(self) -> Config:
        assert self.loaded is not None
        return self.loaded.config

    @property
    def metric(self) -> str:
        """Metric on validation by which a candidate is selected; see `select_by`."""
        return self.config.evaluate.best or headline_metrics(self.config.task)[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that tables show."""
        return tuple(dict.fromkeys([*headline_metrics(self.config.task), self.metric]))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all settings that make it another run when they change."""
        assert self.loaded is not None
        return run_fingerprint(self.loaded.values, self.num_processes, self.environment, self.num_nodes)
