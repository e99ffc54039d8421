"""Prints the scores of a file, for `paratune evaluate`."""

from collections.abc import Mapping
from typing import Any

from paratune.base.units import format_number
from paratune.commands.confusion import confusion_view
from paratune.console import print_result, print_table


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
    if "confusion" in result:
        print_result(confusion_view(labels, result["confusion"], Console().width))
