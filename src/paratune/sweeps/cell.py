"""One cell of a matrix: its record, its whole configuration or its problems, and the run in its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paratune.config.glue import headline_metrics
from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.records.sweep import CellRecord, run_fingerprint
from paratune.sweeps.values import ProbeLength

IN_USE = "still trained by another process"


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    record: CellRecord
    loaded: LoadedConfig | None = None
    """Its configuration; None when it has problems."""
    problems: tuple[Problem, ...] = ()
    impossible: str | None = None
    """Why it cannot run, although the file is correct; None when it can."""
    changed: tuple[str, ...] = ()
    """Settings with other values in the run in its folder, as "key: then, now"."""
    is_begun: bool = False
    """Whether its folder contains a run that can be resumed."""
    probe: ProbeLength | None = None
    """None for a full run."""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def values(self) -> Mapping[str, str]:
        return self.record.values

    @property
    def config(self) -> Config:
        assert self.loaded is not None
        return self.loaded.config

    @property
    def metric(self) -> str:
        """Metric on validation by which a candidate is selected; see `select_by`."""
        return self.config.evaluate.best or headline_metrics(self.config.task)[0]

    def described(self, select_by: str | None) -> CellRecord:
        """Return its record with what follows from its configuration: task, metrics and fingerprint."""
        assert self.loaded is not None
        record, metric = self.record, select_by or self.metric
        metrics = dict.fromkeys([*headline_metrics(self.config.task), self.metric, metric])
        parts = (self.loaded.values, record.num_processes, record.environment, record.num_nodes)
        return replace(
            record,
            task=self.config.task.kind,
            metric=metric,
            metrics=tuple(metrics),
            fingerprint=run_fingerprint(*parts),
        )

    @property
    def shown_state(self) -> str:
        """The state, or `changed`, or `running` for a run that another process trains."""
        return "changed" if self.changed else "running" if self.record.reason == IN_USE else self.record.state

    def runs(self, *, retry_failed: bool) -> bool:
        """Return whether it is trained now."""
        if self.record.state == "skipped":
            return False
        is_open = self.record.state in ("pending", "interrupted", "running")
        return bool(self.changed) or is_open or (retry_failed and self.record.state == "failed")
