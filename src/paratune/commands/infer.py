"""`paratune evaluate` and `paratune predict`: apply a trained model to a file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from paratune.api.apply import apply
from paratune.api.evaluate import EvaluationResult
from paratune.api.evaluate import evaluate as evaluate_model
from paratune.api.predict import ROW
from paratune.base.text import plain
from paratune.base.units import format_number, format_share
from paratune.commands import EXAMPLES
from paratune.commands.options import All, BatchSize, Device, Json, RunCode, check_output, command
from paratune.console import print_json, print_result, print_screen, print_table, text_table
from paratune.errors import ConfigError, option_error
from paratune.records import write_json
from paratune.records.scores import Confusion, read_confusion

DOCUMENT_SUFFIX = ".json"
"""Suffix of a file in the format of a task, such as the answers by id of SQuAD."""
_SLICE_WIDTH = 30
_GAP = 2
_MIN_NAME_WIDTH = 12
"""Minimum width in characters of a shortened name."""
_MAX_CONFUSIONS = 20
_NUM_ROWS = 5
"""Rows of a file that are printed."""
_MAX_SCORES = 5
"""Most classes whose scores are columns on the terminal."""


def _show_evaluation(evaluation: EvaluationResult, as_json: bool) -> None:
    values = evaluation.values
    if as_json:
        print_json(values)
        return
    if "scores" not in values:  # of saved predictions
        for split, columns in evaluation.slices.items():
            show_slices(evaluation.task, columns, split=split)
        return
    show(values)
    if evaluation.slices:
        show_slices(evaluation.task, evaluation.slices)


evaluate = command(evaluate_model, _show_evaluation)


def show(result: Mapping[str, Any]) -> None:
    labels = result.get("labels", ())
    figures = {name.removeprefix("num_").replace("_", " "): value for name, value in result.get("windows", {}).items()}
    # Of more than two classes f1 is f1_macro.
    figures |= {name: value for name, value in result["scores"].items() if name != "f1" or len(labels) <= 2}
    figures |= result.get("answers", {})
    rows = [("samples", format_number(result["num_samples"]))]
    rows += [("left out", f"{format_number(count)} without {name}") for name, count in result["num_dropped"].items()]
    rows += [(name, format_number(value)) for name, value in figures.items()]
    print_table(("", ""), rows)
    if (confusion := read_confusion(result.get("confusion"))) is not None:
        print_result(confusion_view(labels, confusion, Console().width))


def confusion_view(names: Sequence[str], confusion: Confusion, width: int) -> Group:
    """Return the matrix if it fits into `width` characters, else the most frequent confusions with their shares."""
    classes, shown, rows = range(len(names)), [plain(name) for name in names], list[tuple[Any, ...]]()
    most = len(str(max(confusion.counts.values(), default=0)))
    if max(map(cell_len, shown)) + sum(_GAP + max(cell_len(name), most) for name in shown) <= width:
        rows = [(shown[true], *(confusion.counts.get((true, other), 0) for other in classes)) for true in classes]
        table = text_table(("", *shown), rows, right=[number + 1 for number in classes], gap=_GAP)
        return Group(Text("rows: true class, columns: predicted", style="italic"), table)
    short = [Text(name) for name in shown]
    for name in short:
        name.truncate(max(_MIN_NAME_WIDTH, (width - 24) // 2), overflow="ellipsis")
    for true, predicted, count in confusion.confused[:_MAX_CONFUSIONS]:
        share = format_share(count / confusion.row_sums[true])
        rows.append((short[true], short[predicted], format_number(count), share))
    title = f"{len(rows)} of {len(confusion.confused)} kinds of confusion among {len(names)} classes; --json has all"
    # rich would wrap a title of the table at the width of the table.
    table = text_table(("true class", "predicted", "rows", "share"), rows, right=("rows", "share"), gap=_GAP)
    return Group(Text(title, style="italic"), table)


def show_slices(kind: str, columns: Mapping[str, list[dict[str, Any]]], *, split: str | None = None) -> None:
    """Print a table of each column's slices, and notes on them."""
    from paratune.records.scores import extreme_slices, notes, shown_metrics, slice_score
    from paratune.reports.text import shorten_all

    for column, entries in columns.items():
        metrics, rows = shown_metrics(kind, entries), []
        first = [slice_score(entry, "".join(metrics[:1]))[0] for entry in entries]
        entries = [entries[at] for at in extreme_slices(first, [entry["num_rows"] for entry in entries])]
        values = shorten_all([entry["value"] for entry in entries], _SLICE_WIDTH)
        for value, entry in zip(values, entries, strict=True):
            value += f": {entry['detail']}" if entry["detail"] else ""
            texts = [slice_score(entry, metric, digits=3)[2] for metric in metrics]
            rows.append((value, format_number(entry["num_rows"]), *texts))
        print_result("")
        figures = ("rows", *metrics)
        print_table((f"{split}, by {column}" if split else f"by {column}", *figures), rows, right=figures)
    print_result("")
    for note in notes(kind, columns):
        print_result(note, is_prose=True)


Texts = Annotated[Sequence[str], Parameter(help="text to predict, may be repeated; with --input: its column")]
SecondTexts = Annotated[Sequence[str], Parameter(help="second text of a pair, one for each --text; or its column")]


def predict(
    model: str,
    /,
    *,
    text: Texts = (),
    text_pair: SecondTexts = (),
    input: str | None = None,
    out: Path | None = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: bool = False,
    run_code: RunCode = False,
    all_: All = False,
    json: Json = False,
) -> None:
    """Show the predictions of MODEL for texts, or write the rows of a file with them.

    Args:
        input: file or data set with the texts, such as reviews.csv or demo:sentences
        out: file to write: .csv, .jsonl, .parquet, or .json (answers in the layout of SQuAD); needed with --input
        overwrite: replace an existing output file
    """
    import numpy as np

    from paratune.api.predict import predicted_table, read_rows
    from paratune.data.labels import first_rows
    from paratune.records.predictions import SUFFIXES, write_table

    is_nothing = input is None and not text
    if is_nothing or ((input is not None or overwrite) and out is None):
        lacks = "name texts (--text), or a file (--input)" if is_nothing else "--out is missing"
        message = f"{lacks}; for example: {EXAMPLES['predict']} (paratune predict --help shows all options)"
        raise ConfigError(message, code="cli.required", option="--text" if is_nothing else "--out")
    if input is not None and max(len(text), len(text_pair)) > 1:
        message = "with --input, --text and --text-pair are the names of columns: give each once"
        raise ConfigError(message, code="cli.conflict", options=("--input", "--text"))
    if out is not None:
        check_output(out, overwrite=overwrite, suffixes=(*SUFFIXES, DOCUMENT_SUFFIX))
    is_document = out is not None and out.suffix == DOCUMENT_SUFFIX

    if input is None:
        read = read_rows(model, text, {}, batch_size, device, pairs=text_pair, run_code=run_code)
    else:
        named = {"text": next(iter(text), None), "text_pair": next(iter(text_pair), None)}
        read = read_rows(model, input, named, batch_size, device, run_code=run_code)
    rows, trained, split = read
    num_rows = rows.num_rows
    if is_document and (reason := trained.recipe.document_problem(split)):
        raise option_error("--out", out, f"{reason}; write {', '.join(SUFFIXES)}", code="output.format")
    outputs = apply(trained, split, batch_size).outputs
    if out is None:
        table = predicted_table(rows, trained, split, outputs)
        if json:
            print_json({"predictions": table.to_pylist()})
        else:
            print_screen(_shown_predictions(table, trained), all_=all_)
        return
    table = None if is_document else predicted_table(rows, trained, split, outputs)
    if table is None:
        write_json(out, trained.recipe.document(split, outputs))
    else:
        write_table(out, table)
    without = np.setdiff1d(np.arange(num_rows), split.samples.rows).tolist()
    if json:
        counts = {"num_rows": num_rows, "num_predicted": split.num_rows, "rows_without_prediction": without}
        print_json({"output": str(out), "share_unknown_tokens": split.store.share_unknown, **counts})
        return
    parts: list[Any] = [f"{split.num_rows} of {num_rows} rows predicted: {out}"]
    if without:
        # Rows may also miss a mask to fill in.
        missing = " or ".join(sorted({"text", *split.num_dropped}, reverse=True))
        parts.append(f"{len(without)} without a {missing} and without a prediction: {first_rows(without)}")
    if table is not None:
        parts += _distribution(table)
        parts += ["", _shown_predictions(table if all_ else table.slice(0, _NUM_ROWS), trained)]
        parts += [f"... and {num_rows - _NUM_ROWS} more rows: --all"] * (num_rows > _NUM_ROWS and not all_)
    print_screen(*parts, all_=all_)


def _distribution(table: Any) -> list[str]:
    """Return how often each class is predicted, or the range of predicted numbers; nothing for other predictions."""
    values = table["prediction"].drop_null().to_pylist() if "prediction" in table.column_names else []
    if values and all(isinstance(value, float) for value in values):
        low, mean, high = map(format_number, (min(values), fmean(values), max(values)))
        return [f"predicted: {low} to {high}, mean {mean}"]
    kinds = ("no answer" if value == "" else value for value in values if isinstance(value, str | int))
    counts = Counter(kinds).most_common(_MAX_SCORES + 1)
    shares = (f"{name} {count:,} ({format_share(count / len(values))})" for name, count in counts)
    return [f"predicted: {', '.join(shares)}"] if 0 < len(counts) <= _MAX_SCORES else []


def _shown_predictions(table: Any, trained: Any) -> Table:
    """Return a row for each text: prediction, and scores where there are few classes; --json has all."""
    from paratune.reports.text import shorten

    rows = table.to_pylist()
    names = [name for name in trained.recipe.prediction_names() if name in table.column_names]
    scores = [name for name in names if name.startswith("score_")]
    shown = {name: name for name in names if name not in scores}
    shown |= {name: name.removeprefix("score_") for name in scores} if len(scores) <= _MAX_SCORES else {}

    def text(value: Any) -> str:
        if isinstance(value, list):
            return " ".join(map(text, value))
        return "n/a" if value is None else format_number(value) if isinstance(value, float) else str(value)

    texts = [name for name in table.column_names if name not in (*names, ROW)]
    lines = [[shorten(text(row[name]), 40) for name in (*texts, *shown)] for row in rows]
    return text_table((*texts, *shown.values()), lines, right=[*scores])
