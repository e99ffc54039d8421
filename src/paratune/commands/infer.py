"""`paratune evaluate` and `paratune predict`: apply a trained model to a file."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.api.apply import check_model
from paratune.api.threads import respect_quota
from paratune.base.text import plain
from paratune.base.units import format_number
from paratune.commands.confusion import confusion_view
from paratune.commands.options import BatchSize, Device, Json, LabelColumn, PairColumn, RunCode, TextColumn
from paratune.console import print_json, print_result, print_table, set_up_logging
from paratune.errors import EXIT_OK, ConfigError, option_error, os_error_as
from paratune.records import write_json
from paratune.records.confusion import read_confusion

log = logging.getLogger(__name__)
DOCUMENT_SUFFIX = ".json"
"""Suffix of a file in the format of a task, such as the answers by id of SQuAD."""
DEFAULT_BATCH_SIZE = 32
"""Default of `evaluate --data`."""


def evaluate(
    model: str,
    *,
    data: str | None = None,
    by: Sequence[str] = (),
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    answer_start: str | None = None,
    labels: Sequence[str] = (),
    batch_size: int | None = None,
    device: Device = "auto",
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Print the metrics of MODEL (a run, a model folder or a hub name) on a labelled file.

    A model that paratune saved has the names of its columns; other models need --text and --label. With --by,
    the scores of each slice are shown with its number of rows and 95% intervals.

    Args:
        data: labelled file; without it, --by shows the scores of a finished run
        by: column, label or length (quartiles of the tokens), by which scores are also shown; may be repeated
        answer_start: column of the character position at which the answer in --label starts
        labels: VALUE=LABEL, a value of the file that stands for a label of the model, such as spam=LABEL_1; may be
            repeated
        batch_size: samples of a forward pass, with --data; default 32
    """
    from paratune.api.evaluate import evaluate_file
    from paratune.commands.slices import run_slices_command, show_slices

    named = {"text": text, "text_pair": text_pair, "label": label, "answer_start": answer_start}
    size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    by = list(dict.fromkeys(by))
    if data is None:
        if not by:
            message = (
                f"--data is missing; for example: paratune evaluate {model} --data reviews.csv (of a finished run "
                "--by COLUMN is enough)"
            )
            raise ConfigError(message, code="cli.argument_missing", option="--data", target=model)
        _refuse_without_data(batch_size, device, named, by, labels)
        set_up_logging(speaks=True)
        respect_quota()
        check_model(model, run_code=run_code)
        return run_slices_command(model, by, named=named, device=device, as_json=json)

    evaluation = evaluate_file(
        model, data, named, labels=_by_value(labels), by=by, batch_size=size, device=device, run_code=run_code
    )
    result = evaluation.values
    if json:
        print_json(result)
    else:
        show(result)
        if by:
            show_slices(evaluation.task, result["slices"])
    return EXIT_OK


def _by_value(texts: Sequence[str]) -> dict[str, str]:
    """Return the labels of `--labels VALUE=LABEL` by value."""
    by_value: dict[str, str] = {}
    for text in texts:
        value, equals, label = text.rpartition("=")
        if not equals or not label:
            raise option_error("--labels", text, "write VALUE=LABEL, such as spam=LABEL_1", code="cli.invalid_value")
        if by_value.setdefault(value, label) != label:
            reason = f"{value} already stands for {by_value[value]}; give one label for each value"
            raise option_error("--labels", text, reason, code="cli.named_twice")
    return by_value


def _refuse_without_data(
    batch_size: int | None, device: str, named: Mapping[str, str | None], by: Sequence[str], labels: Sequence[str]
) -> None:
    """Raise an error for options of a forward pass when saved predictions are read; only `length` loads the model."""
    is_given = {"--batch-size": batch_size is not None, "--labels": bool(labels)}
    if "length" not in by:
        is_given |= {"--device": device != "auto"} | {
            f"--{name.replace('_', '-')}": column is not None for name, column in named.items()
        }
    for option in (option for option, value in is_given.items() if value):
        message = (
            f"{option} has no effect without --data, which reads the saved predictions of the run; leave it out, "
            "or name a file with --data"
        )
        raise ConfigError(message, code="cli.no_effect", option=option)


def predict(
    model: str,
    *,
    input: str,
    output: Path,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: bool = False,
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Write the rows of a file and the predictions of MODEL for them, as .csv, .jsonl or .parquet.

    Args:
        input: file or data set with the texts, such as reviews.csv or demo:sentences
        output: file to write: .csv, .jsonl, .parquet, or .json (answers in the layout of SQuAD)
        overwrite: replace an existing output file
    """
    import numpy as np

    from paratune.api.predict import predict_rows
    from paratune.records.predictions import SUFFIXES, write_table

    check_output(output, overwrite, document=True)
    is_document = output.suffix == DOCUMENT_SUFFIX

    def check_document(trained: Any, split: Any) -> None:
        if is_document and (reason := trained.recipe.document_problem(split)):
            raise option_error("--output", output, f"{reason}; write {', '.join(SUFFIXES)}", code="output.format")

    named = {"text": text, "text_pair": text_pair}
    predicted = predict_rows(
        model, input, named, batch_size=batch_size, device=device, check=check_document, run_code=run_code
    )
    trained, split, table = predicted.trained, predicted.split, predicted.rows
    if is_document:
        write_json(output, trained.recipe.document(split, predicted.evaluation.outputs))
    else:
        write_table(output, predicted.table())
    without = np.setdiff1d(np.arange(table.num_rows), split.samples.rows).tolist()
    # Rows may also miss a mask to fill in.
    from paratune.data.labels import first_rows

    missing = " or ".join(sorted({"text", *split.num_dropped}, reverse=True))
    result = {
        "output": str(output),
        "num_rows": table.num_rows,
        "num_predicted": split.num_rows,
        "share_unknown_tokens": split.store.share_unknown,
        "rows_without_prediction": without,
    }
    if json:
        print_json(result)
        return EXIT_OK
    print(plain(f"{split.num_rows} of {table.num_rows} rows predicted: {output}"))  # noqa: T201
    if without:
        print(f"{len(without)} without a {missing} and without a prediction: {first_rows(without)}")  # noqa: T201
    return EXIT_OK


def check_output(output: Path, overwrite: bool, *, document: bool = False) -> None:
    """Raise a `ConfigError` for a file that cannot be written; `document` allows the JSON of question answering."""
    from paratune.records.predictions import SUFFIXES

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
            "--output", output, f"{output.parent} is not a folder; create it first", code="output.no_folder"
        )
    failure, facts = f"--output {output} cannot be written", {"option": "--output", "value": output}
    with os_error_as(ConfigError, failure, "choose another folder", code="output.not_writable", **facts):
        # A check of permissions is not enough: root has them on a disk that is read-only or full.
        tempfile.TemporaryFile(dir=output.parent).close()


def show(result: Mapping[str, Any]) -> None:
    from rich.console import Console

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
