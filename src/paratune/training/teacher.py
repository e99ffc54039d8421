"""Computes the outputs of the teachers of a distillation for the training rows, once, before the first step.

Rows do not change during training and a teacher has no dropout, so its outputs are the same in every epoch. They are
kept in the folder of the token files, by a fingerprint of the model and of the texts. Where several processes need
them, one computes them under a file lock, and the others wait. Thus training needs no memory for a teacher, and every
strategy only reads one more value for each row.
"""

import hashlib
import json
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paratune import records
from paratune.base.atomic import replace_file
from paratune.base.text import listing
from paratune.config.optional_sections import Distil, teacher_names
from paratune.config.sections import Config, named_columns
from paratune.config.task_sections import class_names
from paratune.console import Display
from paratune.data.labels import first_rows
from paratune.data.load import Split
from paratune.data.token_store import explain_disk_errors
from paratune.data.tokens import cache_folder, hash_texts, locked
from paratune.engine.memory import free_memory
from paratune.engine.stop import StopRequest
from paratune.errors import ConfigError, Stopped
from paratune.infer.trained import NamedColumns, TrainedModel, load_trained
from paratune.models.distillation import teacher_targets
from paratune.models.locate import file_records, teacher_folder
from paratune.processes.diagnosis import WAITING
from paratune.processes.progress import working
from paratune.records.own import TASK_FILE, read_task_file

Array = np.ndarray[Any, Any]
_FORMAT = 3
"""Raised when the same model and texts give other files."""


@dataclass(frozen=True)
class TeacherPass:
    """What the passes of all teachers of a run need."""

    config: Config
    split: Split
    """The training split, with the tokens of the student."""
    device: torch.device
    stop: StopRequest
    display: Display

    @property
    def distil(self) -> Distil:
        assert self.config.distil is not None
        return self.config.distil


def with_teachers(work: TeacherPass) -> tuple[Split, list[dict[str, Any]]]:
    """Return the training split with the outputs of its teachers, and the record of each teacher.

    Raises:
        CheckpointError: A teacher is an unfinished run, or its files have changed since it was saved.
        ConfigError: A teacher is not a folder, has another task or other labels, or has outputs that are not finite.
        DataError: The cache cannot be written.
        Stopped: A signal came.
    """
    outputs, facts = [], []
    for name in teacher_names(work.distil):
        values, record = _outputs(work, name)
        outputs.append(values)
        facts.append(record)
    targets = teacher_targets(outputs, work.distil, work.config.task.kind)
    free_memory(work.device)  # the recorded peak is that of the student, whether a teacher was applied here or not
    return replace(work.split, teacher=targets), facts


def _outputs(work: TeacherPass, name: str) -> tuple[Array, dict[str, Any]]:
    """Return the outputs of a teacher, (N, C), such as logits, from the cache or computed, and its record."""
    folder = teacher_folder(name)
    begin = time.perf_counter()
    with working(f"hash the files of the teacher {name}"):
        files = {file: about["sha256"] for file, about in file_records(folder).items() if file != "README.md"}
        inputs = _inputs_sha256(folder, files)
        key = _fingerprint(work, folder, files)
    cache_dir = cache_folder(work.config.data.cache_dir)
    path = cache_dir / "teachers" / f"{key}.npz"  # with a CRC-32, which is checked
    num_rows = work.split.num_rows
    if (values := _read(path, num_rows)) is None:
        with explain_disk_errors(cache_dir):
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_suffix(".lock"), work.stop.came, lambda: work.display.notify(WAITING, 0, 1)):
                # Another process may have written the file while this one waited for the lock.
                if (values := _read(path, num_rows)) is None:
                    values = _compute(work, name, folder)
                    with replace_file(path) as temporary, temporary.open("wb") as file:
                        np.savez(file, outputs=values)
    return values, _record(name, folder, files, inputs, time.perf_counter() - begin)


def _fingerprint(work: TeacherPass, folder: Path, files: dict[str, str]) -> str:
    """Return the SHA-256, in hexadecimal, over all that the outputs and the checks of a teacher depend on."""
    task = work.config.task
    known = records.file_sha256(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else None
    facts = [_FORMAT, files, known, task.kind, class_names(task), work.device.type]
    sha = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    hash_texts(sha, work.split.samples.texts)
    hash_texts(sha, work.split.samples.text_pairs)
    return sha.hexdigest()


def _read(path: Path, num_rows: int) -> Array | None:
    """Return the outputs in a file; None where it is missing, damaged, or has another number of rows."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            outputs: Array = arrays["outputs"]
    except (FileNotFoundError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return outputs if outputs.ndim == 2 and len(outputs) == num_rows else None


def _compute(work: TeacherPass, name: str, folder: Path) -> Array:
    data = work.config.data
    with working(f"load the teacher {name}"):
        # The columns of the student, for a folder of another program, which records none.
        text = named_columns(data.columns.text)
        teacher = load_trained(
            str(folder), NamedColumns(text=text[0] if text else None), "auto" if work.device.type == "cuda" else "cpu"
        )
    _check_task(work, name, teacher, is_recorded=(folder / TASK_FILE).is_file())
    # Without labels: these are the student's, and only outputs are needed.
    samples = replace(work.split.samples, labels=None)
    options = teacher.tokenize_options(data.cache_dir)
    rows = teacher.recipe.make_split("train", work.split.source, samples, options, require_labels=False)
    with work.display.bar("teacher", 1) as bar:

        def report(done: int, total: int) -> None:
            bar.update(done, total=total)
            if work.stop.came():
                raise Stopped(
                    f"stopped by {work.stop.signal_name()} while computing the outputs of the teacher {name}; nothing "
                    "was trained, start it again",
                    code="stopped.signal",
                )

        outputs = teacher.apply(rows, work.config.evaluate.batch_size, report).outputs
    if unknown := np.flatnonzero(~np.isfinite(outputs).all(axis=1)).tolist():
        message = (
            f"distil.teacher: {name} has outputs that are not finite for {len(unknown)} of {len(outputs)} training "
            f"rows: {first_rows(unknown)}; train it again, or name another model"
        )
        raise ConfigError(message, code="distil.teacher", key="distil.teacher", value=name, num_rows=len(unknown))
    return outputs


def _check_task(work: TeacherPass, name: str, teacher: TrainedModel, *, is_recorded: bool) -> None:
    """Check that a teacher answers the question that the student learns.

    Raises:
        ConfigError: Its task, its labels or its number of texts differ.
    """
    task, has_pair = work.config.task, work.split.samples.text_pairs is not None
    problem = None
    if teacher.task.kind != task.kind:
        problem = f"has the task {teacher.task.kind}, and task.kind is {task.kind}"
    elif teacher.names != class_names(task):
        problem = f"has the labels {listing(teacher.names, 8)}, and task.labels is {listing(class_names(task), 8)}"
    elif is_recorded and (teacher.columns.text_pair is not None) != has_pair:
        has, wanted = ("single texts", "pairs") if has_pair else ("pairs", "single texts")
        problem = f"was trained on {has}, and the training data has {wanted}"
    if problem is not None:
        message = (
            f"distil.teacher: {name} {problem}; name a model with the same task, and the same labels in the same order"
        )
        raise ConfigError(message, code="distil.teacher", key="distil.teacher", value=name)


def _inputs_sha256(folder: Path, files: dict[str, str]) -> str:
    """Return the SHA-256, in hexadecimal, over what the outputs for given texts depend on: weights, configuration,
    tokenizer, and how texts are cut."""
    known = read_task_file(folder)
    cut = {key: known.get(key) for key in ("max_length", "truncation", "head_tokens", "precision")}
    return hashlib.sha256(json.dumps([files, cut], sort_keys=True).encode()).hexdigest()


def _record(name: str, folder: Path, files: dict[str, str], inputs_sha256: str, time_s: float) -> dict[str, Any]:
    """Return the entry of a teacher in run.json."""
    is_run = (folder.parent / records.RUN_FILE).is_file()
    return {
        "name": name,
        "run_id": records.read_json(folder.parent / records.RUN_FILE).get("run_id") if is_run else None,
        "weights_sha256": {file: sha for file, sha in files.items() if Path(file).suffix in (".safetensors", ".onnx")},
        "inputs_sha256": inputs_sha256,
        "time_s": time_s,
    }
