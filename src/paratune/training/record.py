"""Builds the records that a run writes before its first step (run.json) and next to its model."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paratune import hardware, records
from paratune.base.secrets import hide_in_words
from paratune.base.units import utc_now
from paratune.config.batch_size import ResolvedBatch
from paratune.config.glue import headline_metrics
from paratune.config.load import MAPPING
from paratune.config.own_code import named_code, own_code_record, own_model_options
from paratune.config.permission import NamedCode
from paratune.config.plain import flatten
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import Task, class_names
from paratune.data.load import split_records
from paratune.hardware.environment import recorded_batch_script, recorded_environment, unset_variables
from paratune.hardware.gpus import library_versions
from paratune.models.packed import BatchLayout
from paratune.models.task_model import count_parameters, weights_fingerprint
from paratune.processes.elastic import read_torchrun
from paratune.processes.launcher import job_facts, launcher
from paratune.records.own import signed
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import gather_texts
from paratune.training.prepare import Prepared


def model_facts(
    model: nn.Module, name: str, dtypes: Sequence[tuple[Tensor, torch.dtype]] | None = None
) -> dict[str, Any]:
    """Return architecture, size and the fingerprint of the initial weights of a `TaskModel` or a model of transformers.

    size_bytes counts all parameters and buffers in their dtype during training, which is `dtypes` where they are loaded
    in another one; a tied parameter counts once.
    """
    num_parameters, num_trainable = count_parameters(model)
    dtypes = dtypes or [(tensor, tensor.dtype) for tensor in (*model.parameters(), *model.buffers())]
    return {
        "name": name,
        "architecture": type(getattr(model, "hf", model)).__name__,
        "num_parameters": num_parameters,
        "num_trainable": num_trainable,
        "size_bytes": sum(tensor.numel() * dtype.itemsize for tensor, dtype in dtypes),
        "init_fingerprint": weights_fingerprint(model),
    }


def gather_nodes(folder: Path, data_folder: Path | None, *, local_rank: int) -> list[dict[str, Any]]:
    """Return a description of each node of the run and the storage of both folders, by its first rank. Collective.

    Only the process with local rank 0 describes its node.
    """
    nodes: dict[str, dict[str, Any]] = {}
    own = json.dumps(hardware.describe_node(folder, data_folder)) if local_rank == 0 else ""
    for text in gather_texts(reduce_over_ranks, own):
        if text:
            node = json.loads(text)
            # Some launchers give local rank 0 to every process: keep the first description of a node.
            nodes.setdefault(node["hostname"], node)
    return list(nodes.values())


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
    """Return the record of one session of a run; docs/reference/records.md lists the fields.

    Args:
        step: Number of steps before this session.
        batch_reason: Why the micro-batch is not the configured one, or how auto chose it.
        advice: Lines of `paratune.config.hints`.
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
    """Return the fields of `session_record` without `batch`, which a run without steps does not have."""
    config = prepared.config
    return {
        "began": utc_now(),
        "step": step,
        "config": prepared.loaded.values,
        "config_origin": prepared.loaded.origin,
        "config_file": None if prepared.loaded.source == MAPPING else str(prepared.loaded.source.resolve()),
        "hardware": nodes,
        "world_size": prepared.place.world_size,
        "device": prepared.device.type,
        **process_facts(),
        "own_code": own_code_record(config),
        "teachers": prepared.teachers,
        "strategy": {
            "kind": config.strategy.kind,
            "traits": asdict(prepared.traits),
            "options": strategy_options(config.strategy),
        },
        "loader": {"workers": config.data.num_workers},
        "advice": list(advice),
    }


def process_facts() -> dict[str, Any]:
    """Return the facts of a session that this process has without a configuration: command, versions, environment."""
    job, start = job_facts(), read_torchrun()
    return {
        "command": hide_in_words(sys.argv),
        "directory": str(Path.cwd()),
        "versions": hardware.package_versions() | library_versions(),
        "code": hardware.code_version(),
        "launcher": launcher(),
        "job": None if job is None else {**job, "batch_script": recorded_batch_script()},
        "torchrun": asdict(start) if start else None,
        "num_threads": torch.get_num_threads(),
        "environment": recorded_environment(),
        "environment_unset": unset_variables(),
    }


_MEMORY_OPTIONS = ("batch", "strategy", "precision", "train.activation_checkpointing", "data.max_length")


def memory_setup(prepared: Prepared) -> dict[str, Any]:
    """Return the settings on which the memory depends: sessions with equal settings can use the same micro-batch."""
    device = torch.cuda.get_device_name(prepared.device) if prepared.device.type == "cuda" else "cpu"
    chosen = {
        key: value
        for key, value in flatten(prepared.loaded.values).items()
        if any(key == option or key.startswith(f"{option}.") for option in _MEMORY_OPTIONS)
    }
    return {"world_size": prepared.place.world_size, "device": device, **chosen}


def tracked_config(prepared: Prepared, session: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what trackers receive as the configuration: options by dotted key, and facts of device and model."""
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
        session: The first session, from `session_record`; the top level repeats its fields.
        plan: num_steps, steps_per_epoch, num_epochs, batches_per_epoch, num_batches.
    """
    record = {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": folder.name,
        "created": session["began"],
        **{key: value for key, value in session.items() if key not in {"began", "step"}},
        "kind": run_kind(prepared.config),
        "seed": prepared.config.run.seed,
        "task": task_facts(prepared.config),
        "grades": getattr(prepared.recipe.task, "grades", None),
        "data": split_records(prepared.splits),
        "model": model,
        "plan": plan,
        "sessions": [session],
    }
    return signed(record)


def run_kind(config: Config) -> str:
    """Return the kind of a run: full, probe (it is only timed) or baseline (it has no steps)."""
    if config.baseline is not None:
        return "baseline"
    return "probe" if config.measure.probe else "full"


def add_session(folder: Path, session: dict[str, Any]) -> None:
    """Append a session to the run.json of a resumed run.

    Raises:
        CheckpointError: The file cannot be read or written.
    """
    record = records.read_json(folder / records.RUN_FILE)
    record["sessions"] = [*record.get("sessions", []), session]
    # The user's own configuration names the same code in the same place: the run is the user's from now on.
    if _code_of(record) == _code_of(session):
        record = signed(record)
    records.write_json(folder / records.RUN_FILE, record)


def _code_of(record: Mapping[str, Any]) -> tuple[Any, list[NamedCode]]:
    return record.get("config_file"), named_code(record.get("config") or {})


def num_requeued(folder: Path) -> int | None:
    """Return how often Slurm requeued the jobs of a run; None for a run without jobs.

    A job that was stopped before the first step of a session wrote no record, but its next start counts it.
    """
    jobs = [session.get("job") for session in records.read_json(folder / records.RUN_FILE).get("sessions", [])]
    return _sum_of_maxima((job["id"], job["num_requeued"]) for job in jobs if job)


def num_restarts(folder: Path) -> int | None:
    """Return how often torchrun restarted the processes of a run after a failure; None for a run without torchrun.

    A requeued Slurm job counts its restarts from 0 again, also under the same --rdzv-id, so both are in the key.
    """
    return _sum_of_maxima(
        ((torchrun["run_id"], (session.get("job") or {}).get("num_requeued", 0)), torchrun["num_restarts"])
        for session in records.read_json(folder / records.RUN_FILE).get("sessions", [])
        if (torchrun := session.get("torchrun"))
    )


def _sum_of_maxima(counts: Iterable[tuple[Any, int]]) -> int | None:
    """Return the sum over keys of the largest count of each key; None without counts."""
    largest: dict[Any, int] = {}
    for key, count in counts:
        largest[key] = max(largest.get(key, 0), count)
    return sum(largest.values()) if largest else None


def task_record(prepared: Prepared, task: Task) -> dict[str, Any]:
    """Return the file next to a saved model with which it can be evaluated and used without the configuration.

    `task` has the values chosen on the validation set.
    """
    values = prepared.loaded.values
    return {
        "schema_version": records.SCHEMA_VERSION,
        "task": task.model_dump(mode="json"),
        "columns": values["data"]["columns"],
        "reading": prepared.config.data.reading._replace(hub_revision=None)._asdict(),
        "max_length": prepared.max_length,
        "truncation": prepared.config.data.truncation,
        "head_tokens": prepared.config.data.head_tokens,
        "missing": prepared.config.data.missing,
        "precision": prepared.config.precision,
        **({"model": own} if (own := own_model_options(values["model"])) else {}),
        "layout": prepared.config.batch.layout,
        "metrics": [metric.model_dump(mode="json") for metric in prepared.config.evaluate.metrics],
    }


def task_facts(config: Config) -> dict[str, Any]:
    """Return the kind of the task, the names of its classes and its headline metrics."""
    task = config.task
    names = class_names(task)
    return {
        "kind": task.kind,
        **({"labels": names} if names else {}),
        "glue": getattr(task, "glue", None),
        "metrics": list(headline_metrics(task)),
    }


def device_name(device: torch.device) -> str:
    """Return the product name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.cpu_model() or "CPU"
