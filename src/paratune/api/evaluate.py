"""`paratune.evaluate`: the scores of a model on a labelled file."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Literal

from paratune.api.apply import allow_source, apply, load_model, warn_about_unknown_tokens
from paratune.api.arguments import several
from paratune.api.process import process_as_before
from paratune.api.run import Run
from paratune.api.slices import check_by, evaluated_slices
from paratune.api.threads import respect_quota
from paratune.base.units import format_share
from paratune.console import set_up_logging, stdout_for_results
from paratune.console.html import html_table
from paratune.errors import coded, require_at_least

log = logging.getLogger(__name__)
Model = Run | str | PathLike[str]
"""A run, its folder, a model folder, or a hub name."""
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class EvaluationResult:
    """The result of `paratune.evaluate`."""

    values: Mapping[str, Any]
    """All values, as `paratune evaluate --json` prints them."""
    task: str
    """Kind of the task, such as `classification`."""

    @property
    def scores(self) -> Mapping[str, float | None]:
        """The scores and the loss by name."""
        scores: Mapping[str, float | None] = self.values["scores"]
        return scores

    @property
    def slices(self) -> Mapping[str, Any]:
        """The scores of each slice with intervals, by column; empty without `by`."""
        slices: Mapping[str, Any] = self.values.get("slices", {})
        return slices

    def _repr_html_(self) -> str:
        """Return a table of the scores, for notebooks."""
        rows = [("samples", self.values["num_samples"]), *self.scores.items()]
        return html_table(f"{self.values['model']} on {self.values['data']}", rows)


def evaluate(
    model: Model,
    data: str | PathLike[str],
    *,
    by: str | Sequence[str] = (),
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    answer_start: str | None = None,
    labels: Mapping[str, str] | None = None,
    batch_size: int = 32,
    device: Device = "auto",
    run_code: bool = False,
) -> EvaluationResult:
    """Return the scores of a model on a labelled file.

    A model that paratune saved has the names of its columns; other models need `text` and `label`.

    Args:
        model: A run, its folder, a model folder, or a hub name.
        data: A labelled file, as `data.test` of a configuration.
        by: Columns, `label` or `length`, by which scores are also returned.
        text: Column of the text.
        text_pair: Column of the second text of a pair.
        label: Column of the label, target or answer.
        answer_start: Column of the character position at which the answer starts.
        labels: Labels of the model by values of the file that stand for them, such as `{"spam": "LABEL_1"}`.
        batch_size: Samples of a forward pass, at least 1.
        device: auto, cpu or cuda.
        run_code: Run code that the model's folder names although you did not train it here: it can do everything that
            you can do.

    Raises:
        ParatuneError: The file, the model or a column is missing or invalid.
    """
    columns = {"text": text, "text_pair": text_pair, "label": label, "answer_start": answer_start}
    with process_as_before():
        name = model_name(model)
        return evaluate_file(
            name,
            fspath(data),
            columns,
            labels=labels or {},
            by=several(by),
            batch_size=batch_size,
            device=device,
            run_code=run_code,
        )


def model_name(model: Model) -> str:
    """Return the folder or the hub name of a model."""
    return fspath(model.folder) if isinstance(model, Run) else fspath(model)


def evaluate_file(
    model: str,
    data: str,
    named: Mapping[str, str | None],
    *,
    labels: Mapping[str, str],
    by: Sequence[str],
    batch_size: int,
    device: str,
    run_code: bool = False,
) -> EvaluationResult:
    """Return the scores of a model on a labelled file, and set up the log of this process.

    Args:
        named: Columns of the file, for models that do not record them.
        labels: Labels of the model by values of the file.
    """
    from paratune.data.read import read_table

    set_up_logging(speaks=True)
    respect_quota()
    require_at_least("--batch-size", batch_size)
    by = list(dict.fromkeys(by))
    with stdout_for_results():
        allow_source(data)
        table = read_table(data)
        trained = load_model(model, device, run_code=run_code, **named).with_labels(labels)
        from paratune.data.slices import slice_values
        from paratune.data.sources import mark_pseudo, refuse_pseudo
        from paratune.tasks.own_metrics import own_scores
    check_by(by, trained.task.kind, model)
    split = trained.read(data, table, require_labels=True)
    refuse_pseudo(mark_pseudo(split.samples, table), "--data", data)
    values = slice_values(split, by)
    warn_about_unknown_tokens(split)
    evaluation = apply(trained, split, batch_size)
    num_trained_on = trained.num_trained_on(split)
    if num_trained_on:
        log.warning(
            "%d of %d rows of %s (%s) have a text of the training set; the scores are too high",
            num_trained_on,
            split.num_rows,
            data,
            format_share(num_trained_on / split.num_rows),
            extra=coded("data.trained_on", num_rows=num_trained_on),
        )
    own = own_scores(trained.metrics, trained.recipe, split, evaluation.outputs)
    # Scores of pairs on the scale of the scored file itself: the loss of a row would depend on the other rows.
    is_scaled_by_file = trained.task.kind == "embedding" and trained.recipe.task != trained.task
    loss = None if is_scaled_by_file else evaluation.loss
    scores = {**trained.recipe.scores(split, evaluation.outputs), **own, "loss": loss}
    result: dict[str, Any] = {
        "model": model,
        "data": data,
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
        result["slices"] = evaluated_slices(trained, split, evaluation.outputs, by, values)
    return EvaluationResult(result, trained.task.kind)
