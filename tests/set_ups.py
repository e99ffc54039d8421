"""A run before it is queued, initially without faults, for tests of `paratune doctor`: `from set_ups import SetUp`.

Files are real and small; the machine and the output of its tools are values, so that a set-up can have GPUs and Slurm.
A case of the gallery breaks one thing; `apply` carries out the line of a finding.
"""

import csv
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tiny import tiny_model

from paratune.commands.doctor_run import queued_run
from paratune.config.load import check_layer, load_config
from paratune.config.overrides import read_layers
from paratune.config.sections import Columns, Config, named_columns, run_path
from paratune.config.sources import TOKENS_FILE, local_path, path_and_split
from paratune.config.task_sections import (
    EmbeddingTask,
    MultipleChoiceTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
    TokenClassificationTask,
)
from paratune.doctor.checkup import CHECKS, NODE_CHECKS, SETUP_CHECKS, judge
from paratune.doctor.facts import Finding, MachineFacts, Probes, Start
from paratune.errors import ConfigError
from paratune.records.run_folder import folder_state

GPU = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * 2**30, "capability": "8.0", "link": "NV12"}
T4 = {"name": "Tesla T4", "memory_bytes": 16 * 2**30, "capability": "7.5", "link": None}
ALARMS = ("problem", "warning")
# The builds of torch 2.11 to 2.14 for Linux on x86 (PyTorch's RELEASE.md, CUDA support matrix).
WHEELS = {
    "cu126": {
        "torch_cuda": "12.6",
        "torch_archs": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    },
    "cu130": {
        "torch_cuda": "13.0",
        "torch_archs": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
    },
    # Only of 2.11.
    "cu128": {
        "torch_cuda": "12.8",
        "torch_archs": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    },
}
STORAGE = {"filesystem": "lustre", "kind": "network", "free_bytes": 2**40, "total_bytes": 2**42}
WORDS = [
    "the",
    "film",
    "was",
    "good",
    "and",
    "the",
    "story",
    "is",
    "fine",
    "but",
    "not",
    "that",
    "bad",
    "very",
    "nice",
    "place",
    "again",
    "it",
    "is",
    "poor",
    "food",
]


def sentence(number: int) -> str:
    """Return a text of about ten words, different for each number."""
    return " ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 9)) + f" {number}"


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return reviews with two labels in turn."""
    return [{"text": sentence(first + n), "label": ("negative", "positive")[n % 2]} for n in range(count)]


def write_csv(path: Path, table: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


IN_EXTRA = {"trackers": {"mlflow", "tensorboard", "wandb"}, "hub": {"datasets", "peft"}}
"""Packages of the extras whose name is not that of a package."""


@dataclass
class SetUp:
    """See the module; a test may change every part before `findings`."""

    folder: Path
    config: dict[str, Any]
    overrides: list[str] = field(default_factory=list)
    node: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    probes: dict[str, Any] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    """Optional packages that are not installed."""
    nproc: int | None = None
    site: Start | None = None
    """The start on a site."""
    machine_checks: bool = False
    """Whether the checks of the machine run as well."""

    @property
    def path(self) -> Path:
        return self.folder / "run.yaml"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def set(self, key: str, value: Any) -> None:
        """Change an option of the file; None removes it."""
        section = self.config
        *above, last = key.split(".")
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
        if value is None:
            del section[last]

    def csv(self, name: str, table: list[dict[str, Any]]) -> None:
        write_csv(self.folder / "data" / name, table)

    def findings(self) -> list[Finding]:
        """Return the findings of the doctor."""
        self.path.write_text(yaml.safe_dump(self.config, sort_keys=False))
        return self.findings_of(self.path, self.overrides)

    def findings_of(self, path: Path, overrides: list[str]) -> list[Finding]:
        """Return the findings of the doctor for another file on this machine."""
        loaded, problems = check_layer(read_layers(path, overrides), path)
        out = run_path(loaded.config) if loaded is not None else self.folder / "runs"
        machine = MachineFacts(self.node, self.versions, out, self.folder / "cache", self.environ, 32)
        is_installed = lambda package: package not in self.missing  # noqa: E731
        probes = Probes(**{"run_state": folder_state(out), "is_installed": is_installed, **self.probes})
        checks = CHECKS if self.site is not None else CHECKS + NODE_CHECKS
        findings = judge(checks if self.machine_checks else (), machine)
        setup = queued_run(path, loaded, problems, machine, num_processes=self.nproc, probes=probes, start=self.site)
        return findings + judge(SETUP_CHECKS if loaded is not None else SETUP_CHECKS[:1], setup)

    def alarms(self) -> list[Finding]:
        """Return the problems and the warnings."""
        return [finding for finding in self.findings() if finding.level in ALARMS]

    def alarms_of(self, path: Path, overrides: list[str]) -> list[Finding]:
        """Return the problems and the warnings of another file."""
        return [finding for finding in self.findings_of(path, overrides) if finding.level in ALARMS]

    def apply(self, line: str) -> None:
        """Carry out the line of a finding: edit the configuration, the environment, the files, or the start."""
        if match := re.fullmatch(r"([\w.]+) -> ([\w.]+)", line):
            self._rename(match[1], match[2])
        elif line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.environ[name] = value
            if name == "CUDA_VISIBLE_DEVICES":
                self._show_only(value)
        elif line.startswith("unset "):
            for name in line.split()[1:]:
                self.environ.pop(name, None)
        elif line.startswith("rm "):
            for path in map(Path, line.removeprefix("rm ").removeprefix("-r ").split()):
                assert path.is_relative_to(self.folder)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif match := re.fullmatch(r"(?:CUDA_VISIBLE_DEVICES=([\d,]+) )?paratune train \S+ --nproc (\d+)", line):
            self.nproc = int(match[2])
            if match[1]:
                self._show_only(match[1])
        elif match := re.fullmatch(r"#SBATCH --ntasks-per-node=(\d+)", line):
            nodes = int(self.environ["SLURM_JOB_NUM_NODES"])
            self.environ |= {"SLURM_NTASKS_PER_NODE": match[1], "SLURM_NTASKS": str(int(match[1]) * nodes)}
        elif line.startswith("pip "):
            self._install(line)
        elif match := re.fullmatch(r"([a-z_]+(?:\.[a-z_]+)*): (.+)", line):
            value = match[2]
            self.overrides.append(f"{match[1]}={value}")
        else:
            raise AssertionError(f"this test does not know the line: {line}")

    def _show_only(self, numbers: str) -> None:
        """Simulate CUDA_VISIBLE_DEVICES: torch sees these GPUs, nvidia-smi sees all."""
        self.environ["CUDA_VISIBLE_DEVICES"] = numbers
        self.node["gpus"] = [self.node["gpus"][int(number)] for number in numbers.split(",")]
        self.probes["gpu_processes"] = {}

    def _install(self, line: str) -> None:
        if match := re.fullmatch(r"pip install --force-reinstall (.+) --index-url \S+pytorch.org/whl/(cu\d+)", line):
            assert (match[1], match[2] == "cu128") in (("torch", False), ("'torch==2.11.*'", True))
            self.probes |= WHEELS[match[2]]  # other folders have no torch
            # A GPU build of torch sees the GPUs that the driver sees.
            visible = [{**GPU, "capability": capability} for capability in self.probes.get("capabilities", ())]
            self.node["gpus"] = self.node["gpus"] or visible
        else:
            match = re.fullmatch(r"pip install 'paratune\[(\w+)\]'", line)
            assert match is not None
            installed = IN_EXTRA.get(match[1], {match[1]})
            assert self.missing & installed
            self.missing -= installed

    def _rename(self, before: str, after: str) -> None:
        *above, last = before.split(".")
        section = self.config
        for name in above:
            section = section[name]
        section[after.rpartition(".")[2]] = section.pop(last)


def sound(folder: Path, copy_of: Path | None = None) -> SetUp:
    """Return a run without faults: reviews, a tiny model, one process on a machine without a GPU.

    Args:
        folder: Folder for its files; created here.
        copy_of: Folder of another set-up, whose model is copied.
    """
    (folder / "data").mkdir(parents=True)
    if copy_of is None:
        tiny_model(folder / "model", max_length=64)
    else:
        shutil.copytree(copy_of / "model", folder / "model")
    set_up = SetUp(
        folder,
        {
            "run": {"folder": str(folder / "runs")},
            "task": {"kind": "classification", "labels": ["negative", "positive"]},
            "data": {
                "train": str(folder / "data" / "train.csv"),
                "validation": str(folder / "data" / "validation.csv"),
                "test": str(folder / "data" / "test.csv"),
                "columns": {"text": "text", "label": "label"},
                "max_length": 64,
            },
            "model": {"name": str(folder / "model")},
            "train": {"epochs": 2, "learning_rate": 5e-5},
            "batch": {"global": 8},
        },
        node={
            "hostname": "node7",
            "cpu_model": "AMD EPYC",
            "cpu_flags": ["avx512f", "avx512_bf16"],
            "num_logical_cores": 32,
            "num_usable_cores": 32,
            "ram_bytes": 2**37,
            "ram_limit_bytes": None,
            "gpus": [],
            "gpu_driver": None,
            "storage": STORAGE,
            "python": "3.11.7",
        },
        environ={"HF_HUB_CACHE": str(folder.parent / "hub")},
        versions={"paratune": "0.1.0", "torch": "2.13.0"},
    )
    set_up.csv("train.csv", rows(80))
    set_up.csv("validation.csv", rows(20, first=1000))
    set_up.csv("test.csv", rows(20, first=2000))
    return set_up


def on_site(set_up: SetUp, **values: Any) -> SetUp:
    """Queue the run from a login node, for two nodes with four A100 each."""
    size = {"num_nodes": 2, "processes_per_node": 4, "gpus_per_node": 4, "cores_per_node": 32, "gpu_type": "a100"}
    set_up.site = Start(**{**size, "source": "site.yaml", "is_elsewhere": True, **values})
    set_up.set("strategy.kind", "ddp")
    return set_up


def with_gpus(set_up: SetUp, count: int, gpu: dict[str, Any] = GPU) -> SetUp:
    """Give the machine GPUs with a suitable driver, and start one process on each."""
    set_up.node["gpus"] = [dict(gpu) for _ in range(count)]
    set_up.nproc = count
    set_up.set("strategy.kind", "ddp" if count > 1 else "single")
    set_up.node["gpu_driver"] = "580.82.07"
    set_up.probes |= {
        "driver_cuda": "13.0",
        "torch_cuda": "13.0",
        "torch_archs": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    }
    return set_up


def in_slurm(set_up: SetUp, *, nodes: int = 1, gpus: int = 4, **environ: str) -> SetUp:
    """Run the doctor in a Slurm job, in a step started by srun."""
    with_gpus(set_up, gpus)
    set_up.nproc = None
    set_up.environ |= {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NTASKS": str(nodes),
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        **environ,
    }
    return set_up


@dataclass(frozen=True)
class Case:
    """A fault of a run, and the finding that names it."""

    code: str
    source: str
    """The complaint from which it is taken."""
    break_it: Callable[[SetUp], Any]
    after: Callable[[SetUp], Any] | None = None
    """The effect of the line that `apply` cannot simulate, such as an installed package."""
    line: str | None = None
    """The expected line; None if only its effect counts."""
    level: str = ""
    """problem or warning; either when empty."""


def is_run(path: Path) -> bool:
    """Return whether a file is the configuration of a run, and not a matrix or a part of one."""
    try:
        load_config(path)
    except ConfigError:
        return False
    return True


def make_files(config: Config, folder: Path) -> None:
    """Write small files that match a configuration, below the working directory."""
    data = config.data
    splits = [*named_columns(data.train), *named_columns(data.validation), *named_columns(data.test)]
    sources = [*splits, *data.extra.values()]
    for number, source in enumerate(dict.fromkeys([*sources, *data.predict.values()])):
        path = local_path(source)
        if path is None:
            continue
        path, _ = path_and_split(folder / path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.suffix:  # tokens of a corpus, which no check reads
            path.mkdir()
            (path / TOKENS_FILE).write_text("{}")
            continue
        numbers = range(1000 * number, 1000 * number + 200)
        if isinstance(config.task, TokenClassificationTask):
            path.write_text("\n\n".join(_tagged(config.task, n) for n in numbers) + "\n", encoding="utf-8")
            continue
        _write(path, [_row(config, n) for n in numbers], config.task.kind)


def _write(path: Path, table: list[dict[str, Any]], kind: str) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
        return
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix == ".txt":
        text = "\n".join(next(iter(row.values())) for row in table)
    elif suffix == ".json" and kind == "qa":
        text = json.dumps(table)
    elif suffix in (".jsonl", ".json"):
        text = "\n".join(map(json.dumps, table))
    else:
        out = io.StringIO()
        writer = csv.DictWriter(out, list(table[0]), delimiter="\t" if suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(table)
        text = out.getvalue()
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def _tagged(task: TokenClassificationTask, number: int) -> str:
    """Return a sentence in CoNLL format: each entity has one word, and the types alternate."""
    begins = [label for label in task.labels if label.startswith("B-")]
    words = sentence(number).split()
    return "\n".join([f"{words[0]} {begins[number % len(begins)]}", *(f"{word} O" for word in words[1:])])


def _row(config: Config, number: int) -> dict[str, Any]:
    columns, task = config.data.columns, config.task
    row: dict[str, Any] = {
        name: sentence(number) for name in (*named_columns(columns.text), *named_columns(columns.text_pair))
    }
    row |= {name: sentence(number + place) for place, name in enumerate(named_columns(columns.choices), start=1)}
    if columns.id is not None:
        row[columns.id] = f"id{number}"
    if config.data.split is not None and config.data.split.group_by is not None:
        row[config.data.split.group_by] = f"group {number // 4}"
    for name in named_columns(columns.label):
        row[name] = _label(task, number, row, columns)
    if columns.answer_start is not None:
        row[columns.answer_start] = 0
    return row | {
        name: f"part {number % 2}" for name in config.evaluate.slices if name not in {*row, "label", "length"}
    }


def _label(task: Task, number: int, row: dict[str, Any], columns: Columns) -> Any:
    if isinstance(task, QuestionAnsweringTask):
        context = row[str(columns.text_pair)]
        word = context.split()[1]
        return {"text": [word], "answer_start": [context.index(word)]}
    if isinstance(task, EmbeddingTask):
        low, high = (0, 1) if task.score_range is None or task.loss == "contrastive" else task.score_range
        return (low, high)[number % 2]
    if isinstance(task, MultipleChoiceTask):
        return number % len(named_columns(columns.choices))
    if isinstance(task, RegressionTask):
        low, high = task.range or (0, 1)
        return round(low + (high - low) * (number * 37 % 101) / 100, 2)
    labels = list(task.labels)
    return str(labels[number % len(labels)])
