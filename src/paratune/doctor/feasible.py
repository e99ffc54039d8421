"""Checks whether the run can start: the reasons of `config.feasibility` as findings, with lines that repair them."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paratune.config.feasibility import Ranks, Target, reasons_against
from paratune.config.problems import ERRORS, Problem
from paratune.config.task_sections import cuts_windows
from paratune.doctor.finding import Finding
from paratune.doctor.setup import QueuedRun, has_bf16
from paratune.errors import ConfigError

FP16_HOSTILE = frozenset({"t5", "mt5", "umt5", "longt5", "deberta-v2", "gpt_neo", "gemma3", "gemma3_text"})
"""Types with reported activations outside the range of fp16; docs/explanation/precision.md lists the reports."""
_SHARE_CODES = (
    *("batch.too_large", "batch.uneven_share", "batch.group", "batch.micro_batch_not_divisor"),
    *("batch.too_few_micro_batches", "batch.micro_batches_not_multiple"),
)
FINDING_CODES = {
    **dict.fromkeys(("strategy.too_few_ranks", "strategy.ranks_not_multiple", "strategy.too_many_ranks"), "world_size"),
    **dict.fromkeys(_SHARE_CODES, "batch_share"),
    "dependency.missing": "extra_missing",
    "device.no_gpu": "no_gpu",
    "device.too_few_gpus": "tasks_over_gpus",
    "train.order_of_sums_on_cpu": "order_of_sums",
    "precision.needs_gpu": "precision_cpu",
    "precision.needs_newer_gpu": "precision_gpu",
    "data.too_few_rows": "too_few_rows",
}
"""Code of a reason -> code of its finding, if they differ."""
_WHY = {
    "device.too_few_gpus": "Two processes would share one GPU, which NCCL does not allow (`Duplicate GPU detected`).",
    "precision.needs_gpu": "A CPU is about 300 times slower in it, or does not support it.",
    "strategy.single_group": "One group over all processes is zero3.",
}


def check_feasible(setup: QueuedRun) -> Iterator[Finding]:
    """Yield a problem for every reason why the run cannot start."""
    for reason in reasons(setup):
        where = setup.start.source if reason.code == "device.too_few_gpus" else setup.where(reason.keys[0])
        yield Finding(
            FINDING_CODES.get(reason.code, reason.code),
            "problem",
            reason.message,
            _WHY.get(
                reason.code, f"Every process ends with exit code {ERRORS.get(reason.code, ConfigError).exit_code}."
            ),
            where=where,
            line=_LINES[reason.code](setup, reason.facts, reason.keys[0]) if reason.code in _LINES else "",
        )


def reasons(setup: QueuedRun) -> tuple[Problem, ...]:
    """Return the known reasons why the run cannot start."""
    config, train = setup.config, setup.data.split("train") if setup.data else None
    has_rows = train is not None and not cuts_windows(config.task)
    return reasons_against(
        config,
        setup.traits,
        _target(setup),
        Ranks(setup.start.world_size, setup.start.num_nodes),
        num_blocks=setup.model.num_layers if setup.model else None,
        num_samples=train.num_rows if train is not None and has_rows else None,
        is_installed=setup.probes.is_installed,
    )


def _target(setup: QueuedRun) -> Target | None:
    gpus, start, environ = setup.gpus, setup.start, setup.machine.environ
    if gpus:
        old = [gpu["name"] for gpu in gpus if has_bf16(gpu) is False]
        return Target(
            is_cpu=False,
            description=f"{', '.join(dict.fromkeys(old))} is older" if old else "there are GPUs",
            missing_precisions=frozenset(("bf16", "tf32")) if old else frozenset(),
            num_devices=len(gpus) if start.gpus_per_node is None else start.gpus_per_node,
            is_tf32_disabled=not start.is_elsewhere and environ.get("NVIDIA_TF32_OVERRIDE") == "0",
        )
    if setup.config.device != "cpu" and start.gpus_per_node:
        return None  # the GPUs of the job are unknown
    return Target(is_cpu=True, description="the run computes on the CPU")


Facts = Mapping[str, Any]


def _start_line(setup: QueuedRun, num_processes: int) -> str:
    return f"paratune train {shlex.quote(str(setup.path))} --nproc {num_processes}"


def tasks_line(setup: QueuedRun, num_gpus: int) -> str:
    """Return the line that starts one process for each GPU of a machine."""
    if setup.start.source.startswith("SLURM"):
        return f"#SBATCH --ntasks-per-node={num_gpus}"
    if setup.start.source == "WORLD_SIZE":
        return f"torchrun --nproc-per-node={num_gpus} --no-python paratune train {setup.path}"
    return _start_line(setup, num_gpus)


def _stages_line(setup: QueuedRun, facts: Facts, key: str) -> str:
    num_stages = facts["num_blocks"] // facts["chunks"]
    return f"strategy.stages: {num_stages}" if num_stages >= 2 else "strategy.kind: ddp"


def _groups_line(setup: QueuedRun, facts: Facts, key: str) -> str:
    half, rest = divmod(facts["world_size"], 2)
    return "strategy.kind: zero3" if rest or half < 2 else f"strategy.shard_size: {half}"


def _newer_gpu_line(setup: QueuedRun, facts: Facts, key: str) -> str:
    kind = setup.model.model_type if setup.model else None
    return f"precision: {'fp16' if facts['precision'] == 'bf16' and kind not in FP16_HOSTILE else 'fp32'}"


_LINES: Mapping[str, Callable[[QueuedRun, Facts, str], str]] = {
    "strategy.too_few_ranks": lambda setup, facts, key: _start_line(setup, facts["min"]),
    "strategy.ranks_not_multiple": lambda setup, facts, key: _start_line(setup, facts["multiple"]),
    "strategy.too_many_ranks": lambda setup, facts, key: "strategy.kind: ddp",
    "strategy.single_group": _groups_line,
    "strategy.too_many_stages": _stages_line,
    "strategy.needs_accelerator": lambda setup, facts, key: f"{key}: false" if facts["given"].get(key) is True else "",
    "batch.uneven_share": lambda setup, facts, key: f"{key}: {facts['nearest'][-1]}",
    "batch.group": lambda setup, facts, key: f"{key}: {facts['nearest'][-1]}",
    "batch.micro_batch_not_divisor": lambda setup, facts, key: f"{key}: {facts['nearest'][0]}",
    "batch.too_few_micro_batches": lambda setup, facts, key: f"{key}: {facts['limit']}",
    "batch.micro_batches_not_multiple": lambda setup, facts, key: (
        f"{key}: {facts['nearest'][-1]}" if facts["nearest"] else ""
    ),
    "dependency.missing": lambda setup, facts, key: f"pip install 'paratune[{facts['extra']}]'",
    "device.no_gpu": lambda setup, facts, key: "device: auto",
    "device.is_gpu": lambda setup, facts, key: "device: auto",
    "device.too_few_gpus": lambda setup, facts, key: tasks_line(setup, facts["num_devices"]),
    "train.order_of_sums_on_cpu": lambda setup, facts, key: "train.deterministic: true",
    "precision.needs_gpu": lambda setup, facts, key: "precision: fp32",
    "precision.needs_newer_gpu": _newer_gpu_line,
    "precision.tf32_disabled": lambda setup, facts, key: "unset NVIDIA_TF32_OVERRIDE",
    "data.too_few_rows": lambda setup, facts, key: _start_line(setup, facts["most"]),
}
"""Code of a reason -> the line that repairs it; "" without such a line."""
