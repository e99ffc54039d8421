"""`paratune evaluate` and `paratune predict`: a trained model applied to a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.console import Display, print_result, set_up_logging
from paratune.errors import EXIT_OK, ConfigError, DataError
from paratune.predictions import SUFFIXES, prediction_columns, write_table
from paratune.units import format_number


def evaluate_command(
    target: str, data: str, *, named: dict[str, str | None], batch_size: int, device: str, as_json: bool
) -> int:
    """Print the metrics of a model on a labelled file; return the exit code."""
    set_up_logging(speaks=True)
    from paratune.infer.trained import class_confusion
    from paratune.metrics.scores import scores

    trained, split, evaluation = _apply(target, data, named, batch_size, device, require_labels=True)
    assert evaluation.labels is not None
    values = {**scores(trained.task.kind, evaluation.outputs, evaluation.labels), "loss": evaluation.loss}
    result: dict[str, Any] = {
        "model": target,
        "data": data,
        "num_samples": split.num_rows,
        "num_dropped": split.num_dropped,
        "scores": values,
    }
    if trained.names:
        result["labels"] = trained.names
        result["confusion"] = class_confusion(evaluation, len(trained.names))
    if as_json:
        print(json.dumps(result, ensure_ascii=False))  # noqa: T201
    else:
        _show(result)
    return EXIT_OK


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
    if output.suffix not in SUFFIXES:
        raise ConfigError(f"--output {output}: its suffix must be one of {', '.join(SUFFIXES)}")
    if output.exists() and not overwrite:
        raise DataError(f"{output} exists; choose another --output, or say --overwrite")
    if not output.parent.is_dir():
        raise DataError(f"--output {output} cannot be written: {output.parent} is not a folder; make it first")
    set_up_logging(speaks=True)
    from paratune.data.read import read_table

    table = read_table(source)
    trained, split, evaluation = _apply(target, source, named, batch_size, device, require_labels=False)
    columns = prediction_columns(evaluation.outputs, trained.names, by_name=True)
    taken = sorted(set(columns) & set(table.column_names))
    if taken:
        raise DataError(f"{source} has a column {', '.join(taken)}, which the predictions need; rename it")
    for name, values in columns.items():
        table = table.append_column(name, _at_rows(values, split.samples.rows, table.num_rows))
    write_table(output, table)
    result = {"output": str(output), "num_rows": table.num_rows, "num_predicted": split.num_rows}
    text = f"{split.num_rows} of {table.num_rows} rows predicted: {output}"
    print(json.dumps(result) if as_json else text)  # noqa: T201
    return EXIT_OK


def _apply(
    target: str, source: str, named: dict[str, str | None], batch_size: int, device: str, *, require_labels: bool
) -> tuple[Any, Any, Any]:
    from paratune.data.load import load_split
    from paratune.infer.trained import Named, load_trained

    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size}: at least 1")
    trained = load_trained(target, Named(**named), device)
    split = load_split(
        "data",
        source,
        trained.columns.model_copy(update={"id": None}),  # rows keep their place; ids are for the record of a run
        trained.task,
        tokenizer=trained.tokenizer,
        max_length=trained.max_length,
        need_token_type_ids=trained.takes_token_types,
        missing=trained.missing if require_labels else "drop",
        truncation=trained.truncation,
        require_labels=require_labels,
    )
    with Display(speaks=True).bar("predict", trained.num_batches(split, batch_size)) as bar:
        return trained, split, trained.apply(split, batch_size, bar.update)


def _at_rows(values: Any, rows: np.ndarray[Any, Any], num_rows: int) -> pa.Array:
    """Place values at their rows; rows that were left out because something was missing are null."""
    placed: list[Any] = [None] * num_rows
    for row, value in zip(rows.tolist(), pa.array(values).to_pylist(), strict=True):
        placed[row] = value
    return pa.array(placed)


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("samples", format_number(result["num_samples"]))
    for name, value in result["scores"].items():
        table.add_row(name, format_number(value))
    print_result(table)
    if "confusion" in result:
        confusion = Table(title="rows: true class, columns: predicted", title_justify="left", box=None)
        confusion.add_column("")
        for name in result["labels"]:
            confusion.add_column(Text(name), justify="right")
        for name, row in zip(result["labels"], result["confusion"], strict=True):
            confusion.add_row(Text(name), *(str(count) for count in row))
        print_result(confusion)
