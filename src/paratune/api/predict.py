"""`paratune.predict`: the rows of a file with the predictions of a model."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from paratune.api.apply import apply, load_model, model_folder, read_source, warn_about_unknown_tokens
from paratune.api.evaluate import Device, Model
from paratune.api.process import process_as_before, set_up_process
from paratune.api.run import run_folder
from paratune.base.text import plain
from paratune.console import stdout_for_results
from paratune.errors import DataError, require_at_least
from paratune.records.own import read_task_file

if TYPE_CHECKING:
    import pyarrow

ROW = "row"
"""Column of row numbers, for a file without a column of ids."""
TEXTS = "texts"
"""Name in messages of rows that were given as texts or as a table."""


@process_as_before()
def predict(
    model: Model,
    data: "str | PathLike[str] | Sequence[str] | pyarrow.Table",
    *,
    text: str | None = None,
    text_pair: str | None = None,
    batch_size: int = 32,
    device: Device = "auto",
    run_code: bool = False,
) -> "pyarrow.Table":
    """Return rows with the predictions of a model.

    Args:
        model: A run, its folder, a model folder, or a hub name.
        data: A file, an Arrow table, or a list of texts for a model with one text per row.
        text: Column of the text; needed for models that another program saved.
        text_pair: Column of the second text of a pair.
        batch_size: Samples of a forward pass, at least 1.
        device: auto, cpu or cuda.
        run_code: As for `paratune.evaluate`.

    Returns:
        All columns and rows, with the columns of the predictions: `prediction`, and `score_<class id>` for classes.
        They are null in rows without a text. `to_pandas()` makes a DataFrame of it.

    Raises:
        ParatuneError: The data, the model or a column is missing or invalid.

    >>> paratune.predict("runs/first", ["A wonderful film."]).column_names
    ['row', 'sentence', 'prediction', 'score_negative', 'score_positive']
    """
    named = {"text": text, "text_pair": text_pair}
    rows, trained, split = read_rows(run_folder(model), data, named, batch_size, device, run_code=run_code)
    return predicted_table(rows, trained, split, apply(trained, split, batch_size).outputs)


def read_rows(
    model: str, data: "str | PathLike[str] | Sequence[str] | pyarrow.Table", named: Mapping[str, str | None],
    batch_size: int, device: str, *, pairs: "Sequence[str]" = (), run_code: bool = False,
) -> tuple["pyarrow.Table", Any, Any]:  # fmt: skip
    """Return rows, the model, and its split with the rows that have a text; set up the log of this process.

    `named` are columns of the file, for models that do not record them; `pairs` the second texts of a list of texts.

    Raises:
        DataError: A column has the name of a column of the predictions, or there are not as many second texts as texts.
    """
    import pyarrow as pa

    from paratune.config.sections import named_columns

    require_at_least("--batch-size", batch_size)
    set_up_process()
    source = fspath(data) if isinstance(data, str | PathLike) else TEXTS
    if source == TEXTS and not isinstance(data, pa.Table) and not read_task_file(model_folder(model)).get("columns"):
        named = {"text": "text", "text_pair": "text_pair" if pairs else None} | {k: v for k, v in named.items() if v}
    with stdout_for_results():
        table = read_source(source, model) if isinstance(data, str | PathLike) else data
        trained = load_model(model, device, run_code=run_code, **named)
    if not isinstance(table, pa.Table):
        if trained.task.kind == "multiple_choice":
            message = f"{model} selects among choices, which texts do not have; name a file or a table with them"
            raise DataError(message, code="data.column_missing", source=source)
        # Where the model reads several columns, `read` names those that a list of texts lacks.
        first = next(iter(named_columns(trained.columns.text)), "text")
        table = text_table(table, first)
        second = next(iter(named_columns(trained.columns.text_pair)), None)
        needs_pairs = second is not None and trained.task.kind != "embedding"  # which has vectors of single texts
        if (len(pairs) != table.num_rows and (pairs or needs_pairs)) or (pairs and second is None):
            wanted = "single texts"
            if second is not None:
                wanted = f"pairs: give one for each text, or a file or a table with {second}"
            message = f"{len(pairs)} second texts (--text-pair) for {table.num_rows} texts, and {model} reads {wanted}"
            raise DataError(message, code="data.column_missing", option="--text-pair")
        if pairs and second is not None:
            table = table.append_column(second, pa.array(pairs, pa.string()))
    # Tokens of typed texts are not worth caching, and stay off the disk.
    split = trained.read(source, table, require_labels=False, is_cached=source != TEXTS)
    # Only now: for a model of another program, the data decides whether questions may have no answer.
    clashing = sorted(set(trained.recipe.prediction_names()) & set(table.column_names))
    if clashing:
        message = f"{source} has a column {', '.join(clashing)}, which the predictions need; rename it"
        raise DataError(message, code="data.column_twice", source=source, columns=clashing)
    warn_about_unknown_tokens(split)
    return table, trained, split


def predicted_table(rows: "pyarrow.Table", trained: Any, split: Any, outputs: Any) -> "pyarrow.Table":
    """Return all rows with the columns of the predictions, null in rows without a prediction."""
    import pyarrow as pa

    if not {trained.columns.id, ROW} & set(rows.column_names):  # else a column of the file identifies its rows
        rows = rows.add_column(0, ROW, pa.array(range(rows.num_rows)))
    for name, values in trained.recipe.prediction_columns(split, outputs, trained.tokenizer).items():
        rows = rows.append_column(name, _at_rows(values, split.samples.rows, rows.num_rows))
    return rows


def _at_rows(values: Any, rows: Any, num_rows: int) -> "pyarrow.Array":
    """Return an array (num_rows,) with the values at `rows`, and null elsewhere."""
    import numpy as np
    import pyarrow as pa

    # Vectors are an Arrow array: as lists of Python numbers they would need ten times the memory.
    array = values if isinstance(values, pa.Array) else pa.array(values)
    array = array.cast(pa.float64()) if pa.types.is_float32(array.type) else array
    places = np.full(num_rows, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    return array.take(pa.array(places, mask=places < 0))


def text_table(texts: "Sequence[str]", column: str) -> "pyarrow.Table":
    """Return texts as a table of one column; None is a row without a text.

    Raises:
        DataError: They are a mapping or a DataFrame, or one of them is not a text.
    """
    import pyarrow as pa

    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterating gives the names of its columns
        kind = type(texts).__name__
        message = f"a {kind} is neither a file, an Arrow table, nor a list of texts; make a table of it: "
        raise DataError(f"{message}pyarrow.table(data)", code="data.wrong_type", found=kind)
    values = texts.to_pylist() if hasattr(texts, "to_pylist") else list(texts)
    for row, value in enumerate(values):
        is_text = isinstance(value, str) and value.encode(errors="replace") == value.encode(errors="ignore")
        if value is not None and not is_text:
            message = f"{TEXTS}: each must be a text, or None (text {row} is {plain(repr(value))[:100]}); for pairs "
            message += "and questions, give an Arrow table"
            raise DataError(message, code="data.wrong_type", row=row)
    return pa.table({column: pa.array(values, pa.string())})
