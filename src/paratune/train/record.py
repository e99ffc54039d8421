"""What a run writes about itself before its first step (run.json) and beside its model."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from paratune import hardware, records
from paratune.base.secrets import hide_in_words
from paratune.config.batch_size import ResolvedBatch
from paratune.config.differences import flatten
from paratune.config.glue import headline_metrics
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import Task, class_names
from paratune.data.load import split_records
from paratune.hardware.environment import recorded_environment, unset_variables
from paratune.hardware.gpus import library_versions
from paratune.models.batch_layout import BatchLayout
from paratune.models.task_model import TaskModel, count_parameters, weights_fingerprint
from paratune.processes.elastic import torchrun_of
from paratune.processes.launcher import job_facts, launcher
from paratune.strategies.protocol import Strategy
from paratune.train.prepare import Prepared


def model_facts(model: TaskModel, name: str) -> dict[str, Any]:
    """Return architecture, size and the fingerprint of the initial weights.

    size_bytes is that of all parameters and buffers, each tied one once, in the dtype in which training holds them.
    """
    num_parameters, num_trainable = count_parameters(model)
    return {
        "name": name,
        "architecture": type(model.hf).__name__,
        "num_parameters": num_parameters,
        "num_trainable": num_trainable,
        "size_bytes": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        "init_fingerprint": weights_fingerprint(model),
    }


def gather_nodes(strategy: Strategy, folder: Path, data_folder: Path, *, local_rank: int) -> list[dict[str, Any]]:
    """Describe each machine of the run once, in the order of its first rank. Collective.

    Args:
        strategy: Brings the descriptions together.
        folder: The run's; the storage under it is described.
        data_folder: Of the token files; the storage under it is described.
        local_rank: This process's number on its machine; the first one looks.
    """
    nodes: dict[str, dict[str, Any]] = {}
    own = json.dumps(hardware.describe_node(folder, data_folder)) if local_rank == 0 else ""
    for text in gather_texts(strategy, own):
        if text:
            node = json.loads(text)
            # Some launchers show every process as the first of its machine.
            nodes.setdefault(node["hostname"], node)
    return list(nodes.values())


def gather_texts(strategy: Strategy, own: str) -> list[str]:
    """Return the texts of all ranks, in their order. Collective."""
    content = own.encode()
    lengths = strategy.reduce(torch.tensor([len(content)]), "concat").tolist()
    joined = bytes(strategy.reduce(torch.tensor(list(content), dtype=torch.uint8), "concat").tolist())
    texts = []
    for length in lengths:
        texts.append(joined[:length].decode())
        joined = joined[length:]
    return texts


def session_record(
    prepared: Prepared,
    *,
    batch: ResolvedBatch,
    batch_layout: BatchLayout,
    nodes: list[dict[str, Any]],
    step: int,
    batch_reason: str | None = None,
    advice: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what one session of a run, from a start to its end or interruption, ran with.

    docs/reference/records.md lists the fields.

    Args:
        prepared: What was loaded.
        batch: Sizes for this world size.
        batch_layout: How rows lie side by side.
        nodes: Of `gather_nodes`.
        step: Steps that were taken before it.
        batch_reason: Why the micro-batch is not what was asked for, or what auto found.
        advice: Of `paratune.config.advice`.
    """
    return {
        **session_facts(prepared, nodes=nodes, step=step, advice=advice),
        "batch": {
            "global_batch_size": batch.global_batch_size,
            "micro_batch_size": batch.micro_batch_size,
            "grad_accum_steps": batch.grad_accum_steps,
            "reason": batch_reason,
            "layout": batch_layout.kind,
            "layout_reason": batch_layout.reason,
            "rounds_tokens": batch_layout.rounds,
            "changes": [],
            "setup": memory_setup(prepared),
        },
    }


def session_facts(
    prepared: Prepared, *, nodes: list[dict[str, Any]], step: int, advice: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what `session_record` has but the batch; a run without steps has no batch."""
    config, start = prepared.config, torchrun_of()
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": hide_in_words(sys.argv),
        "directory": str(Path.cwd()),
        "config": prepared.loaded.values,
        "config_origin": prepared.loaded.origin,
        "versions": hardware.package_versions() | library_versions(),
        "code": hardware.code_version(),
        "hardware": nodes,
        "world_size": prepared.place.world_size,
        "launcher": launcher(),
        "job": job_facts(),
        "torchrun": start.as_dict() if start else None,
        "num_threads": torch.get_num_threads(),
        "environment": recorded_environment(),
        "environment_unset": unset_variables(),
        "device": prepared.device.type,
        "strategy": {
            "kind": config.strategy.kind,
            "traits": prepared.traits.as_dict(),
            "options": strategy_options(config.strategy),
        },
        "loader": {"workers": config.data.num_workers},
        "advice": list(advice),
    }


_MEMORY_OPTIONS = ("batch", "strategy", "precision", "train.activation_checkpointing", "data.max_length")


def memory_setup(prepared: Prepared) -> dict[str, Any]:
    """Return what decides which micro-batch fits: two sessions with the same setup can take each other's."""
    device = torch.cuda.get_device_name(prepared.device) if prepared.device.type == "cuda" else "cpu"
    chosen = {
        key: value
        for key, value in flatten(prepared.loaded.values).items()
        if any(key == option or key.startswith(f"{option}.") for option in _MEMORY_OPTIONS)
    }
    return {"world_size": prepared.place.world_size, "device": device, **chosen}


def tracked_config(prepared: Prepared, session: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what trackers are told of a run: its options by dotted key, and on what it runs.

    Args:
        prepared: What was loaded.
        session: Of `session_record`.
        model: Of `model_facts`.
    """
    facts = {
        "run_on.world_size": session["world_size"],
        "run_on.device": session["device"],
        **{f"run_on.{key}": session["batch"][key] for key in ("global_batch_size", "micro_batch_size")},
        **{f"versions.{name}": session["versions"].get(name) for name in ("paratune", "torch", "transformers")},
        **{f"architecture.{key}": model[key] for key in ("architecture", "num_parameters", "num_trainable")},
    }
    return {**flatten(prepared.loaded.values), **facts}


def run_record(
    prepared: Prepared, folder: Path, *, session: dict[str, Any], model: dict[str, Any], plan: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of run.json (see docs/reference/records.md).

    Args:
        prepared: What was loaded.
        folder: The run's folder.
        session: The first, of `session_record`; what it says is also said on top.
        model: Of `model_facts`.
        plan: num_steps, steps_per_epoch, num_epochs, batches_per_epoch, num_batches.
    """
    return {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": folder.name,
        "created": session["began"],
        **{key: value for key, value in session.items() if key not in {"began", "step"}},
        "kind": kind_of(prepared.config),
        "seed": prepared.config.run.seed,
        "task": task_facts(prepared.config),
        "data": split_records(prepared.splits),
        "model": model,
        "plan": plan,
        "sessions": [session],
    }


def kind_of(config: Config) -> str:
    """Return what a run is made for: full; probe for one that is only timed; baseline for one without steps."""
    if config.baseline is not None:
        return "baseline"
    return "probe" if config.measure.probe else "full"


def add_session(folder: Path, session: dict[str, Any]) -> None:
    """Append a session to the run.json of a run that is gone on with.

    Raises:
        CheckpointError: It cannot be read or written.
    """
    record = records.read_run(folder)
    record["sessions"] = [*record.get("sessions", []), session]
    records.write_run(folder, record)


def num_requeued(folder: Path) -> int | None:
    """Return how often Slurm queued the jobs of a run again; None when it was in none.

    A job that was stopped before the first step of its session left no record of that, but its next start counts it.
    """
    jobs = [session.get("job") for session in records.read_run(folder).get("sessions", [])]
    most: dict[str, int] = {}
    for job in jobs:
        if job:
            most[job["id"]] = max(most.get(job["id"], 0), job["num_requeued"])
    return sum(most.values()) if most else None


def num_restarts(folder: Path) -> int | None:
    """Return how often torchrun started the processes of a run again after a failure; None when it never started any.

    Restarts of a job that Slurm queued again are added to those before, also under the same --rdzv-id.
    """
    most: dict[tuple[str, int], int] = {}
    for session in records.read_run(folder).get("sessions", []):
        if start := session.get("torchrun"):
            key = (start["run_id"], (session.get("job") or {}).get("num_requeued", 0))
            most[key] = max(most.get(key, 0), start["num_restarts"])
    return sum(most.values()) if most else None


def task_record(prepared: Prepared, task: Task) -> dict[str, Any]:
    """Return what stands beside a saved model, so that it can be evaluated and used without the configuration.

    Args:
        prepared: What was loaded.
        task: With what was chosen on the validation set.
    """
    values = prepared.loaded.values
    return {
        "schema_version": records.SCHEMA_VERSION,
        "task": task.model_dump(mode="json"),
        "columns": values["data"]["columns"],
        "max_length": prepared.max_length,
        "truncation": prepared.config.data.truncation,
        "missing": prepared.config.data.missing,
        "precision": prepared.config.precision,
        "layout": prepared.config.batch.layout,
    }


def task_facts(config: Config) -> dict[str, Any]:
    """Return the task's kind, the names of its classes and the metrics that stand for it."""
    task = config.task
    names = class_names(task)
    return {
        "kind": task.kind,
        **({"labels": names} if names else {}),
        "glue": getattr(task, "glue", None),
        "metrics": list(headline_metrics(task)),
    }


def device_name(device: torch.device) -> str:
    """Return what the maker calls the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.cpu_model() or "CPU"
