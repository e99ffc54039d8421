"""`paratune evaluate` and `paratune predict`: a trained model applied to a file."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.base.imports import without_collections
from paratune.base.text import plain
from paratune.base.units import format_number, format_share
from paratune.commands.confusion import confusion_view
from paratune.commands.slices import check_by, evaluated_slices, run_slices_command, show_slices
from paratune.commands.threads import respect_quota
from paratune.console import Display, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, DataError, coded, option_error, os_error_as
from paratune.records import write_json
from paratune.records.predictions import SUFFIXES, write_table

log = logging.getLogger(__name__)

DOCUMENT_SUFFIX = ".json"
"""Of a file in the layout of a task's own, such as SQuAD's object of answers by id."""
DEFAULT_BATCH_SIZE = 32
"""Of `evaluate` with a file."""
ROW = "row"
"""Column that numbers the rows of a file that has no column for it."""


def evaluate_command(
    target: str,
    data: str | None,
    *,
    named: dict[str, str | None],
    batch_size: int | None,
    device: str,
    as_json: bool,
    by: Sequence[str] = (),
) -> int:
    """Print the metrics of a model on a labelled file, or by slice of the rows that a run kept; return the exit code.

    Args:
        target: A run, a model folder or a hub name.
        data: The file; None for the predictions of a finished run.
        named: Columns from the command line.
        batch_size: As `evaluate.batch_size`; None for 32.
        device: auto, cpu or cuda.
        as_json: Whether to print JSON.
        by: Columns, `label` or `length`, by which the scores are also shown.
    """
    set_up_logging(speaks=True)
    respect_quota()
    size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    check_batch_size(size)
    by = list(dict.fromkeys(by))
    if data is None:
        if not by:
            raise ConfigError(
                f"--data is missing; for example: paratune evaluate {target} --data reviews.csv (of a finished run "
                "--by COLUMN is enough)",
                code="cli.argument_missing",
                option="--data",
                target=target,
            )
        _refuse_without_data(batch_size, device, named, by)
        return run_slices_command(target, by, named=named, device=device, as_json=as_json)
    with stdout_for_results():
        with without_collections():
            from paratune.data.read import read_table
            from paratune.data.slices import slice_values
            from paratune.data.sources import is_pseudo, refuse_pseudo
            from paratune.infer.trained import Named, load_trained

        table = read_table(data)
        trained = load_trained(target, Named(**named), device)
    check_by(by, trained.task.kind, target)
    split = trained.read(data, table, require_labels=True)
    refuse_pseudo(split.samples.marked(is_pseudo(table)[split.samples.rows]), "--data", data)
    values = slice_values(split, by)
    _warn_of_unknown_tokens(split)
    evaluation = apply(trained, split, size)
    num_trained_on = trained.num_trained_on(split)
    if num_trained_on:
        log.warning(
            "%d of %d rows of %s (%s) have a text that this model was trained on; its scores look better than they are",
            num_trained_on,
            split.num_rows,
            data,
            format_share(num_trained_on / split.num_rows),
            extra=coded("data.trained_on", num_rows=num_trained_on),
        )
    scores = {**trained.recipe.scores(split, evaluation.outputs), "loss": evaluation.loss}
    result: dict[str, Any] = {
        "model": target,
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
    if as_json:
        print_json(result)
    else:
        _show(result)
        if by:
            show_slices(trained.task.kind, result["slices"])
    return EXIT_OK


def _refuse_without_data(
    batch_size: int | None, device: str, named: Mapping[str, str | None], by: Sequence[str]
) -> None:
    """Refuse options of a forward pass where kept predictions are read; only `length` reads the rows with the model."""
    given = {"--batch-size": batch_size is not None}
    if "length" not in by:
        given |= {"--device": device != "auto"} | {
            f"--{name.replace('_', '-')}": column is not None for name, column in named.items()
        }
    for option in (option for option, is_given in given.items() if is_given):
        raise ConfigError(
            f"{option} has no effect without --data, where the predictions that the run kept are read; leave it out, "
            "or name a file with --data",
            code="cli.no_effect",
            option=option,
        )


def predict_command(
    target: str,
    source: str,
    output: Path,
    *,
    named: dict[str, str | None],
    batch_size: int,
    device: str,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write the rows of a file with predictions beside them; return the exit code."""
    check_batch_size(batch_size)
    check_output(output, overwrite, document=True)
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        with without_collections():
            from paratune.data.labels import first_rows
            from paratune.data.read import read_table
            from paratune.infer.trained import Named, load_trained

        table = read_table(source)
        trained = load_trained(target, Named(**named), device)
    split = trained.read(source, table, require_labels=False)
    # Only now: of a model from elsewhere the data says whether questions may lack an answer.
    taken = sorted(set(trained.recipe.prediction_names()) & set(table.column_names))
    if taken:
        raise DataError(
            f"{source} has a column {', '.join(taken)}, which the predictions need; rename it",
            code="data.column_taken",
            source=source,
            taken=taken,
        )
    is_document = output.suffix == DOCUMENT_SUFFIX
    if is_document and (reason := trained.recipe.why_no_document(split)):
        raise option_error("--output", output, f"{reason}; write {', '.join(SUFFIXES)}", code="output.format")
    _warn_of_unknown_tokens(split)
    evaluation = apply(trained, split, batch_size)
    if is_document:
        write_json(output, trained.recipe.document(split, evaluation.outputs))
    else:
        write_table(output, _with_predictions(table, trained, split, evaluation))
    without = np.setdiff1d(np.arange(table.num_rows), split.samples.rows).tolist()
    # What rows may lack besides a text: a mask to fill in.
    lacking = " or ".join(sorted({"text", *split.num_dropped}, reverse=True))
    result = {
        "output": str(output),
        "num_rows": table.num_rows,
        "num_predicted": split.num_rows,
        "share_unknown_tokens": split.store.share_unknown,
        "rows_without_prediction": without,
    }
    if as_json:
        print_json(result)
        return EXIT_OK
    print(plain(f"{split.num_rows} of {table.num_rows} rows predicted: {output}"))  # noqa: T201
    if without:
        print(f"{len(without)} without a {lacking} and without a prediction: {first_rows(without)}")  # noqa: T201
    return EXIT_OK


def _with_predictions(table: pa.Table, trained: Any, split: Any, evaluation: Any) -> pa.Table:
    """Return the table with what was predicted beside it, null in rows that were left out."""
    if not {trained.columns.id, ROW} & set(table.column_names):  # else the file names its rows itself
        table = table.add_column(0, ROW, pa.array(range(table.num_rows)))
    columns = trained.recipe.prediction_columns(split, evaluation.outputs, trained.tokenizer)
    for name, values in columns.items():
        table = table.append_column(name, _at_rows(values, split.samples.rows, table.num_rows))
    return table


def _warn_of_unknown_tokens(split: Any) -> None:
    from paratune.data.load import unknown_warnings

    for warning in unknown_warnings({split.source: split}):
        log.warning("%s", warning, extra=coded("data.unknown_tokens_many"))


def check_batch_size(batch_size: int) -> None:
    """Refuse a size that holds no sample.

    Raises:
        ConfigError: It is below 1.
    """
    if batch_size < 1:
        raise option_error("--batch-size", batch_size, "at least 1", code="cli.out_of_range")


def check_output(output: Path, overwrite: bool, *, document: bool = False) -> None:
    """Refuse a file that could not be written once all is computed; `document` allows the answers to questions.

    Raises:
        ConfigError: It could not.
    """
    if output.suffix not in (*SUFFIXES, *([DOCUMENT_SUFFIX] if document else [])):
        also = f", or {DOCUMENT_SUFFIX} for the answers of question answering" if document else ""
        raise option_error(
            "--output", output, f"its suffix must be one of {', '.join(SUFFIXES)}{also}", code="output.format"
        )
    if output.is_dir():
        raise option_error("--output", output, "it is a folder; name a file in it", code="output.not_a_file")
    if output.exists() and not overwrite:
        raise ConfigError(
            f"{output} exists; choose another --output, or use --overwrite", code="output.exists", path=output
        )
    if not output.parent.is_dir():
        raise option_error(
            "--output", output, f"{output.parent} is not a folder; make it first", code="output.no_folder"
        )
    with os_error_as(
        ConfigError,
        f"--output {output} cannot be written",
        "choose another folder",
        code="output.not_writable",
        option="--output",
        value=output,
    ):
        # Asking for permission is not enough: it is granted to root on a disk that is read-only or full.
        tempfile.TemporaryFile(dir=output.parent).close()


def apply(trained: Any, split: Any, batch_size: int) -> Any:
    """Return what a model says of a split, with a bar."""
    with Display(speaks=True).bar("predict", 1) as bar:
        return trained.apply(split, batch_size, lambda done, total: bar.update(done, total=total))


def _at_rows(values: Any, rows: np.ndarray[Any, Any], num_rows: int) -> pa.Array:
    """Place values at their rows; rows that were left out because something was missing are null."""
    placed: list[Any] = [None] * num_rows
    for row, value in zip(rows.tolist(), pa.array(values).to_pylist(), strict=True):
        placed[row] = value
    return pa.array(placed)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("samples", format_number(result["num_samples"]))
    for lacking, count in result["num_dropped"].items():
        table.add_row("left out", f"{format_number(count)} without {lacking}")
    for name, value in result.get("windows", {}).items():
        table.add_row(name.removeprefix("num_").replace("_", " "), format_number(value))
    labels = result.get("labels", ())
    for name, value in result["scores"].items():
        if name != "f1" or len(labels) <= 2:  # of more classes it is f1_macro
            table.add_row(name, format_number(value))
    for name, value in result.get("answers", {}).items():
        table.add_row(name, format_number(value))
    print_result(table)
    if "confusion" in result:
        print_result(confusion_view(labels, result["confusion"], Console().width))
