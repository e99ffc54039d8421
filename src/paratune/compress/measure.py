"""Measures one form of a model in a separate process, and writes its record: size, latency, throughput, memory, scores.

`paratune compress` starts `python -m paratune.compress.measure`: memory can be attributed to a form only in a process
that loads nothing else. Everything is computed on the CPU in float32 from padded batches, as an ONNX file needs it, so
that forms differ in nothing else.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paratune import hardware, records
from paratune.base.units import utc_now
from paratune.batch import Batch
from paratune.compress.quantize import evenly, num_weight_bytes
from paratune.config.permission import trust
from paratune.data.load import Split
from paratune.data.read import read_table
from paratune.data.slices import slice_values
from paratune.hardware.environment import recorded_environment
from paratune.infer.trained import NamedColumns, TrainedModel, load_trained
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.records.own import is_own, signed
from paratune.records.run_folder import COMPRESSED_FOLDER, FP32, weight_files
from paratune.tasks.own_metrics import own_scores
from paratune.verdicts.slices import scored_task, slice_records

NUM_WARM = 10
"""Batches that are computed before the clock starts."""
_OF_RUN = ("config_origin", "config_file", "own_code", "teachers", "seed", "task", "grades")
"""Fields of run.json that a form has from its run."""


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured, and on what; a form is measured again when one of them changes."""

    form: str
    weights_sha256: dict[str, str]
    """Of the weights of the run, by file."""
    split: str
    rows: int
    """Most scored rows."""
    timed_rows: int
    """Rows for latency and throughput, evenly spaced."""
    batch_size: int
    """Of the throughput; the latency is that of one text."""
    num_threads: int


def measure(run: Path, settings: MeasureSettings, rows_file: Path) -> None:
    """Measure a form of a run, and write its run.json, predictions, and last its summary.json.

    Args:
        run: Folder of the run; the smaller model is in the folder of the form already.
        rows_file: Parquet file with the scored rows.

    Raises:
        ParatuneError: The model or the rows cannot be read.
    """
    folder = run / COMPRESSED_FOLDER / settings.form
    torch.set_num_threads(settings.num_threads)
    original = records.read_json(run / records.RUN_FILE)
    record = _run_record(original, folder, settings)
    # Before the model is loaded: what it names may run if this record is the user's.
    records.write_json(folder / records.RUN_FILE, record)
    place = (run if settings.form == FP32 else folder) / records.MODEL_FOLDER
    trained = replace(load_trained(str(place), NamedColumns(), "cpu"), precision=POLICIES["fp32"])
    trained.model.float().eval().entry = None
    source = str(rows_file)
    split = replace(trained.read(source, read_table(source), require_labels=True), name=settings.split)
    size = num_weight_bytes(trained.model)
    if settings.form != FP32:
        size = sum(path.stat().st_size for path in weight_files(place))
    speed = _speed(trained, split, settings)
    peak = hardware.peak_memory_bytes()
    scored = original["data"].get(split.name) or {}
    facts = {key: split.record()[key] for key in ("fingerprint", "num_rows", "num_samples", "num_tokens")}
    record["data"] = {**original["data"], split.name: {**scored, **facts}}
    record["model"] = {**original["model"], "size_bytes": size}
    records.write_json(folder / records.RUN_FILE, record)
    summary = {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": record["run_id"],
        "finished": utc_now(),
        "world_size": 1,
        "throughput": {"samples_per_s": speed.pop("samples_per_s")},
        "inference": {**speed, "weights_bytes": size},
        "ranks": [{"rank": 0, "peak_memory_bytes": peak, "device": hardware.cpu_model() or "CPU"}],
        "memory": {"kind": "rss", "largest_bytes": peak, "sum_bytes": peak},
        **_scores(trained, split, folder, tuple(original["config"]["evaluate"].get("slices") or ()), settings),
    }
    if split.num_rows == scored.get("num_rows"):
        summary["baseline"] = records.read_json(run / records.SUMMARY_FILE).get("baseline")  # it is of all rows
    records.write_json(folder / records.SUMMARY_FILE, summary)


def _run_record(original: Mapping[str, Any], folder: Path, settings: MeasureSettings) -> dict[str, Any]:
    """Return run.json of a form: the same experiment as its run, with another setting and on this machine."""
    record = {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": f"{settings.form}-{original['run_id']}",
        "created": utc_now(),
        "kind": "form",
        **{key: original[key] for key in _OF_RUN if key in original},
        "config": {**original["config"], "form": settings.form},
        "measured": asdict(settings),
        "data": original["data"],
        "model": original["model"],
        "plan": {"num_steps": 0},
        "batch": {"global_batch_size": settings.batch_size},
        "strategy": {"kind": "single"},
        "world_size": 1,
        "device": "cpu",
        "num_threads": settings.num_threads,
        "hardware": [hardware.describe_node(folder)],
        "versions": hardware.package_versions(),
        "environment": recorded_environment(),
    }
    return signed(record) if is_own(original) else record


def _speed(trained: TrainedModel, split: Split, settings: MeasureSettings) -> dict[str, Any]:
    """Return the latency of one text, and the samples/s of batches in the order of length.

    `cpu_share` is the CPU time of this process per second: below 1, it waited for a processor.
    """
    rows = evenly(split.num_samples, settings.timed_rows)
    lengths = np.asarray(split.store.lengths)
    ordered = sorted(rows, key=lambda row: int(lengths[row]))
    singles = _batches(trained, split, rows, 1)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    single = time_batches(trained.model, singles)
    cpu_share = (time.process_time() - begin_cpu) / (time.perf_counter() - begin)
    seconds = time_batches(trained.model, _batches(trained, split, ordered, settings.batch_size))
    p50, p95 = np.quantile(single, [0.5, 0.95])
    return {
        "samples_per_s": len(rows) / sum(seconds),
        "latency_p50_ms": 1000 * float(p50),
        "latency_p95_ms": 1000 * float(p95),
        "cpu_share": cpu_share,
    }


def _batches(trained: TrainedModel, split: Split, rows: Sequence[int], size: int) -> list[Batch]:
    collator = trained.recipe.collator(split, trained.tokenizer)
    return [collator(np.asarray(rows[at : at + size]), 1.0) for at in range(0, len(rows), size)]


@torch.inference_mode()
def time_batches(model: TaskModel, batches: Sequence[Batch]) -> list[float]:
    """Return the seconds of the forward pass of each batch, on the host clock; the first ones also run before."""
    for batch in batches[:NUM_WARM]:
        model(batch)
    seconds = []
    for batch in batches:
        begin = time.perf_counter()
        model(batch)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _scores(
    trained: TrainedModel, split: Split, folder: Path, slices: tuple[str, ...], settings: MeasureSettings
) -> dict[str, Any]:
    """Write the predictions, and return the scores of the split and of its slices."""
    evaluation = trained.apply(split, settings.batch_size, lambda done, total: None)
    recipe = trained.recipe
    recipe.write_predictions(folder, split, evaluation.outputs, trained.tokenizer)
    own = own_scores(trained.metrics, recipe, split, evaluation.outputs)
    found: dict[str, Any] = {"scores": recipe.scores(split, evaluation.outputs) | own | {"loss": evaluation.loss}}
    if slices:
        task = scored_task(folder.name, folder, trained.task.kind, recipe.names, recipe.task.model_dump())
        found["slices"] = slice_records(task, split.name, slices, slice_values(split, slices))
    return {key: {split.name: value} for key, value in found.items()}


def main(run: Path, settings: str, rows_file: Path, *more: str) -> None:
    """Measure as JSON settings describe; with --run-code also a model of somebody else that names code."""
    if more == ("--run-code",):
        trust(str(run))
    measure(run, MeasureSettings(**json.loads(settings)), rows_file)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
