"""Scores by slice: of an evaluation, or of the saved predictions of a run."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paratune.api.split_rows import split_table
from paratune.errors import CheckpointError, ConfigError
from paratune.records import RUN_FILE, SUMMARY_FILE, predictions_file, read_json, read_run
from paratune.records.slices import BUILT_IN, LABEL, LENGTH


def check_by(by: Sequence[str], kind: str, target: str) -> None:
    """Raise a `ConfigError` for masked LMs, whose rows have no scores, and for the labels of multiple choice."""
    reason = None
    if by and kind == "mlm":
        reason = "the scores of a masked LM are of windows and not of rows"
    elif "label" in by and kind == "multiple_choice":
        reason = "labels of multiple_choice are places of choices, and no classes"
    if reason is not None:
        message = f"--by {', '.join(by)} has no effect on {target}: {reason}"
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
    from paratune.verdicts.slices import scored_task, slice_records

    recipe = trained.recipe
    with tempfile.TemporaryDirectory() as folder, _unknown_as_error(split.source):
        recipe.write_predictions(Path(folder), split, outputs, trained.tokenizer)
        task = scored_task(split.source, Path(folder), trained.task.kind, recipe.names, recipe.task.model_dump())
        return slice_records(task, split.name, by, values)


def saved_slices(target: str, by: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the kind of the task of a finished run, and its scores by split, column and slice.

    Raises:
        CheckpointError: The folder is not a finished run, or has no predictions.
        ConfigError: The task's rows have no scores.
        DataError: A file cannot be read, or a column is absent or has too many values.
    """
    from paratune.verdicts.slices import scored_task, slice_records

    folder = Path(target)
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
    run = read_run(folder)
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
        values = _saved_values(folder, split, [name for name in by if name != LABEL])
        with _unknown_as_error(target):
            slices[split] = slice_records(scored, split, by, values)
    return task["kind"], slices


def _saved_values(folder: Path, split: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of columns, and `length`, for each row of a prediction file, from the data files of the run."""
    if not names:
        return {}
    import numpy as np

    from paratune.data.slices import column_texts, num_tokens, refuse_many
    from paratune.infer.trained import NamedColumns, load_trained

    source, table = split_table(folder, split)
    values = {}
    for name in names:
        if name == LENGTH:
            read = load_trained(str(folder), NamedColumns(), "auto").read(source, table, require_labels=True)
            if read.num_rows != table.num_rows:
                message = f"{source} has other rows than at the time of the run; name a file with its rows: --data FILE"
                raise CheckpointError(message, code="run.damaged", source=source, split=split)
            values[name] = num_tokens(read)
        else:
            texts = column_texts(table, name, range(table.num_rows), source=source)
            values[name] = np.asarray(texts, dtype=object)
            if name not in BUILT_IN:
                refuse_many(name, values[name], source=source)
    return values


@contextmanager
def _unknown_as_error(target: str) -> Iterator[None]:
    from paratune.verdicts.scoring import CannotTell

    try:
        yield
    except CannotTell as error:
        message = f"no scores by slice of {target}: {error}"
        raise CheckpointError(message, code="run.damaged", target=target) from error
