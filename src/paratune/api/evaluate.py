"""`paratune.evaluate`: the scores of a model on a labelled file, and by slice, also of the predictions of a run."""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, cast

from paratune.api.apply import apply, check_model, load_model, model_reading, read_source, warn_about_unknown_tokens
from paratune.api.process import process_as_before, set_up_process, several
from paratune.api.run import Run, run_folder
from paratune.api.split_rows import split_table
from paratune.base.units import format_share
from paratune.config.metric_names import has_targets
from paratune.console import stdout_for_results
from paratune.console.notebook import html_table
from paratune.errors import CheckpointError, ConfigError, coded, option_error, require_at_least
from paratune.records import RUN_FILE, SUMMARY_FILE, TRAIN_TEXTS_FILE, predictions_file
from paratune.records.scores import BUILT_IN, LABEL, LENGTH

log = logging.getLogger(__name__)
Model = Run | str | PathLike[str]
"""A run, its folder, a model folder, or a hub name."""
Device = Literal["auto", "cpu", "cuda"]
DEFAULT_BATCH_SIZE = 32


@dataclass(frozen=True)
class EvaluationResult:
    """The result of `paratune.evaluate`.

    >>> result = paratune.evaluate("runs/first", by="label")
    >>> [part["value"] for part in result.slices["validation"]["label"]]
    ['negative', 'positive']
    """

    values: Mapping[str, Any]
    """All values, as `paratune evaluate --json` prints them; of saved predictions only the slices of each split."""
    task: str
    """Kind of the task, such as `classification`."""

    @property
    def scores(self) -> Mapping[str, float | None]:
        """The scores and the loss by name; empty without a file."""
        return cast(Mapping[str, float | None], self.values.get("scores", {}))

    @property
    def slices(self) -> Mapping[str, Any]:
        """The scores of each slice with intervals, by column (of saved predictions: by split and column)."""
        return cast(Mapping[str, Any], self.values.get("slices", {}))

    def _repr_html_(self) -> str:
        """Return a table of the scores, for notebooks."""
        rows = [("samples", self.values.get("num_samples")), *self.scores.items()]
        return html_table(f"{self.values['model']} on {self.values.get('data', 'its own data')}", rows)


@process_as_before()
def evaluate(
    model: Model,
    data: str | PathLike[str] | None = None,
    *,
    by: str | Sequence[str] = (),
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    answer_start: str | None = None,
    labels: Mapping[str, str] | Sequence[str] = (),
    batch_size: int | None = None,
    device: Device = "auto",
    run_code: bool = False,
) -> EvaluationResult:
    """Score MODEL (a run, a model folder or a hub name) on a labelled file.

    A model that paratune saved has the names of its columns; other models need text and label. The scores of slices
    have a number of rows and 95% intervals.

    Args:
        model: A run, its folder, a model folder, or a hub name.
        data: Labelled file, as data.test of a configuration; without it, the scores of the slices of a finished run
            are computed from its saved predictions.
        by: Column, label or length (quartiles of the tokens), by which scores are also computed.
        text: Column of the text.
        text_pair: Column of the second text of a pair.
        label: Column of the label, target or answer.
        answer_start: Column of the character position at which the answer starts.
        labels: VALUE=LABEL, a value of the file that stands for a label of the model, such as spam=LABEL_1; in Python
            also a mapping.
        batch_size: Samples of a forward pass, at least 1; default: 32.
        device: Device; auto is a GPU where there is one.
        run_code: Run code that the model's folder names although you did not train it here: it can do everything that
            you can do.

    Raises:
        ParatuneError: The file, the model or a column is missing or invalid, or an option has no effect.

    >>> paratune.evaluate("runs/first", "reviews.csv").values["num_samples"]
    2
    """
    set_up_process()
    name, source, by = run_folder(model), None if data is None else fspath(data), list(dict.fromkeys(several(by)))
    named = {"text": text, "text_pair": text_pair, "label": label, "answer_start": answer_start}
    if source is None:
        options = {**named, "labels": labels, "batch_size": batch_size is not None, "device": device != "auto"}
        return _saved_slices(name, by, options, run_code=run_code)
    require_at_least("--batch-size", batch_size)
    with stdout_for_results():
        table = read_source(source, name)
        trained = load_model(name, device, run_code=run_code, **named).with_labels(_by_value(labels))
        import numpy as np

        from paratune.data.duplicates import read_text_hashes, text_hashes
        from paratune.data.load import mark_pseudo, refuse_pseudo
        from paratune.data.slices import slice_values
        from paratune.tasks.own_metrics import own_scores
    is_several = has_targets(trained.columns.label, getattr(trained.task, "raters", None))
    _check_by(by, trained.task.kind, name, is_several=is_several)
    split = trained.read(source, table, require_labels=True)
    refuse_pseudo(mark_pseudo(split.samples, table), "--data", source)
    values = slice_values(split, by, model_reading(name))
    warn_about_unknown_tokens(split)
    evaluation = apply(trained, split, DEFAULT_BATCH_SIZE if batch_size is None else batch_size)
    seen = None if trained.run is None else read_text_hashes(trained.run / TRAIN_TEXTS_FILE)
    num_trained_on = None if seen is None else int(np.isin(text_hashes(split.samples), seen).sum())
    if num_trained_on:
        share = format_share(num_trained_on / split.num_rows)
        rows = f"{num_trained_on} of {split.num_rows} rows of {source} ({share})"
        message = "%s have a text of the training set; the scores are too high"
        log.warning(message, rows, extra=coded("data.trained_on", num_rows=num_trained_on))
    own = own_scores(trained.metrics, trained.recipe, split, evaluation.outputs)
    # Scores of pairs on the scale of the scored file itself: the loss of a row would depend on the other rows.
    is_scaled_by_file = trained.task.kind == "embedding" and trained.recipe.task != trained.task
    loss = None if is_scaled_by_file else evaluation.loss
    scores = {**trained.recipe.scores(split, evaluation.outputs), **own, "loss": loss}
    result: dict[str, Any] = {
        "model": name,
        "data": source,
        "num_samples": split.num_rows,
        "num_dropped": split.num_dropped,
        "num_trained_on": num_trained_on,
        "share_unknown_tokens": split.store.share_unknown,
        "scores": scores,
    }
    if trained.names:
        result["labels"] = trained.names
    result |= trained.recipe.details(split, evaluation.outputs)
    if by:
        from paratune.verdicts.slices import scored_task, slice_records

        recipe = trained.recipe
        with tempfile.TemporaryDirectory() as folder, _unknown_as_error(source):
            recipe.write_predictions(Path(folder), split, evaluation.outputs, trained.tokenizer)
            task = scored_task(source, Path(folder), trained.task.kind, recipe.names, recipe.task.model_dump())
            result["slices"] = slice_records(task, split.name, by, values)
    return EvaluationResult(result, trained.task.kind)


def _by_value(labels: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
    """Return labels by value, from texts VALUE=LABEL."""
    if isinstance(labels, Mapping):
        return labels
    by_value: dict[str, str] = {}
    for text in several(labels or ()):
        value, equals, label = text.rpartition("=")
        if not equals or not label:
            raise option_error("--labels", text, "write VALUE=LABEL, such as spam=LABEL_1", code="cli.invalid_value")
        if by_value.setdefault(value, label) != label:
            reason = f"{value} already stands for {by_value[value]}; give one label for each value"
            raise option_error("--labels", text, reason, code="cli.conflict")
    return by_value


def _check_by(by: Sequence[str], kind: str, target: str, *, is_several: bool) -> None:
    reason = None
    if by and kind == "regression" and is_several:
        reason = "the model has several targets, whose scores are not of slices"
    if by and kind == "mlm":
        reason = "the scores of a masked LM are of windows and not of rows"
    elif LABEL in by and kind == "multiple_choice":
        reason = "labels of multiple_choice are places of choices, and no classes"
    if reason is not None:
        message = f"--by {', '.join(by)} has no effect on {target}: {reason}"
        raise ConfigError(message, code="cli.no_effect", option="--by", target=target)


def _saved_slices(target: str, by: Sequence[str], options: Mapping[str, Any], *, run_code: bool) -> EvaluationResult:
    """Return the scores of a finished run by split, column and slice; `options` have no effect on saved predictions."""
    if not by:
        message = f"--data is missing; for example: paratune evaluate {target} --data reviews.csv (of a finished run "
        message += "--by COLUMN is enough)"
        raise ConfigError(message, code="cli.required", option="--data", target=target)
    if unused := [f"--{option.replace('_', '-')}" for option, value in options.items() if value]:
        message = f"{unused[0]} has no effect without --data, which reads the saved predictions of the run; leave it "
        message += "out, or name a file with --data"
        raise ConfigError(message, code="cli.no_effect", option=unused[0])
    check_model(target, run_code=run_code)
    with stdout_for_results():
        from paratune.records.finished import read_record
        from paratune.verdicts.slices import slice_records

    folder = Path(target)
    if not (folder / RUN_FILE).is_file():
        message = f"{folder} is not a run; to evaluate a model on a file, add --data FILE"
        raise CheckpointError(message, code="run.not_found", target=str(folder))
    if not (folder / SUMMARY_FILE).is_file():
        message = f"{folder} is not finished; continue it with --resume, or add --data FILE"
        raise CheckpointError(message, code="run.not_finished", target=str(folder))
    run = read_record(folder, folder.name)
    splits = [split for split in run.summary.scores if (folder / predictions_file(split)).is_file()]
    if not splits:
        message = f"{folder} has no predictions of a scored split; add --data FILE"
        raise CheckpointError(message, code="run.no_predictions", target=str(folder))
    is_several = has_targets(run.setting("data.columns.label"), run.setting("task.raters"))
    _check_by(by, run.task, target, is_several=is_several)
    slices = {}
    for split in splits:
        with stdout_for_results(), _unknown_as_error(target):
            values = _saved_values(folder, split, [name for name in by if name != LABEL])
            slices[split] = slice_records(run, split, by, values)
    return EvaluationResult({"model": target, "slices": slices}, run.task)


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
