"""Prints the scores by slice for `paratune evaluate --by`."""

from collections.abc import Mapping, Sequence
from typing import Any

from paratune.api.slices import saved_slices
from paratune.base.units import format_number
from paratune.console import print_json, print_result, print_table, stdout_for_results
from paratune.errors import EXIT_OK
from paratune.records.slices import notes, score_text, shown_metrics
from paratune.reports.text import shorten_all

_VALUE_WIDTH = 30


def run_slices_command(
    target: str, by: Sequence[str], *, named: Mapping[str, str | None], device: str, as_json: bool
) -> int:
    """Print the scores by slice of a finished run, from its saved predictions; return the exit code.

    Raises:
        CheckpointError: The folder is not a finished run, or has no predictions.
        ConfigError: The task's rows have no scores.
        DataError: A file cannot be read, or a column is absent or has too many values.
    """
    with stdout_for_results():
        kind, slices = saved_slices(target, by, named, device)
    if as_json:
        print_json({"model": target, "slices": slices})
        return EXIT_OK
    for split, columns in slices.items():
        show_slices(kind, columns, split=split)
    return EXIT_OK


def show_slices(kind: str, columns: Mapping[str, list[dict[str, Any]]], *, split: str | None = None) -> None:
    """Print a table of each column's slices, and notes on them."""
    from rich.text import Text

    for column, entries in columns.items():
        metrics = shown_metrics(kind, entries)
        rows = []
        values = shorten_all([entry["value"] for entry in entries], _VALUE_WIDTH)
        for value, entry in zip(values, entries, strict=True):
            value += f": {entry['detail']}" if entry["detail"] else ""
            texts = [score_text(entry, metric, digits=3) for metric in metrics]
            rows.append((value, format_number(entry["num_rows"]), *texts))
        print_result(Text())
        figures = ("rows", *metrics)
        print_table((f"{split}, by {column}" if split else f"by {column}", *figures), rows, right=figures)
    print_result(Text())
    for note in notes(kind, columns):
        print_result(Text(note), is_prose=True)
