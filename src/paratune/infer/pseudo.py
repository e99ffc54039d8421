"""Pseudo-labels: which rows of a file get the label that one or several models predict, and the record of it.

Dimensions: `N` rows with a text, `M` models, `C` classes.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from paratune import hardware
from paratune.base.units import utc_now
from paratune.config.sections import Columns, Data, text_columns
from paratune.config.task_sections import ClassificationTask, Task, class_names
from paratune.data.columns import Samples
from paratune.data.duplicates import read_text_hashes, text_hashes
from paratune.data.load import PSEUDO, Split, default_selector, load_samples, read_samples, samples_fingerprint
from paratune.errors import CheckpointError, ConfigError, DataError, MissingDependency, coded, option_error
from paratune.records import RUN_FILE, SCHEMA_VERSION, TRAIN_TEXTS_FILE, file_sha256, read_json
from paratune.records.own import admit_data
from paratune.records.predictions import softmax
from paratune.tasks.sequence import number_scale

log = logging.getLogger(__name__)
Array = npt.NDArray[Any]
KEPT: Final = "kept"
OUTCOMES: Final[dict[str, str]] = {
    "without_text": "without a text",
    "repeated": "a text of an earlier row",
    "seen": "a text that a run was trained or scored on",
    "not_finite": "a prediction that is not finite",
    "disagreement": "the models name different classes",
    "uncertain": "less certain than the threshold",
    "over_max_per_class": "beyond --max-per-class",
    "over_limit": "beyond --limit",
    KEPT: "kept",
}
"""The possible outcomes of a row with their descriptions."""
ROW = "source_row"
OUTPUT = (PSEUDO, ROW, "confidence", "spread", "prediction")
"""Columns of the output in addition to those of a training file."""


@dataclass(frozen=True, eq=False)
class Labeller:
    """One of the models, with its outputs."""

    target: str
    task: Task
    columns: Columns
    kept: Sequence[str]
    """Columns of the input that the output keeps: texts, id, and the column by which the run grouped its rows."""
    samples: Samples
    """Rows of the input with a text."""
    outputs: Array
    """(N, C) or (N, 1)."""
    seen: npt.NDArray[np.uint64]
    """Hashes of the texts of the run's data sets."""
    unknown: Mapping[str, str]
    """Why texts of a data set are unknown or may have changed, by its name."""
    facts: Mapping[str, Any]
    """Facts of the model for the record."""


def make_labeller(
    target: str, trained: Any, first: Labeller | None, source: str, table: pa.Table, apply: Callable[[Split], Any], *,
    is_only: bool,
) -> Labeller:  # fmt: skip
    """Apply a model, a `paratune.infer.trained.TrainedModel`, to the rows of the input, with `apply`.

    `first` is the first model, None if this is it; `source` is the name of the input in messages.

    Raises:
        CheckpointError: The run's record is damaged.
        ConfigError: The task has no number as the certainty of an answer, the first model has another task or other
            columns, or the run is not the user's and its data is made by code.
        DataError: A column of the output would be there twice.
    """
    task, columns = trained.task, trained.columns
    if task.kind != "classification" and (task.kind != "regression" or task.targets or task.raters or is_only):
        message = (
            f"{target} has the task {task.kind}; pseudo-labels are for classification, with a confidence, and for "
            "regression of one column with two models or more, whose spread is the certainty: name runs of other seeds"
        )
        raise ConfigError(message, code="task.unsupported", target=target, kind=task.kind)
    if first is not None:
        here, wanted = (
            f"the task {model.task.kind} ({', '.join(class_names(model.task))}), text columns {model.columns.text}, "
            f"{model.columns.text_pair} and separator {model.columns.separator!r}"
            for model in (trained, first)
        )
        if here != wanted:
            message = f"{target} has {here}, and {first.target} has {wanted}; give runs of the same task and columns"
            raise ConfigError(message, code="pseudo_label.models_differ", target=target)
    names = dict.fromkeys([*text_columns(columns), columns.id, read_group_by(trained.run)])
    kept = [name for name in names if name is not None and name in table.column_names]
    taken = [name for name in (*kept, columns.label) if name in OUTPUT] or [columns.label] * (columns.label in kept)
    if taken:
        message = (
            f"{source}: the output needs the column {taken[0]} for itself, and also keeps it as text, id or "
            "split.group_by of the model; rename it, or choose another column of the label with --label"
        )
        raise DataError(message, code="data.column_twice", source=source, column=taken[0])
    if first is None and columns.label in table.column_names:
        extra = coded("pseudo_label.label_ignored", source=source)
        log.warning("%s has the column %s; its values are ignored", source, columns.label, extra=extra)
    split = trained.read(source, table, require_labels=False)
    outputs = apply(split).outputs
    seen, unknown = seen_texts(trained.run)
    for name, reason in unknown.items():
        extra = coded("pseudo_label.overlap", target=target)
        log.warning("%s: texts of its %s set may be in the output: %s", target, name, reason, extra=extra)
    weights = sorted(trained.folder.glob("*.safetensors")) if trained.folder is not None else []
    run = read_json(trained.run / RUN_FILE) if trained.run is not None else {}
    described = {
        "model": target,
        "run_id": run.get("run_id"),
        "seed": run.get("seed"),
        "weights_sha256": {path.name: file_sha256(path) for path in weights} or None,
        "train_fingerprint": ((run.get("data") or {}).get("train") or {}).get("fingerprint"),
    }
    return Labeller(target, task, columns, kept, split.samples, outputs, seen, unknown, described)


def read_group_by(run: Path | None) -> str | None:
    """Return the column by which a run grouped rows in its split, so that a later training can group by it, too."""
    split = {} if run is None else read_json(run / RUN_FILE)["config"]["data"].get("split") or {}
    group_by: str | None = split.get("group_by")
    return group_by


def seen_texts(run: Path | None) -> tuple[npt.NDArray[np.uint64], dict[str, str]]:
    """Return the hashes of the texts of the data sets of a run, and by data set why texts are unknown.

    Training texts are read from the run folder, those of validation, test and `data.extra` again from their files.
    """
    seen = [np.zeros(0, dtype=np.uint64)]
    if run is None:
        return seen[0], dict.fromkeys(("train", "validation", "test"), "it is not a run")
    record = read_json(run / RUN_FILE)
    try:
        about = {name: facts for name, facts in record["data"].items() if facts is not None}
        data = Data.model_validate(record["config"]["data"])
        task: Task = TypeAdapter(Task).validate_python(record["config"]["task"])
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        message = f"{run / RUN_FILE} is damaged: it is not the record of a run ({error!r})"
        raise CheckpointError(message, code="run.damaged") from error
    admit_data(run)
    unknown: dict[str, str] = {}
    if (train := read_text_hashes(run / TRAIN_TEXTS_FILE)) is None:
        unknown["train"] = f"{TRAIN_TEXTS_FILE} is not in the run"
    else:
        seen.append(train)
    # A set `test` of data.predict has no labels and no scores.
    shares = {"validation": "validation_share", "test": "has_test"}
    sets = [name for name, share in shares.items() if getattr(data, name) or getattr(data.split, share, None)]
    # The training file is needed only where the other sets are cut from it.
    cut = data if data.split is not None else data.model_copy(update={"train": None})
    splits = cache(lambda: load_samples(cut, task))
    for name in (name for name in (*sets, *data.extra) if name in about):
        try:
            if name in data.extra:
                samples = read_samples(data.extra[name], data, default_selector(data, task))
            else:
                _, samples = splits()[name]
        except (DataError, MissingDependency, OSError) as error:
            unknown[name] = f"its file cannot be read again: {error}"
            continue
        seen.append(text_hashes(samples))
        if samples_fingerprint(samples, task) != about[name].get("fingerprint"):
            unknown[name] = "its file has changed since the run was trained"
    return np.concatenate(seen), unknown


def combine(task: Task, outputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Return the combined prediction of M models from their outputs, (N, C) logits or (N, 1) numbers.

    Returns:
        Class ids, their mean probabilities, and whether all models predict this class; or the means of the numbers,
        their sample standard deviations (n - 1), and True. Each is (N,).
    """
    if isinstance(task, ClassificationTask):
        shares = np.stack([softmax(model_outputs.astype(np.float64)) for model_outputs in outputs])
        mean = shares.mean(axis=0)
        classes = mean.argmax(axis=1).astype(np.int64)
        return classes, mean.max(axis=1), (shares.argmax(axis=2) == classes).all(axis=0)
    numbers = np.stack([model_outputs[:, 0].astype(np.float64) for model_outputs in outputs])
    with np.errstate(invalid="ignore"):  # infinite numbers give NaN
        return numbers.mean(axis=0), numbers.std(axis=0, ddof=1), np.ones(numbers.shape[1], dtype=np.bool_)


def excluded_rows(samples: Samples, seen: Array) -> list[str | None]:
    """Return the outcome of each row that is excluded whatever the models predict; None for other rows."""
    hashes = text_hashes(samples)
    first_rows = set(np.unique(hashes, return_index=True)[1].tolist())
    return [
        "seen" if is_seen else None if row in first_rows else "repeated"
        for row, is_seen in enumerate(np.isin(hashes, seen).tolist())
    ]


def decide(
    combined: tuple[Array, Array, Array], excluded: Sequence[str | None], *, is_spread: bool, threshold: float,
    max_per_class: int | None = None, limit: int | None = None,
) -> list[str]:  # fmt: skip
    """Return the outcome of each row, a key of `OUTCOMES`; among equally certain rows earlier ones are kept.

    `combined` is the result of `combine`, `excluded` that of `excluded_rows`. `threshold` is the smallest confidence,
    or with `is_spread` the largest spread, of a kept row.
    """
    values, certainty, agreed = combined
    better, least = (-certainty, -threshold) if is_spread else (certainty, threshold)
    outcomes = np.where(better < least, "uncertain", KEPT).astype(object)
    outcomes[~agreed] = "disagreement"
    outcomes[~np.isfinite(certainty)] = "not_finite"
    outcomes = np.array([reason or outcome for reason, outcome in zip(excluded, outcomes, strict=True)], dtype=object)
    one_group = np.zeros(len(outcomes))
    for most, groups, outcome in ((max_per_class, values, "over_max_per_class"), (limit, one_group, "over_limit")):
        if most is None:
            continue
        num_kept = Counter[Any]()
        for row in np.argsort(-better, kind="stable"):
            if outcomes[row] == KEPT:
                num_kept[groups[row].item()] += 1
                if num_kept[groups[row].item()] > most:
                    outcomes[row] = outcome
    return list(outcomes)


def pseudo_labels(
    source: str, table: pa.Table, output: Path, labellers: Sequence[Labeller], *, threshold: float,
    max_per_class: int | None, limit: int | None,
) -> tuple[pa.Table, dict[str, Any]]:  # fmt: skip
    """Return the rows with a pseudo-label, in the columns of a training file, and the record of how they were made.

    `output` is the file that is written later; the record lacks its SHA-256.

    Raises:
        ConfigError: `threshold` is out of range, or `max_per_class` has no effect.
        DataError: No row is kept.
    """
    task, samples = labellers[0].task, labellers[0].samples
    is_spread, names = task.kind == "regression", class_names(task)
    if not is_spread and not 1 / len(names) < threshold <= 1:
        reason = f"a confidence is above {1 / len(names):.3g} (one of {len(names)} classes) and at most 1"
        raise option_error("--threshold", threshold, reason, code="cli.invalid_value")
    if is_spread and max_per_class is not None:
        reason = f"no effect in {task.kind}, which has no classes; use --limit"
        raise option_error("--max-per-class", max_per_class, reason, code="cli.no_effect", kind=task.kind)
    combined = combine(task, [labeller.outputs for labeller in labellers])
    excluded = excluded_rows(samples, np.concatenate([labeller.seen for labeller in labellers]))
    rule = {"threshold": threshold, "max_per_class": max_per_class, "limit": limit}
    outcomes = decide(combined, excluded, is_spread=is_spread, **rule)  # type: ignore[arg-type]
    counts = Counter(outcomes) + Counter({"without_text": table.num_rows - len(outcomes)})
    kept = np.array([row for row, outcome in enumerate(outcomes) if outcome == KEPT], dtype=np.int64)
    if len(kept) == 0:
        why = "; ".join(f"{counts[outcome]} {text}" for outcome, text in OUTCOMES.items() if counts[outcome])
        known = combined[1][np.isfinite(combined[1]) & np.array([reason is None for reason in excluded])]
        best = f" (the most certain row has {(min if is_spread else max)(known):.4g})" if len(known) else ""
        message = f"{source}: no row is kept with --threshold {threshold:g}{best}: {why}; nothing was written"
        raise DataError(message, code="data.empty")
    num_kept = np.bincount(combined[0][kept], minlength=len(names)).tolist() if names else []
    if empty := [name for name, count in zip(names, num_kept, strict=True) if not count]:
        message = "%s: no kept row has the label %s; pseudo-labels make it rarer"
        log.warning(message, source, ", ".join(empty), extra=coded("pseudo_label.class_empty", source=source))
    path = Path(source).expanduser()
    sha256 = file_sha256(path) if path.is_file() else None
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "created": utc_now(),
        "versions": hardware.package_versions(),
        "models": [dict(labeller.facts) for labeller in labellers],
        "task": {"kind": task.kind, **({"labels": names} if names else {})},
        "rule": {**rule, "of": "spread" if is_spread else "confidence", "agreement": "all models"},
        "input": {"source": source, "sha256": sha256, "num_rows": table.num_rows},
        "output": {"file": str(output), "num_rows": len(kept)},
        "num_rows": {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        "overlap_unknown": {labeller.target: dict(labeller.unknown) for labeller in labellers if labeller.unknown},
    }
    if names:
        record["classes"] = dict(zip(names, num_kept, strict=True))
    return _output_table(table, labellers, combined[0][kept], combined[1][kept], kept), record


def _output_table(
    table: pa.Table, labellers: Sequence[Labeller], values: Array, certainty: Array, kept: Array
) -> pa.Table:
    """Return the kept rows with labels in the form of the data, and their origin."""
    task, columns = labellers[0].task, labellers[0].columns
    rows = labellers[0].samples.rows[kept]
    names = dict.fromkeys(name for labeller in labellers for name in labeller.kept)
    made: dict[str, Any] = {name: table.column(name).take(pa.array(rows)) for name in names}
    pseudo = np.ones(len(kept), dtype=np.bool_)
    if not isinstance(task, ClassificationTask):
        scale = number_scale(task)
        reported = scale.reported(values) if scale else values
        made |= {str(columns.label): reported, PSEUDO: pseudo, "spread": certainty, "prediction": values}
        return pa.table({**made, ROW: rows})
    forms: list[Any] = class_names(task)
    if isinstance(task.labels, dict):  # the first value in the data of each class
        first_values = {name: str(value) for value, name in reversed(task.labels.items())}
        forms = [first_values[name] for name in forms]
    elif all(isinstance(label, int) for label in task.labels):
        forms = task.labels
    made |= {str(columns.label): [forms[int(value)] for value in values], PSEUDO: pseudo, "confidence": certainty}
    return pa.table({**made, ROW: rows})
