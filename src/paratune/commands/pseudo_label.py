"""`paratune pseudo-label`: labels for texts that have none, by one or several models, and a record of how."""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import hardware, records
from paratune.commands.infer import apply, check_batch_size, check_output
from paratune.commands.threads import respect_quota
from paratune.config.sections import ClassificationTask, Columns, RegressionTask, Task, class_names
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.data.sources import PSEUDO
from paratune.errors import EXIT_OK, ConfigError, DataError
from paratune.predictions import write_table
from paratune.text import plain
from paratune.units import format_number

log = logging.getLogger(__name__)
ROW = "source_row"
OUTPUT = (PSEUDO, ROW, "confidence", "spread", "prediction")
"""Columns that the output has beside those of a training."""
KINDS = ("classification", "regression")


@dataclass(frozen=True)
class Voice:
    """What one of the models is, and what it said."""

    target: str
    task: Task
    columns: Columns
    group_by: str | None
    """Column that the run kept together when it cut its parts."""
    samples: Any
    """`paratune.data.columns.Samples` of the input: rows with a text."""
    outputs: np.ndarray[Any, Any]
    """(rows with a text, C) or (rows with a text, 1)."""
    seen: Mapping[str, Any]
    """`paratune.infer.seen.Seen` by split."""
    facts: Mapping[str, Any]
    """For the record."""


def pseudo_label_command(
    targets: Sequence[str],
    source: str,
    output: Path,
    *,
    threshold: float,
    max_per_class: int | None,
    limit: int | None,
    named: dict[str, str | None],
    batch_size: int,
    device: str,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write the rows that models are certain of, labelled, and the record beside it; return the exit code."""
    record_path = output.with_name(f"{output.name}.record.json")
    check_batch_size(batch_size)
    check_output(output, overwrite)
    if record_path.exists() and not overwrite:
        raise ConfigError(f"{record_path} exists; choose another --output, or say --overwrite")
    _check_options(targets, threshold, max_per_class, limit)
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        from paratune.data.read import read_table
        from paratune.infer.pseudo import Rule, class_opinion, decide, number_opinion

        table = read_table(source)
    voices = _ask(targets, source, table, named, batch_size, device)
    task = voices[0].task
    _check_rule(task, voices, threshold, max_per_class)
    outputs = [voice.outputs for voice in voices]
    opinion = class_opinion(outputs) if isinstance(task, ClassificationTask) else number_opinion(outputs)
    refused = _refused(voices)
    fates = decide(opinion, refused, Rule(threshold, max_per_class, limit))
    kept = np.array([number for number, fate in enumerate(fates) if fate == "kept"], dtype=np.int64)
    if len(kept) == 0:
        raise DataError(_nothing_kept(source, opinion, fates, threshold))
    made = _table(table, voices, opinion, kept)
    counts = Counter(fates) + Counter({"without_text": table.num_rows - len(fates)})
    record = _record(source, output, table, voices, opinion, fates, counts, Rule(threshold, max_per_class, limit))
    write_table(output, made)
    record["output"]["sha256"] = _sha256(output)
    records.write_json(record_path, record)
    if as_json:
        print_json(record)
    else:
        _show(record, output, record_path)
    return EXIT_OK


def _check_options(targets: Sequence[str], threshold: float, max_per_class: int | None, limit: int | None) -> None:
    if not targets:
        raise ConfigError("paratune pseudo-label needs at least one run or model, such as runs/NAME")
    twice = [target for target, count in Counter(str(Path(each).resolve()) for each in targets).items() if count > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice; a model agrees with itself")
    if not threshold > 0:
        raise ConfigError(f"--threshold {threshold:g}: above 0")
    for name, value in (("--max-per-class", max_per_class), ("--limit", limit)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value}: at least 1")


def _ask(
    targets: Sequence[str], source: str, table: pa.Table, named: dict[str, str | None], batch_size: int, device: str
) -> list[Voice]:
    """Return what each model says, one after the other, so that only one is in memory.

    Raises:
        ConfigError: A model's task is of another kind or has other classes or columns than the first one's.
    """
    from paratune.infer.seen import seen_texts
    from paratune.infer.trained import Named, load_trained

    voices: list[Voice] = []
    for target in targets:
        with stdout_for_results():
            trained = load_trained(target, Named(**named), device)
        _check_kind(target, trained.task, num_models=len(targets))
        if voices:
            _check_alike(voices[0], target, trained.task, trained.columns)
        elif trained.columns.label in table.column_names:
            log.warning("%s has the column %s; its values are not looked at", source, trained.columns.label)
        group_by = _group_by(trained.run)
        _check_columns(source, table, trained.columns, group_by)
        split = trained.read(source, table, require_labels=False)
        evaluation = apply(trained, split, batch_size)
        seen = seen_texts(trained.run)
        for name, each in seen.items():
            if each.unknown:
                log.warning("%s: texts of its %s set may be in the output: %s", target, name, each.unknown)
        facts = _model_facts(target, trained)
        voices.append(
            Voice(target, trained.task, trained.columns, group_by, split.samples, evaluation.outputs, seen, facts)
        )
    return voices


def _check_kind(target: str, task: Task, *, num_models: int) -> None:
    if task.kind not in KINDS:
        raise ConfigError(
            f"{target} has the task {task.kind}; pseudo-labels are for {' and '.join(KINDS)}, where one confidence (or "
            "one spread) says how certain the whole answer is"
        )
    if isinstance(task, RegressionTask) and num_models < 2:
        raise ConfigError(
            f"{target} is one regression model, and a number has no confidence of its own: how certain it is shows in "
            "the spread over several runs; name at least two, such as the same configuration with other seeds"
        )


def _check_alike(first: Voice, target: str, task: Task, columns: Columns) -> None:
    if task.kind != first.task.kind or class_names(task) != class_names(first.task):
        raise ConfigError(
            f"{target} ({_task_text(task)}) and {first.target} ({_task_text(first.task)}) do not answer the same "
            "question; name runs of one task"
        )
    for key in ("text", "text_pair", "separator"):
        own, wanted = getattr(columns, key), getattr(first.columns, key)
        if own != wanted:
            raise ConfigError(f"data.columns.{key} is {own!r} in {target} and {wanted!r} in {first.target}")


def _task_text(task: Task) -> str:
    names = class_names(task)
    return f"{task.kind}: {', '.join(names)}" if names else task.kind


def _check_columns(source: str, table: pa.Table, columns: Columns, group_by: str | None) -> None:
    """Refuse columns that the output would write over.

    Raises:
        DataError: One has the name of a column of the output, or holds what becomes the label.
    """
    carried = _carried(table, columns, [group_by])
    taken = [name for name in (*carried, columns.label) if name in OUTPUT]
    if taken:
        raise DataError(
            f"{source}: the output has a column {taken[0]} of its own, and the model's columns name one too (text, "
            "label, id or split.group_by); rename it"
        )
    if columns.label in carried:
        raise DataError(
            f"{source}: the column {columns.label} would be kept (text, id or split.group_by) and is also that of the "
            "label, which the models give; name another with --label"
        )


def _carried(table: pa.Table, columns: Columns, groups: Sequence[str | None]) -> list[str]:
    """Return the columns of the input that the output has too: texts, id, and what is kept together in a cut."""
    names = dict.fromkeys([*_text_columns(columns), columns.id, *groups])
    return [name for name in names if name is not None and name in table.column_names]


def _check_rule(task: Task, voices: Sequence[Voice], threshold: float, max_per_class: int | None) -> None:
    if isinstance(task, ClassificationTask):
        least = 1 / len(class_names(task))
        if not least < threshold <= 1:
            raise ConfigError(
                f"--threshold {threshold:g}: a confidence is above {least:.3g} (one of {len(class_names(task))} "
                "classes) and at most 1"
            )
    elif max_per_class is not None:
        raise ConfigError(
            f"--max-per-class {max_per_class} has no effect in {task.kind}, which has no classes; --limit"
        )


def _refused(voices: Sequence[Voice]) -> list[str | None]:
    """Return the fate of each row that is out whatever the models say of it."""
    from paratune.data.duplicates import text_hashes
    from paratune.infer.pseudo import SEEN, seen_fate

    hashes = text_hashes(voices[0].samples)
    first = np.zeros(len(hashes), dtype=np.bool_)
    first[np.unique(hashes, return_index=True)[1]] = True
    refused: list[str | None] = [None if is_first else "repeated" for is_first in first]
    known = [(seen_fate(name), each.hashes) for voice in voices for name, each in voice.seen.items()]
    # The last word is that of what is looked at first.
    for fate, seen in sorted(known, key=lambda each: SEEN.index(each[0]), reverse=True):
        for row in np.flatnonzero(np.isin(hashes, seen)):
            refused[row] = fate
    return refused


def _table(table: pa.Table, voices: Sequence[Voice], opinion: Any, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Return the output: the columns that a training reads, the label in its own form, and where it is from."""
    from paratune.tasks.answers import scale_of

    voice, columns = voices[0], voices[0].columns
    rows = voice.samples.rows[kept]
    names = _carried(table, columns, [each.group_by for each in voices])
    found = {name: table.column(name).take(pa.array(rows)) for name in names}
    values = opinion.values[kept]
    if isinstance(voice.task, ClassificationTask):
        forms = _label_values(voice.task)
        labels: Any = [forms[int(value)] for value in values]
        extra: dict[str, Any] = {}
    else:
        scale = scale_of(voice.task)
        labels, extra = (scale.reported(values) if scale else values), {"prediction": values}
    return pa.table(
        {
            **found,
            str(columns.label): labels,
            PSEUDO: np.ones(len(kept), dtype=np.bool_),
            "spread" if opinion.is_spread else "confidence": opinion.certainty[kept],
            **extra,
            ROW: rows,
        }
    )


def _label_values(task: ClassificationTask) -> list[Any]:
    """Return for each class the value by which the data says it; the first where several do."""
    if not isinstance(task.labels, dict):
        whole = all(isinstance(label, int) for label in task.labels)
        return list(task.labels) if whole else [str(label) for label in task.labels]
    firsts: dict[str, Any] = {}
    for value, name in task.labels.items():
        firsts.setdefault(name, str(value))
    return [firsts[name] for name in class_names(task)]


def _text_columns(columns: Columns) -> list[str]:
    found: list[str] = []
    for names in (columns.text, columns.text_pair):
        found += [names] if isinstance(names, str) else names or []
    return found


def _nothing_kept(source: str, opinion: Any, fates: Sequence[str], threshold: float) -> str:
    from paratune.infer.pseudo import FATES, asked_of

    why = "; ".join(f"{count} {FATES[fate]}" for fate, count in Counter(fates).most_common())
    asked = opinion.certainty[asked_of(fates) & np.isfinite(opinion.certainty)]
    best = ""
    if len(asked):
        best = (
            f" (smallest spread: {asked.min():.4g})"
            if opinion.is_spread
            else f" (largest confidence: {asked.max():.4g})"
        )
    return f"{source}: no row is kept with --threshold {threshold:g}{best}: {why}; nothing was written"


def _group_by(run: Path | None) -> str | None:
    """Return the column by which a run kept rows together, so that training on both can do so again."""
    if run is None:
        return None
    split = records.read_json(run / records.RUN_FILE)["config"]["data"].get("split") or {}
    found: str | None = split.get("group_by")
    return found


def _model_facts(target: str, trained: Any) -> dict[str, Any]:
    weights = sorted(trained.folder.glob("*.safetensors")) if trained.folder is not None else []
    run = records.read_json(trained.run / records.RUN_FILE) if trained.run is not None else {}
    train = (run.get("data") or {}).get("train") or {}
    return {
        "model": target,
        "run_id": run.get("run_id"),
        "seed": run.get("seed"),
        "weights_sha256": {path.name: _sha256(path) for path in weights} or None,
        "train_fingerprint": train.get("fingerprint"),
    }


def _record(
    source: str,
    output: Path,
    table: pa.Table,
    voices: Sequence[Voice],
    opinion: Any,
    fates: Sequence[str],
    counts: Mapping[str, int],
    rule: Any,
) -> dict[str, Any]:
    from paratune.infer.pseudo import FATES, asked_of, histogram

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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_if_file(source: str) -> str | None:
    path = Path(source).expanduser()
    return _sha256(path) if path.is_file() else None


def _show(record: Mapping[str, Any], output: Path, record_path: Path) -> None:
    from rich.table import Table

    from paratune.infer.pseudo import FATES

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows", format_number(record["input"]["num_rows"]))
    for fate, count in record["num_rows"].items():
        table.add_row(f"  {FATES[fate]}", format_number(count))
    for name, about in record.get("classes", {}).items():
        table.add_row(f"    {plain(name)}", format_number(about["num_kept"]))
    print_result(table)
    print(plain(output))  # noqa: T201
    print(plain(record_path))  # noqa: T201
