"""Input and output of the checks: findings, and facts about the machine and the run.

Facts are collected before the checks, so that each check is a function of plain values.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import Traits, strategy_traits
from paratune.errors import is_installed
from paratune.hardware.devices import DEVICES

HERE = "this machine"
Level = Literal["note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """A result of a check; a check that finds nothing to report has none."""

    code: str
    """Short stable name, for scripts; several findings may have the same."""
    level: Level
    """note: good to know; warning: works, but slowly or not always; problem: something will not work."""
    fact: str
    """The result, in words."""
    why: str = ""
    """Why it matters."""
    remedy: str = ""
    """The action that repairs it."""
    where: str = HERE
    """A line of a file, an option, a variable, or this machine."""
    line: str = ""
    """The line that repairs it: `key: value` of the configuration, or a shell command; "" without such a line."""


@dataclass(frozen=True)
class MachineFacts:
    """Facts about this machine; collected once, so that each check is a function of plain values."""

    node: Mapping[str, Any]
    """From `hardware.describe_node`."""
    versions: Mapping[str, str | None]
    """From `hardware.package_versions`."""
    out_folder: Path
    cache_folder: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    num_affine_cores: int | None = None
    """Cores in the CPU affinity of this process, before the quota of a container; None if unknown."""


@dataclass(frozen=True)
class SplitFacts:
    """Facts about a split."""

    name: str
    source: str
    num_rows: int
    fingerprint: str
    """Of texts and labels in order: equal for the same rows."""
    num_dropped: Mapping[str, int] = field(default_factory=dict)
    """Name of a missing value -> number of dropped rows."""
    labels: Mapping[str, int] | None = None
    """Number of rows of each class; None for tasks without classes."""
    label_counts_rows: bool = False
    """Whether the numeric target is the number of the row."""
    num_conflicting: int = 0
    """Number of rows whose text also occurs with another label."""
    share_truncated: float | None = None
    """Share of truncated rows in a sample; None for tasks without truncation."""
    p95_length: int | None = None
    """95th percentile of the number of tokens."""


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data of a configuration."""

    splits: tuple[SplitFacts, ...] = ()
    overlaps: tuple[Any, ...] = ()
    """`Overlap` of each pair of splits that share a text."""
    findings: tuple[Finding, ...] = ()
    """Problems of the files, without which there are no splits."""
    max_length: int | None = None
    model_limit: int | None = None
    """Maximum number of tokens of the model."""

    def split(self, name: str) -> SplitFacts | None:
        return next((split for split in self.splits if split.name == name), None)


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model; its weights are not loaded."""

    name: str
    findings: tuple[Finding, ...] = ()
    """Problems of its files."""
    model_type: str | None = None
    vocab_size: int | None = None
    num_tokens: int | None = None
    """The largest id of the tokenizer, plus 1."""
    num_layers: int | None = None
    labels: tuple[str, ...] = ()
    """Names of the classes of the model, in order; empty for LABEL_0, LABEL_1, ..."""
    num_parameters: int | None = None


@dataclass(frozen=True)
class Start:
    """The start of a run: nodes, processes and resources."""

    num_nodes: int = 1
    processes_per_node: int = 1
    gpus_per_node: int | None = None
    """On each node of the job; None if unknown."""
    source: str = "--nproc"
    """Source of these values, for messages."""
    no_network: bool = False
    """Whether the machines of the run have no network."""
    gpu_type: str | None = None
    """Name of the GPUs in the site file."""
    cores_per_node: int | None = None
    """On each node of the job; None if unknown."""
    is_elsewhere: bool = False
    """Whether the run is on other machines: those of a site."""
    missing_folders: tuple[tuple[str, Path, str], ...] = ()
    """Folders of the site that do not exist here: option, folder, and the line that repairs it."""

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.processes_per_node


@dataclass(frozen=True)
class Probes:
    """Facts from tools and the system; None if unknown."""

    driver_cuda: str | None = None
    """Newest CUDA version of the driver, from the heading of nvidia-smi."""
    capabilities: tuple[str, ...] = ()
    """Compute capabilities of all GPUs of this machine, such as "8.6", also without torch."""
    torch_cuda: str | None = None
    """CUDA version of the build of torch; None for a CPU build."""
    torch_archs: tuple[str, ...] = ()
    """Architectures of the kernels of torch, such as sm_80."""
    gpu_processes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of each GPU that other processes use."""
    is_installed: Callable[[str], bool] = is_installed
    """Whether an optional package is installed."""
    run_state: str | None = None
    """State of the run folder: finished, unfinished or foreign; None if it is new."""
    damaged_checkpoint: str | None = None
    """Name of the newest checkpoint in the run folder if it is incomplete."""


@dataclass(frozen=True)
class QueuedRun:
    """A run that is about to be queued."""

    machine: MachineFacts
    path: Path
    problems: tuple[Problem, ...] = ()
    loaded: LoadedConfig | None = None
    data: DataFacts | None = None
    model: ModelFacts | None = None
    start: Start = field(default_factory=Start)
    probes: Probes = field(default_factory=Probes)

    @property
    def is_offline(self) -> bool:
        """Whether the machines of the run have no access to the hub."""
        environ = self.machine.environ
        value = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
        return self.start.no_network or value.upper() in ("1", "ON", "YES", "TRUE")

    @property
    def config(self) -> Config:
        assert self.loaded is not None
        return self.loaded.config

    @property
    def traits(self) -> Traits | None:
        """Traits of the strategy; None for a class of the user, whose code is not run here."""
        return strategy_traits(self.config.strategy.kind, strategy_options(self.config.strategy))

    def where(self, key: str) -> str:
        """Return the line that sets an option, or a note that no line does."""
        origin = self.loaded.origin.get(key, "default") if self.loaded is not None else "default"
        return f"{self.path} ({key} is not given)" if origin == "default" else origin

    def finding(
        self, code: str, level: Level, fact: str, why: str, line: str = "", remedy: str = "", *, key: str = ""
    ) -> Finding:
        """Return a finding about an option: `key`, or the one that the line sets."""
        return Finding(code, level, fact, why, remedy, self.where(key or line.partition(":")[0]), line)

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs of a machine that the run would use: those of this one, or those of the site as far as known."""
        if self.loaded is not None and self.config.device == "cpu":
            return []
        if self.start.is_elsewhere:
            # Known are the properties that all devices with the name of the site's GPUs have.
            kind = self.start.gpu_type
            alike = [device for device in DEVICES if kind and device.key.startswith(kind.lower())]
            memory = min((device.memory_bytes for device in alike), default=None)
            gpu = {"name": kind or "GPU", "memory_bytes": memory, "capability": None, "link": None}
            return [gpu] * (self.start.gpus_per_node or 0)
        return list(self.machine.node["gpus"] or [])


def has_bf16(gpu: Mapping[str, Any]) -> bool | None:
    """Return whether a GPU computes bf16 by itself; None where that is not known."""
    if gpu["capability"] is not None:
        return float(gpu["capability"]) >= 8
    known = {device.bf16 is not None for device in DEVICES if device.key.startswith(str(gpu["name"]).lower())}
    return known.pop() if len(known) == 1 else None
