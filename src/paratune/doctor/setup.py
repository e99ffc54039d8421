"""What the checks of one run judge: its configuration, files and model, how it is started, and what the tools say.

All of it is gathered before, so that each check is a function of plain values.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import Traits, traits_of
from paratune.doctor.finding import Finding, MachineFacts
from paratune.hardware.devices import DEVICES


@dataclass(frozen=True)
class SourceError:
    """A file of the configuration that cannot be trained on as it is."""

    kind: str
    """file: it cannot be read; column: it lacks one; label: values that are no labels of the task; value: the rest."""
    key: str
    """The option that it is about, such as data.train or data.columns.text."""
    message: str
    line: str = ""
    """The line that repairs it, where it can be said."""


@dataclass(frozen=True)
class SplitFacts:
    """What is in a part of the data."""

    name: str
    source: str
    num_rows: int
    fingerprint: str
    """Of texts and labels in their order: equal for the same rows."""
    num_dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows that lack something, by what they lack."""
    labels: Mapping[str, int] | None = None
    """Rows of each class; None where there are no classes."""
    label_counts_rows: bool = False
    """Whether the numeric target is the number of the row."""
    num_conflicting: int = 0
    """Rows whose text also occurs with another label."""
    share_truncated: float | None = None
    """Of a sample of the rows; None where nothing is truncated for the task."""
    p95_length: int | None = None
    """Tokens below which 95 of 100 samples are."""


@dataclass(frozen=True)
class DataFacts:
    """What is in the files of a configuration."""

    splits: tuple[SplitFacts, ...] = ()
    overlaps: tuple[tuple[str, str, int, int], ...] = ()
    """First split, second split, rows of the second whose text is in the first, all rows of the second."""
    errors: tuple[SourceError, ...] = ()
    id_columns: tuple[tuple[str, str, str], ...] = ()
    """Columns of texts that hold names of rows and not texts: the option, the file, and an example."""
    text_columns: tuple[str, ...] = ()
    """Columns of the training file that hold texts of several words."""
    max_length: int | None = None
    model_limit: int | None = None
    """Most tokens that the model takes."""
    too_large: tuple[str, ...] = ()
    """Files that were not looked into, with their sizes in words."""
    on_hub: tuple[tuple[str, str], ...] = ()
    """Data sets of the hub, which were not looked into either: the option and the name."""

    def split(self, name: str) -> SplitFacts | None:
        return next((split for split in self.splits if split.name == name), None)


@dataclass(frozen=True)
class ModelFacts:
    """What is known of the model without loading it."""

    name: str
    folder: Path | None = None
    """Where its files are: the folder that is named, or that of the hub's cache."""
    is_on_hub: bool = False
    error: str | None = None
    """Why nothing is known, in words."""
    nearest: str = ""
    """Of a folder that is not there: the one beside it whose name is nearest."""
    missing: tuple[str, ...] = ()
    """Files that it lacks."""
    damaged: tuple[tuple[str, str], ...] = ()
    """Files that are not what their names say, and why."""
    pickles: tuple[str, ...] = ()
    """Weights in a format that is never read, where there are no others."""
    has_tokenizer: bool = True
    """Whether the tokenizer's files are there."""
    tokenizer_error: str | None = None
    """Why the tokenizer cannot be loaded from them; None where it can, or that was not tried."""
    model_type: str | None = None
    vocab_size: int | None = None
    num_tokens: int | None = None
    """Of the tokenizer: its largest id, plus 1."""
    num_layers: int | None = None
    labels: tuple[str, ...] = ()
    """Names of the classes that the model was trained for, in their order; none where they say nothing."""
    needs_code: bool = False
    """Whether it brings Python code of its own."""
    lacks_decoder_start: bool = False
    """Whether it has a decoder and names no token with which that starts."""
    num_parameters: int | None = None


@dataclass(frozen=True)
class Start:
    """How the run will be started."""

    num_nodes: int = 1
    processes_per_node: int = 1
    gpus_per_node: int | None = None
    """That the job gets on each node; None where nothing says it."""
    said_by: str = "--nproc"
    """What says so, for messages."""
    needs_srun: bool = False
    """Whether the processes are started by Slurm."""
    no_network: bool = False
    """Whether the machines that train reach no hub."""
    time_limit_s: float | None = None
    gpu_type: str | None = None
    """As the site calls its GPUs."""
    cores_per_node: int | None = None
    """That the job gets on each node; None where nothing says it."""
    is_elsewhere: bool = False
    """Whether the run is made on other machines than this one: those of a site."""
    brings_software: bool = False
    """Whether modules, an image or lines of the site give the run programs that this machine's PATH may lack."""
    unfit: tuple[tuple[str, str, str, str], ...] = ()
    """What of the site's profile is not so here: a kind (folder or partition), the option, what was found, the line."""

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.processes_per_node


@dataclass(frozen=True)
class Probes:
    """What tools and the system said; None for what could not be asked."""

    driver: str | None = None
    """Version of NVIDIA's driver."""
    driver_cuda: str | None = None
    """Newest CUDA that the driver knows, from the heading of nvidia-smi."""
    capabilities: tuple[str, ...] = ()
    """Compute capabilities of all GPUs of this machine, such as "8.6", from nvidia-smi: torch may see none of them."""
    torch_cuda: str | None = None
    """CUDA that torch was built with; None for a build for processors."""
    torch_nccl: str | None = None
    """NCCL that torch was built with."""
    loaded_nccl: str | None = None
    """NCCL that this process has loaded with torch, as it says itself."""
    torch_archs: tuple[str, ...] = ()
    """Architectures that torch's kernels were compiled for, such as sm_80."""
    topology: str | None = None
    """Text of `nvidia-smi topo -m`."""
    gpu_processes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of each GPU that other processes hold."""
    nvcc: str | None = None
    """Version of the CUDA compiler."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Path of each program that was looked for and found."""
    batch_script: str | None = None
    """Text of the script of the job that this is in; None outside of one, and where there is none, as with salloc."""
    called_scripts: Mapping[str, str] = field(default_factory=dict)
    """Texts of the scripts that it calls, by the names that it has for them; those that can be read."""
    interfaces: tuple[str, ...] | None = None
    """Network interfaces of this machine."""
    port_is_free: Callable[[int], bool] = lambda _port: True
    resolve: Callable[[str], list[str]] = lambda _name: ["127.0.0.1"]
    run_storage: Mapping[str, Any] = field(default_factory=dict)
    """Of the run folder, as `hardware.describe_storage` gives it."""
    cache_storage: Mapping[str, Any] = field(default_factory=dict)
    """Of the folder for tokens."""
    run_bytes_per_s: float | None = None
    """At which a file in the run folder is written."""
    data_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """At which each data file is read."""
    free_files: int | None = None
    """Files that may still be made where the run folder is."""
    quota_free_bytes: int | None = None
    """What the quota leaves there."""
    clock_skew_s: float | None = None
    """By how much the clock of the run folder's file system is ahead of this machine's."""
    node_skew_s: Mapping[str, float] = field(default_factory=dict)
    """By how much the clock of each other node is ahead of this one's."""
    run_state: str | None = None
    """What the run folder holds already: finished, unfinished or foreign; None for nothing."""
    damaged_checkpoint: str | None = None
    """Name of the newest checkpoint in the run folder, where it is not whole."""
    shm_bytes: int | None = None
    user_site: tuple[str, ...] = ()
    """Packages of ~/.local that hide those of the environment."""


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
    def config(self) -> Config:
        assert self.loaded is not None
        return self.loaded.config

    @property
    def traits(self) -> Traits | None:
        """Of the strategy; None for a class of the user's own, whose code is not run to look at it."""
        return traits_of(self.config.strategy.kind, strategy_options(self.config.strategy))

    def where(self, key: str) -> str:
        """Return the line that sets an option, or that none does."""
        origin = self.loaded.origin.get(key, "default") if self.loaded is not None else "default"
        return f"{self.path} ({key} is not given)" if origin == "default" else origin

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs of a machine that the run would use: those of this one, or those of the site as far as known."""
        if self.loaded is not None and self.config.device == "cpu":
            return []
        if self.start.is_elsewhere:
            return [_described(self.start.gpu_type)] * (self.start.gpus_per_node or 0)
        return list(self.machine.node["gpus"] or [])

    @property
    def num_cores(self) -> float | None:
        """Cores that the processes of one machine share."""
        cores: float | None = self.machine.node["num_usable_cores"]
        return self.start.cores_per_node if self.start.is_elsewhere else cores


def _described(kind: str | None) -> Mapping[str, Any]:
    """Return a GPU of the kind that a site names, with what all devices of such a name have."""
    alike = [device for device in DEVICES if kind and device.key.startswith(kind.lower())]
    memory = min((device.memory_bytes for device in alike), default=None)
    return {"name": kind or "GPU", "memory_bytes": memory, "capability": None, "link": None}


def has_bf16(gpu: Mapping[str, Any]) -> bool | None:
    """Return whether a GPU computes bf16 by itself; None where that is not known."""
    if gpu["capability"] is not None:
        return float(gpu["capability"]) >= 8
    known = {device.bf16 is not None for device in DEVICES if device.key.startswith(str(gpu["name"]).lower())}
    return known.pop() if len(known) == 1 else None


SetupCheck = Callable[[QueuedRun], Iterable[Finding]]
