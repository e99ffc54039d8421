"""Prints the scores of a file, for `paratune evaluate`."""

from collections.abc import Mapping
from typing import Any

from paratune.base.units import format_number
from paratune.commands.confusion import confusion_view
from paratune.console import print_result


def show(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("samples", format_number(result["num_samples"]))
    for missing, count in result["num_dropped"].items():
        table.add_row("left out", f"{format_number(count)} without {missing}")
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
