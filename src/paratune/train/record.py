"""What a run writes about itself before its first step (run.json) and beside its model."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paratune import hardware, records
from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import Config, class_names
from paratune.data.load import split_records
from paratune.models.task_model import SequenceModel, count_parameters, weights_fingerprint
from paratune.train.prepare import Prepared, strategy_options


def model_facts(model: SequenceModel, name: str) -> dict[str, Any]:
    """Return architecture, size and the fingerprint of the initial weights."""
    num_parameters, num_trainable = count_parameters(model)
    return {
        "name": name,
        "architecture": type(model.hf).__name__,
        "num_parameters": num_parameters,
        "num_trainable": num_trainable,
        "init_fingerprint": weights_fingerprint(model),
    }


def run_record(
    prepared: Prepared, folder: Path, *, batch: ResolvedBatch, model: dict[str, Any], plan: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of run.json (see docs/records.md).

    Args:
        prepared: What was loaded.
        folder: The run's folder; its storage is described.
        batch: Sizes for this world size.
        model: Of `model_facts`.
        plan: num_steps, steps_per_epoch, num_epochs.
    """
    config = prepared.config
    return {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": folder.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "config": prepared.loaded.values,
        "config_origin": prepared.loaded.origin,
        "versions": hardware.package_versions(),
        "code": hardware.code_version(),
        "hardware": [hardware.describe_node(folder)],
        "world_size": prepared.place.world_size,
        "seed": config.run.seed,
        "strategy": {
            "kind": config.strategy.kind,
            "traits": prepared.strategy_type.traits.as_dict(),
            "options": strategy_options(config),
        },
        "batch": {
            "global_batch_size": batch.global_batch_size,
            "micro_batch_size": batch.micro_batch_size,
            "grad_accum_steps": batch.grad_accum_steps,
        },
        "task": task_facts(config),
        "data": split_records(prepared.splits),
        "model": model,
        "plan": plan,
    }


def task_record(prepared: Prepared) -> dict[str, Any]:
    """Return what stands beside a saved model, so that it can be evaluated and used without the configuration."""
    values = prepared.loaded.values
    return {
        "schema_version": records.SCHEMA_VERSION,
        "task": values["task"],
        "columns": values["data"]["columns"],
        "max_length": prepared.max_length,
        "truncation": prepared.config.data.truncation,
        "missing": prepared.config.data.missing,
        "precision": prepared.config.precision,
    }


def task_facts(config: Config) -> dict[str, Any]:
    """Return the task's kind and the names of its classes."""
    names = class_names(config.task)
    return {"kind": config.task.kind, **({"labels": names} if names else {})}
