"""Scores by slice for `paratune evaluate --by`: of an evaluation, or of the predictions that a finished run kept."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.base.units import format_number
from paratune.console import print_json, print_result, stdout_for_results
from paratune.errors import EXIT_OK, CheckpointError, ConfigError
from paratune.records import RUN_FILE, SUMMARY_FILE, predictions_file, read_json, read_run
from paratune.records.slices import BUILT_IN, LABEL, LENGTH, notes, score_text, shown_metrics
from paratune.report.text import shorten_all

_VALUE_WIDTH = 30


def check_by(by: Sequence[str], kind: str, target: str) -> None:
    """Refuse slices of a task whose rows have no scores.

    Raises:
        ConfigError: The task is a masked LM.
    """
    if by and kind == "mlm":
        raise ConfigError(
            f"--by {', '.join(by)} has no effect on {target}: the scores of a masked LM are of windows and not of rows",
            code="cli.no_effect",
            option="--by",
            target=target,
        )


def evaluated_slices(
    trained: Any, split: Any, outputs: Any, by: Sequence[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the scores of an evaluation by slice, as records hold them.

    Args:
        trained: The model.
        split: What was evaluated.
        outputs: Of the model.
        by: Columns, `label` or `length`.
        values: What `paratune.data.slices.slice_values` gave for them.

    Raises:
        CheckpointError: The predictions cannot be used.
    """
    from paratune.verdicts.rows import CannotTell
    from paratune.verdicts.slices import ScoredTask, slice_records

    recipe = trained.recipe
    with tempfile.TemporaryDirectory() as folder:
        recipe.write_predictions(Path(folder), split, outputs, trained.tokenizer)
        task = ScoredTask(split.source, Path(folder), trained.task.kind, recipe.names, recipe.task.model_dump())
        try:
            return slice_records(task, split.name, by, values)
        except CannotTell as error:
            raise _cannot(split.source, error) from error


def run_slices_command(
    target: str, by: Sequence[str], *, named: Mapping[str, str | None], device: str, as_json: bool
) -> int:
    """Print the scores by slice of a finished run, from the predictions that it kept; return the exit code.

    Raises:
        CheckpointError: It is no finished run, or has no predictions.
        ConfigError: The task's rows have no scores.
        DataError: A file cannot be read, or a column is absent or has too many values.
    """
    with stdout_for_results():
        kind, found = _kept_slices(target, by, named, device)
    if as_json:
        print_json({"model": target, "slices": found})
        return EXIT_OK
    for split, columns in found.items():
        show_slices(kind, columns, split=split)
    return EXIT_OK


def _kept_slices(
    target: str, by: Sequence[str], named: Mapping[str, str | None], device: str
) -> tuple[str, dict[str, Any]]:
    """Return the kind of a run's task, and its scores by set, column and slice."""
    from paratune.verdicts.rows import CannotTell
    from paratune.verdicts.slices import ScoredTask, slice_records

    folder = Path(target)
    run, splits = _record_of(folder)
    task = run["task"]
    check_by(by, task["kind"], target)
    scored = ScoredTask(folder.name, folder, task["kind"], task.get("labels") or [], run["config"]["task"])
    found = {}
    for split in splits:
        values = _kept_values(folder, run, split, by, named, device)
        try:
            found[split] = slice_records(scored, split, by, values)
        except CannotTell as error:
            raise _cannot(target, error) from error
    return task["kind"], found


def _record_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the record of a run, and the splits that it has scores and predictions of."""
    if not (folder / RUN_FILE).is_file():
        raise CheckpointError(
            f"{folder} is not a run, and --data names no file to evaluate it on; add --data FILE",
            code="run.not_a_run",
            target=str(folder),
        )
    if not (folder / SUMMARY_FILE).is_file():
        raise CheckpointError(
            f"{folder} is not finished; continue it with --resume, or add --data FILE",
            code="run.not_finished",
            target=str(folder),
        )
    scores = read_json(folder / SUMMARY_FILE).get("scores") or {}
    splits = [split for split in scores if (folder / predictions_file(split)).is_file()]
    if not splits:
        raise CheckpointError(
            f"{folder} has no predictions of a scored set; add --data FILE",
            code="run.no_predictions",
            target=str(folder),
        )
    return read_run(folder), splits


def _kept_values(
    folder: Path, run: Mapping[str, Any], split: str, by: Sequence[str], named: Mapping[str, str | None], device: str
) -> dict[str, Any]:
    """Return the value of each row of a prediction file by name, from the files that the run had read."""
    from pyarrow import parquet

    from paratune.data.read import read_table
    from paratune.data.slices import column_texts, num_tokens, refuse_many
    from paratune.infer.trained import Named, load_trained

    names = [name for name in by if name != LABEL]
    if not names:
        return {}
    data = run["config"]["data"]
    option = (data.get("extra") or {}).get(split) or data.get(split) or data["train"]
    files = [option] if isinstance(option, str) else list(option)
    kept = parquet.read_table(folder / predictions_file(split))
    index = kept.column("index").to_numpy()
    file_of = np.asarray(kept.column("source").to_pylist() if len(files) > 1 else files * len(index), dtype=object)
    values = {name: np.empty(len(index), dtype=np.int64 if name == LENGTH else object) for name in names}
    trained = load_trained(str(folder), Named(**named), device) if LENGTH in names else None
    for file in files:
        table = read_table(file, revision=data.get("hub_revision") if file.startswith("hub:") else None)
        places = np.flatnonzero(file_of == file)
        rows = index[places]
        if len(rows) and rows.max() >= table.num_rows:
            raise _changed(file, split)
        for name in names:
            if name == LENGTH:
                whole = trained.read(file, table, require_labels=True)  # type: ignore[union-attr]
                lengths = dict(zip(whole.samples.rows.tolist(), num_tokens(whole).tolist(), strict=True))
                if not set(rows.tolist()) <= lengths.keys():
                    raise _changed(file, split)
                values[name][places] = [lengths[row] for row in rows.tolist()]
            else:
                values[name][places] = column_texts(table, name, rows.tolist(), source=file)
    for name in set(names) - set(BUILT_IN):
        refuse_many(name, values[name], source=" + ".join(files))
    return values


def _changed(file: str, split: str) -> CheckpointError:
    return CheckpointError(
        f"{file} does not have the rows of predictions.{split}.parquet: it has changed since the run; add --data FILE",
        code="run.damaged",
        source=file,
        split=split,
    )


def _cannot(target: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"no scores by slice of {target}: {error}", code="run.damaged", target=target)


def show_slices(kind: str, columns: Mapping[str, list[dict[str, Any]]], *, split: str | None = None) -> None:
    """Print a table of each column's slices, and what to know of them."""
    from rich.table import Table
    from rich.text import Text

    for column, entries in columns.items():
        metrics = shown_metrics(kind, entries)
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column(Text(plain(f"{split}, by {column}" if split else f"by {column}")))
        for name in ("rows", *metrics):
            table.add_column(name, justify="right")
        values = shorten_all([entry["value"] for entry in entries], _VALUE_WIDTH)
        for value, entry in zip(values, entries, strict=True):
            value += f": {entry['detail']}" if entry["detail"] else ""
            texts = [Text(score_text(entry, metric, digits=3)) for metric in metrics]
            table.add_row(Text(plain(value)), format_number(entry["num_rows"]), *texts)
        print_result(Text())
        print_result(table)
    print_result(Text())
    for note in notes(kind, columns):
        print_result(Text(note), is_prose=True)
