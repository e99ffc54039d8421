"""How labels that models gave came about: which models, which rule, and what became of every row."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import hardware, records
from paratune.config.task_sections import ClassificationTask, class_names
from paratune.infer.labelling import Voice
from paratune.infer.pseudo import FATES, asked_of, histogram
from paratune.records import file_sha256


def model_facts(target: str, trained: Any) -> dict[str, Any]:
    """Return what the record says of a model (`paratune.infer.trained.TrainedModel`)."""
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
    voices: Sequence[Voice],
    opinion: Any,
    fates: Sequence[str],
    counts: Mapping[str, int],
    rule: Any,
) -> dict[str, Any]:
    """Return the record of an output, but for the SHA-256 of its file, which need not be there yet."""
    task = voices[0].task
    asked = asked_of(fates)
    names = dict.fromkeys(["train", "validation", "test", *(name for voice in voices for name in voice.seen)])
    unknown = {
        name: {voice.target: voice.seen[name].unknown for voice in voices if name in voice.seen} for name in names
    }
    record: dict[str, Any] = {
        "schema_version": records.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": hardware.package_versions(),
        "models": [dict(voice.facts) for voice in voices],
        "task": {"kind": task.kind, **({"labels": class_names(task)} if class_names(task) else {})},
        "rule": {**asdict(rule), "of": "spread" if opinion.is_spread else "confidence", "agreement": "all models"},
        "input": {"source": source, "sha256": _sha256_if_file(source), "num_rows": table.num_rows},
        "output": {"file": str(output), "num_rows": counts["kept"]},
        "num_rows": {fate: counts[fate] for fate in FATES if counts[fate]},
        "overlap_unknown": {name: {key: why for key, why in each.items() if why} for name, each in unknown.items()},
        "histogram": histogram(opinion, asked),
    }
    if isinstance(task, ClassificationTask):
        kept = np.array([fate == "kept" for fate in fates])
        record["classes"] = {
            name: {
                "num_predicted": int((asked & (opinion.values == number)).sum()),
                "num_kept": int((kept & (opinion.values == number)).sum()),
            }
            for number, name in enumerate(class_names(task))
        }
    return record


def _sha256_if_file(source: str) -> str | None:
    path = Path(source).expanduser()
    return file_sha256(path) if path.is_file() else None
