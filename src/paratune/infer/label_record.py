"""Builds the record of pseudo-labels: the models, the rule, and the result for every row."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import hardware, records
from paratune.config.task_sections import ClassificationTask, class_names
from paratune.infer.labelling import LabelModel
from paratune.infer.pseudo import OUTCOMES, histogram, is_predicted
from paratune.records import file_sha256


def model_facts(target: str, trained: Any) -> dict[str, Any]:
    """Return the facts of a model (`paratune.infer.trained.TrainedModel`) for the record."""
    weights = sorted(trained.folder.glob("*.safetensors")) if trained.folder is not None else []
    run = records.read_run(trained.run) if trained.run is not None else {}
    train = (run.get("data") or {}).get("train") or {}
    return {
        "model": target,
        "run_id": run.get("run_id"),
        "seed": run.get("seed"),
        "weights_sha256": {path.name: file_sha256(path) for path in weights} or None,
        "train_fingerprint": train.get("fingerprint"),
    }


def make_record(
    source: str,
    output: Path,
    table: pa.Table,
    models: Sequence[LabelModel],
    combined: Any,
    outcomes: Sequence[str],
    counts: Mapping[str, int],
    rule: Any,
) -> dict[str, Any]:
    """Return the record of an output, without the SHA-256 of its file, which may not exist yet."""
    task = models[0].task
    predicted = is_predicted(outcomes)
    names = dict.fromkeys(["train", "validation", "test", *(name for model in models for name in model.seen)])
    unknown = {
        name: {model.target: model.seen[name].unknown for model in models if name in model.seen} for name in names
    }
    record: dict[str, Any] = {
        "schema_version": records.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": hardware.package_versions(),
        "models": [dict(model.facts) for model in models],
        "task": {"kind": task.kind, **({"labels": class_names(task)} if class_names(task) else {})},
        "rule": {**asdict(rule), "of": "spread" if combined.is_spread else "confidence", "agreement": "all models"},
        "input": {"source": source, "sha256": _sha256_if_file(source), "num_rows": table.num_rows},
        "output": {"file": str(output), "num_rows": counts["kept"]},
        "num_rows": {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        "overlap_unknown": {
            name: {key: why for key, why in reasons.items() if why} for name, reasons in unknown.items()
        },
        "histogram": histogram(combined, predicted),
    }
    if isinstance(task, ClassificationTask):
        is_kept = np.array([outcome == "kept" for outcome in outcomes])
        record["classes"] = {
            name: {
                "num_predicted": int((predicted & (combined.values == number)).sum()),
                "num_kept": int((is_kept & (combined.values == number)).sum()),
            }
            for number, name in enumerate(class_names(task))
        }
    return record


def _sha256_if_file(source: str) -> str | None:
    path = Path(source).expanduser()
    return file_sha256(path) if path.is_file() else None
