"""Scores by slice: of an evaluation, or of the saved predictions of a run."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune.api.split_rows import file_changed, rows_by_file
from paratune.errors import CheckpointError, ConfigError
from paratune.records import RUN_FILE, SUMMARY_FILE, predictions_file, read_json, read_run
from paratune.records.slices import BUILT_IN, LABEL, LENGTH


def check_by(by: Sequence[str], kind: str, target: str) -> None:
    """Raise a `ConfigError` for masked LMs, whose rows have no scores, and for the labels of multiple choice."""
    if "label" in by and kind == "multiple_choice":
        message = (
            f"--by label has no effect on {target}: labels of multiple_choice are places of choices, and no classes"
        )
        raise ConfigError(message, code="cli.no_effect", option="--by", target=target)
    if by and kind == "mlm":
        message = (
            f"--by {', '.join(by)} has no effect on {target}: the scores of a masked LM are of windows and not of rows"
        )
        raise ConfigError(message, code="cli.no_effect", option="--by", target=target)


def evaluated_slices(
    trained: Any, split: Any, outputs: Any, by: Sequence[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the scores of an evaluation by slice, in the format of records.

    Args:
        values: Result of `paratune.data.slices.slice_values` for `by`.

    Raises:
        CheckpointError: The predictions cannot be used.
    """
    from paratune.verdicts.scoring import CannotTell
    from paratune.verdicts.slices import scored_task, slice_records

    recipe = trained.recipe
    with tempfile.TemporaryDirectory() as folder:
        recipe.write_predictions(Path(folder), split, outputs, trained.tokenizer)
        task = scored_task(split.source, Path(folder), trained.task.kind, recipe.names, recipe.task.model_dump())
        try:
            return slice_records(task, split.name, by, values)
        except CannotTell as error:
            raise _cannot(split.source, error) from error


def saved_slices(
    target: str, by: Sequence[str], named: Mapping[str, str | None], device: str
) -> tuple[str, dict[str, Any]]:
    """Return the kind of the task of a run, and its scores by split, column and slice."""
    from paratune.verdicts.scoring import CannotTell
    from paratune.verdicts.slices import scored_task, slice_records

    folder = Path(target)
    run, splits = _record_of(folder)
    try:
        task = run["task"]
        options = {**run["config"]["task"], "grades": run.get("grades")}
        scored = scored_task(folder.name, folder, task["kind"], task.get("labels") or [], options)
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{folder / RUN_FILE} is damaged: it is not the record of a run ({error!r})"
        raise CheckpointError(message, code="run.damaged", path=str(folder / RUN_FILE)) from error
    check_by(by, task["kind"], target)
    slices = {}
    for split in splits:
        values = _saved_values(folder, run, split, by, named, device)
        try:
            slices[split] = slice_records(scored, split, by, values)
        except CannotTell as error:
            raise _cannot(target, error) from error
    return task["kind"], slices


def _record_of(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the record of a run, and its splits with scores and predictions."""
    if not (folder / RUN_FILE).is_file():
        message = f"{folder} is not a run; to evaluate a model on a file, add --data FILE"
        raise CheckpointError(message, code="run.not_a_run", target=str(folder))
    if not (folder / SUMMARY_FILE).is_file():
        message = f"{folder} is not finished; continue it with --resume, or add --data FILE"
        raise CheckpointError(message, code="run.not_finished", target=str(folder))
    scores = read_json(folder / SUMMARY_FILE).get("scores") or {}
    splits = [split for split in scores if (folder / predictions_file(split)).is_file()]
    if not splits:
        message = f"{folder} has no predictions of a scored split; add --data FILE"
        raise CheckpointError(message, code="run.no_predictions", target=str(folder))
    return read_run(folder), splits


def _saved_values(
    folder: Path, run: Mapping[str, Any], split: str, by: Sequence[str], named: Mapping[str, str | None], device: str
) -> dict[str, Any]:
    """Return the values of the columns for each row of a prediction file, from the data files of the run."""
    from pyarrow import parquet

    from paratune.data.slices import column_texts, num_tokens, refuse_many
    from paratune.infer.trained import NamedColumns, load_trained

    names = [name for name in by if name != LABEL]
    if not names:
        return {}
    num_rows = parquet.read_metadata(folder / predictions_file(split)).num_rows
    values = {name: np.empty(num_rows, dtype=np.int64 if name == LENGTH else object) for name in names}
    trained = load_trained(str(folder), NamedColumns(**named), device) if LENGTH in names else None
    files = []
    for part in rows_by_file(folder, run, split):
        file, table, places, rows = part.file, part.table, part.places, part.rows
        files.append(file)
        for name in names:
            if name == LENGTH:
                file_split = trained.read(file, table, require_labels=True)  # type: ignore[union-attr]
                lengths = dict(zip(file_split.samples.rows.tolist(), num_tokens(file_split).tolist(), strict=True))
                if not set(rows.tolist()) <= lengths.keys():
                    raise file_changed(file, split)
                values[name][places] = [lengths[row] for row in rows.tolist()]
            else:
                values[name][places] = column_texts(table, name, rows.tolist(), source=file)
    for name in set(names) - set(BUILT_IN):
        refuse_many(name, values[name], source=" + ".join(files))
    return values


def _cannot(target: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"no scores by slice of {target}: {error}", code="run.damaged", target=target)
