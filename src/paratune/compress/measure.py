"""Measures one form of a model in a separate process: size, latency, throughput, memory and scores.

`paratune compress` starts `python -m paratune.compress.measure SETTINGS.json`: memory can be attributed to a form only
in a process that loads nothing else. Everything is computed on the CPU in float32 from padded batches, as an ONNX file
needs it, so that forms differ in nothing else.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paratune import hardware, records
from paratune.base.atomic import replace_folder
from paratune.batch import Batch
from paratune.compress.check import num_weight_bytes
from paratune.config.permission import trust
from paratune.data.load import Split
from paratune.data.read import read_table
from paratune.data.slices import slice_values
from paratune.explain.outputs import prepare
from paratune.infer.trained import NamedColumns, TrainedModel, load_trained
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.records import write_json
from paratune.records.compressed import FP32, MEASURED_FILE
from paratune.verdicts.slices import scored_task, slice_records, split_records

NUM_WARM = 10
"""Batches that are computed before the clock starts."""


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured, and on what."""

    form: str
    model: str
    weights_sha256: dict[str, str]
    """Of the weights, by file."""
    rows_file: str
    """Parquet file with the scored rows."""
    source: str
    """Their name for readers."""
    split: str
    slices: tuple[str, ...]
    """Columns, `label` or `length`."""
    batch_sizes: tuple[int, ...]
    num_rows: int
    """Most scored rows, as asked for."""
    num_timed: int
    """Rows for latency and throughput, evenly spaced."""
    num_threads: int
    out: str

    @property
    def compared(self) -> dict[str, Any]:
        """The settings with which another measurement is the same: all but names and places of files."""
        values = json.loads(json.dumps(asdict(self)))
        return {key: value for key, value in values.items() if key not in ("model", "rows_file", "source", "out")}


def measure(settings: MeasureSettings) -> None:
    """Measure a form and write its folder, whole or not at all.

    Raises:
        ParatuneError: The model or the rows cannot be read.
    """
    torch.set_num_threads(settings.num_threads)
    trained = load_trained(settings.model, NamedColumns(), "cpu")
    trained = replace(trained, precision=POLICIES["fp32"])
    trained.model.entry = None
    prepare(trained)
    loaded = hardware.resident_memory_bytes()
    split = replace(
        trained.read(settings.rows_file, read_table(settings.rows_file), require_labels=True), name=settings.split
    )
    timed = evenly(split.num_samples, settings.num_timed)
    record: dict[str, Any] = {
        "schema_version": records.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "form": settings.form,
        "split": settings.split,
        "source": settings.source,
        "num_rows": split.num_rows,
        "settings": settings.compared,
        "weights_bytes": _weights_bytes(trained, settings),
        "loaded_bytes": loaded or 0,
        **_times(trained, split, timed, settings.batch_sizes),
    }
    record |= {
        "peak_bytes": hardware.peak_memory_bytes() or 0,
        "machine": {"cpu": hardware.cpu_model(), "num_threads": torch.get_num_threads()},
        "versions": hardware.package_versions(),
    }
    with replace_folder(Path(settings.out)) as folder:
        record |= _scores(trained, split, folder, settings)
        write_json(folder / MEASURED_FILE, record)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced numbers below `count`."""
    return [int(number) for number in np.linspace(0, count - 1, min(count, most))]


def _weights_bytes(trained: TrainedModel, settings: MeasureSettings) -> int:
    """Return the bytes of the weights: in float32, or of the files of a smaller form."""
    if settings.form == FP32:
        return num_weight_bytes(trained.model)
    return sum((Path(settings.model) / name).stat().st_size for name in settings.weights_sha256)


def _times(trained: TrainedModel, split: Split, rows: Sequence[int], batch_sizes: Sequence[int]) -> dict[str, Any]:
    """Return latency of a batch of one text and texts per second for each batch size; rows are in order of length.

    `cpu_share` is the CPU time of this process per second: below 1, it waited for a processor.
    """
    lengths = np.asarray(split.store.lengths)
    ordered = sorted(rows, key=lambda row: int(lengths[row]))
    batches = _batches(trained, split, rows, 1)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    single = time_batches(trained.model, batches)
    cpu_share = (time.process_time() - begin_cpu) / (time.perf_counter() - begin)
    rates = {}
    for size in batch_sizes:
        seconds = single if size == 1 else time_batches(trained.model, _batches(trained, split, ordered, size))
        rates[str(size)] = len(rows) / sum(seconds)
    p50, p95 = np.quantile(single, [0.5, 0.95])
    return {
        "num_timed": len(rows),
        "p50_ms": 1000 * float(p50),
        "p95_ms": 1000 * float(p95),
        "cpu_share": cpu_share,
        "texts_per_s": rates,
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


def _scores(trained: TrainedModel, split: Split, folder: Path, settings: MeasureSettings) -> dict[str, Any]:
    """Write the predictions, and return scores, their intervals over rows, and the scores of slices."""
    evaluation = trained.apply(split, max(settings.batch_sizes), lambda done, total: None)
    recipe = trained.recipe
    recipe.write_predictions(folder, split, evaluation.outputs, trained.tokenizer)
    task = scored_task(settings.source, folder, trained.task.kind, recipe.names, recipe.task.model_dump())
    slices = slice_records(task, split.name, settings.slices, slice_values(split, settings.slices))
    return {
        "scores": recipe.scores(split, evaluation.outputs) | {"loss": evaluation.loss},
        "intervals": split_records(task, split.name),
        "slices": slices,
    }


def main(path: Path, *more: str) -> None:
    """Measure as a file of settings describes; with --run-code also a model of somebody else that names code."""
    values = json.loads(path.read_text(encoding="utf-8"))
    tuples = {key: tuple(values[key]) for key in ("slices", "batch_sizes")}
    if more == ("--run-code",):
        trust(values["model"])
    measure(MeasureSettings(**{**values, **tuples}))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main(Path(sys.argv[1]), *sys.argv[2:])
