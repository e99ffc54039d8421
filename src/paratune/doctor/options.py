"""Checks of the configuration: options, extras, run folder, settings without effect, reasons against a start."""

import re
import shlex
from collections.abc import Iterator

from paratune.config.feasibility import FP16_HOSTILE, Ranks, Target, reasons_against
from paratune.config.own_code import imported_code
from paratune.config.problems import ERRORS, Problem
from paratune.config.sections import data_sources
from paratune.config.task_sections import cuts_windows
from paratune.doctor.facts import Finding, QueuedRun, has_bf16
from paratune.errors import ConfigError

_NEVER = {
    "train.warmup_steps": "The learning rate never reaches its peak",
    "evaluate.steps": "No evaluation runs before the end: there is no best model to select, and no early stopping",
    "checkpoint.steps": "No checkpoint is saved before the end: a crash or a time limit loses the run",
}


def check_options(setup: QueuedRun) -> Iterator[Finding]:
    for problem in setup.problems:
        where = problem.place.origin if problem.place else str(setup.path)
        if match := re.match(r"data\.(\w+) is the same as data\.(\w+)", problem.message):
            yield same_rows(problem.message, match[1], match[2], where)
            continue
        why = "paratune train ends at once with exit code 2."
        key = re.match(r"((?:[\w.]*\.)?)(\w+) is not an option of .*did you mean ([\w.]+)\?", problem.message)
        line = f"{key[1]}{key[2]} -> {key[1]}{key[3]}" if key else ""  # with its most similar valid name
        yield Finding("config", "problem", problem.message, why, where=where, line=line)
    for line in imported_code(setup.loaded.values) if setup.loaded is not None else ():
        fact = f"training imports Python code that does not come with paratune: {line}"
        why = "It can do everything that you can do: read it first. doctor imports it only with --run-code."
        yield setup.finding("own_code", "note", fact, why, key=line.partition(":")[0])


def same_rows(fact: str, part: str, other: str, where: str) -> Finding:
    """Return the finding for identical splits: validation or test as `part`, and train or validation as `other`."""
    if other == "train":
        why = f"Scores on {part} measure only how well the training set was memorised."
        line = f"data.split.{part}: 0.1" if part in ("validation", "test") else ""
        remedy = f"instead of data.{part}" if line else "name another file"
        return Finding("test_is_train", "problem", fact, why, remedy, where, line)
    why = "The best model is selected on the rows of the test set, so its test score is too high."
    line = "data.test: null" if part == "test" else ""
    return Finding("test_is_validation", "problem", fact, why, "or name another file" if line else "", where, line)


def check_run_folder(setup: QueuedRun) -> Iterator[Finding]:
    state, folder = setup.probes.run_state, setup.machine.out_folder
    other_name = f"run.name: {folder.name}_2"
    if state == "finished":
        why = "Training does not overwrite it: the job would wait in the queue and then fail."
        if setup.start.is_elsewhere:
            why = "paratune launch does not change it, and submits nothing."
        yield setup.finding("run_exists", "problem", f"{folder} contains a finished run", why, other_name)
    elif state == "unfinished" and setup.start.is_elsewhere:
        fact = f"{folder} contains an unfinished run"
        yield setup.finding("run_unfinished", "note", fact, "paratune launch continues it.", key="run.name")
    elif state == "unfinished":
        why = "Without --resume training fails, after the job has waited in the queue."
        line = f"paratune train {shlex.quote(str(setup.path))} --resume"
        fact = f"{folder} contains an unfinished run"
        yield setup.finding("run_unfinished", "warning", fact, why, line, key="run.name")
    elif state == "foreign":
        fact = f"{folder} contains files and is not a run folder"
        why = "Training does not write to a folder with files of other programs."
        yield setup.finding("run_foreign", "problem", fact, why, other_name)
    if setup.probes.damaged_checkpoint:
        fact = f"the newest checkpoint in {folder}, {setup.probes.damaged_checkpoint}, is incomplete"
        why = "--resume ignores it, and continues from the one before it, or from the first step."
        line = f"rm -r {shlex.quote(str(folder / 'checkpoints' / setup.probes.damaged_checkpoint))}"
        yield Finding("checkpoint_damaged", "warning", fact, why, where=str(folder), line=line)


def check_services(setup: QueuedRun) -> Iterator[Finding]:
    """Check the package for data sets of the hub, and whether the servers of trackers can be reached.

    `check_feasible` checks the packages of strategies and trackers.
    """
    on_hub = [key for key, source in data_sources(setup.config.data) if source.startswith("hub:")]
    if on_hub and not setup.probes.is_installed("datasets"):
        fact, why = "extra hub is not installed", "The run ends before its first step."
        yield setup.finding("extra_missing", "problem", fact, why, "pip install 'paratune[hub]'", key=on_hub[0])
    wandb, mlflow = setup.config.trackers.wandb, setup.config.trackers.mlflow
    if not setup.start.no_network:
        return
    why = "The machines of the run have no network: metrics wait for a server that never answers."
    if wandb is not None and wandb.mode == "online":
        yield setup.finding("tracker_online", "problem", "wandb is online", why, "trackers.wandb.mode: offline")
    if mlflow is not None and (mlflow.uri or "").startswith(("http://", "https://")):
        fact = f"mlflow uses the server {mlflow.uri}"
        yield setup.finding("tracker_online", "problem", fact, why, "trackers.mlflow.uri: null")


def check_steps(setup: QueuedRun) -> Iterator[Finding]:
    """Check for warm-up, evaluations and checkpoints after the last step."""
    config, train, size = setup.config, setup.data.split("train") if setup.data else None, batch_size(setup)
    steps, epochs = config.train.max_steps, config.train.epochs
    # Some tasks train on windows: their number is not that of the rows.
    if steps is None and train and size is not None and epochs is not None and not cuts_windows(config.task):
        steps = max(1, round(epochs * -(-train.num_rows // size)))
    for key, value in (
        ("train.warmup_steps", config.train.warmup_steps),
        ("evaluate.steps", config.evaluate.steps),
        ("checkpoint.steps", config.checkpoint.steps),
    ):
        if steps is not None and value is not None and value > steps:
            fact, why = f"{key} is {value}, and the run has {steps} steps", f"{_NEVER[key]}; training ends at once."
            yield setup.finding("never_due", "problem", fact, why, f"{key}: {max(1, steps // 5)}")


def batch_size(setup: QueuedRun) -> int | None:
    """Return the samples of an optimizer step; None if the configuration does not set it."""
    batch = setup.config.batch
    if batch.global_ is not None:
        return batch.global_
    return batch.per_device and batch.per_device * (batch.grad_accum_steps or 1) * setup.start.world_size


FINDINGS = {
    "strategy.too_few_ranks": ("world_size", "{start} {min}"),
    "strategy.ranks_not_multiple": ("world_size", "{start} {multiple}"),
    "strategy.too_many_ranks": ("world_size", "strategy.kind: ddp"),
    "batch.too_large": ("batch_share", ""),
    "batch.uneven_share": ("batch_share", "{key}: {last}"),
    "batch.group": ("batch_share", "{key}: {last}"),
    "batch.micro_batch_not_divisor": ("batch_share", "{key}: {nearest[0]}"),
    "batch.too_few_micro_batches": ("batch_share", "{key}: {limit}"),
    "batch.micro_batches_not_multiple": ("batch_share", "{key}: {last}"),
    "dependency.missing": ("extra_missing", "pip install 'paratune[{extra}]'"),
    "device.no_gpu": ("no_gpu", "device: auto"),
    "device.is_gpu": ("device.is_gpu", "device: auto"),
    "device.too_few_gpus": ("tasks_over_gpus", ""),
    "train.order_of_sums_on_cpu": ("order_of_sums", "train.deterministic: true"),
    "precision.needs_gpu": ("precision_cpu", "precision: fp32"),
    "precision.needs_newer_gpu": ("precision_gpu", ""),
    "precision.tf32_disabled": ("precision.tf32_disabled", "unset NVIDIA_TF32_OVERRIDE"),
    "data.too_few_rows": ("too_few_rows", "{start} {most}"),
}
"""Code of a reason -> code of its finding, and the line that repairs it, with facts of the reason."""
_WHY = {
    "device.too_few_gpus": "Two processes would share one GPU, which NCCL does not allow (`Duplicate GPU detected`).",
    "precision.needs_gpu": "A CPU is about 300 times slower in it, or does not support it.",
    "strategy.single_group": "One group over all processes is zero3.",
}


def check_feasible(setup: QueuedRun) -> Iterator[Finding]:
    """Yield a problem for every reason why the run cannot start."""
    for reason in reasons(setup):
        exit_code = ERRORS.get(reason.code, ConfigError).exit_code
        where = setup.start.source if reason.code == "device.too_few_gpus" else setup.where(reason.keys[0])
        yield Finding(
            FINDINGS[reason.code][0] if reason.code in FINDINGS else reason.code,
            "problem",
            reason.message,
            _WHY.get(reason.code, f"Every process ends with exit code {exit_code}."),
            where=where,
            line=_line(setup, reason),
        )


def _line(setup: QueuedRun, reason: Problem) -> str:
    """Return the line that repairs a reason; "" without such a line."""
    facts, key = reason.facts, reason.keys[0]
    if reason.code == "strategy.single_group":
        half, rest = divmod(facts["world_size"], 2)
        return "strategy.kind: zero3" if rest or half < 2 else f"strategy.shard_size: {half}"
    if reason.code == "strategy.too_many_stages":
        num_stages = facts["num_blocks"] // facts["chunks"]
        return f"strategy.stages: {num_stages}" if num_stages >= 2 else "strategy.kind: ddp"
    if reason.code == "strategy.needs_accelerator":
        return f"{key}: false" if facts["given"].get(key) is True else ""
    if reason.code == "device.too_few_gpus":
        return tasks_line(setup, facts["num_devices"])
    if reason.code == "precision.needs_newer_gpu":
        kind = setup.model.model_type if setup.model else None
        return f"precision: {'fp16' if facts['precision'] == 'bf16' and kind not in FP16_HOSTILE else 'fp32'}"
    nearest = facts.get("nearest", ("",))
    if reason.code not in FINDINGS or not nearest:
        return ""
    start = f"paratune train {shlex.quote(str(setup.path))} --nproc"
    return FINDINGS[reason.code][1].format(**{**facts, "key": key, "start": start, "last": nearest[-1]})


def reasons(setup: QueuedRun) -> tuple[Problem, ...]:
    """Return the known reasons why the run cannot start."""
    config, train = setup.config, setup.data.split("train") if setup.data else None
    gpus, start, environ = setup.gpus, setup.start, setup.machine.environ
    has_rows = train is not None and not cuts_windows(config.task)
    target: Target | None = Target(is_cpu=True, description="the run computes on the CPU")
    if gpus:
        old = [gpu["name"] for gpu in gpus if has_bf16(gpu) is False]
        target = Target(
            is_cpu=False,
            description=f"{', '.join(dict.fromkeys(old))} is older" if old else "there are GPUs",
            missing_precisions=frozenset(("bf16", "tf32")) if old else frozenset(),
            num_devices=len(gpus) if start.gpus_per_node is None else start.gpus_per_node,
            is_tf32_disabled=not start.is_elsewhere and environ.get("NVIDIA_TF32_OVERRIDE") == "0",
        )
    elif config.device != "cpu" and start.gpus_per_node:
        target = None  # the GPUs of the job are unknown
    return reasons_against(
        config,
        setup.traits,
        target,
        Ranks(start.world_size, start.num_nodes),
        num_blocks=setup.model.num_layers if setup.model else None,
        num_samples=train.num_rows if train is not None and has_rows else None,
        is_installed=setup.probes.is_installed,
    )


def tasks_line(setup: QueuedRun, num_gpus: int) -> str:
    """Return the line that starts one process for each GPU of a machine."""
    if setup.start.source.startswith("SLURM"):
        return f"#SBATCH --ntasks-per-node={num_gpus}"
    if setup.start.source == "WORLD_SIZE":
        return f"torchrun --nproc-per-node={num_gpus} --no-python paratune train {setup.path}"
    return f"paratune train {shlex.quote(str(setup.path))} --nproc {num_gpus}"
