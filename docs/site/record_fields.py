"""The generated part of the reference of records: phases and traits of strategies, hardware of a node, metrics."""

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from paratune.config import traits
from paratune.config.metric_names import LOWER_IS_BETTER, METRICS
from paratune.hardware import describe_node, describe_storage
from paratune.hardware.gpus import describe_gpus, library_versions
from paratune.hardware.virtualisation import describe_virtualisation
from paratune.records import PHASES


def record_fields_page() -> str:
    """Return the fields of records that the code describes itself."""
    lines = [
        "# Fields of records",
        "",
        "Parts of `run.json` and `summary.json`, generated from the code. The others are in",
        "[the record of a run](records.md).",
        "",
        *_phases(),
        *_traits(),
        *_hardware(),
        *_metrics(),
    ]
    return "\n".join(lines) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table of Markdown, with an empty one at the end."""
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]


def _phases() -> list[str]:
    rows = ((f"`{kind}`", *(facts.phases[phase] for phase in PHASES)) for kind, facts in traits.TRAITS.items())
    return ["## What each phase contains", "", *table(("strategy", *PHASES), rows)]


def _traits() -> list[str]:
    """Return the fields of `Traits`, with the text under each field in the source."""
    node = ast.parse(inspect.getsource(traits.Traits)).body[0]
    assert isinstance(node, ast.ClassDef)
    rows = (
        (f"`{field.target.id}`", " ".join(text.value.value.split()))
        for field, text in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    )
    head = ("field", "meaning")
    return ["## Traits of a strategy", "", "`strategy.traits` in `run.json`.", "", *table(head, rows)]


def _hardware() -> list[str]:
    """Return what the functions that describe a machine return, in the words of their docstrings."""
    parts: dict[str, Callable[..., Any]] = {
        "`hardware[]`": describe_node,
        "`hardware[].storage`, `hardware[].data_storage`": describe_storage,
        "`hardware[].virtualisation`": describe_virtualisation,
        "`hardware[].gpus[]`": describe_gpus,
        "`versions` (beside those of packages)": library_versions,
    }
    rows = ((name, _returns(function)) for name, function in parts.items())
    return ["## Hardware of a node", "", *table(("object", "fields"), rows)]


def _returns(function: Callable[..., Any]) -> str:
    doc = inspect.getdoc(function) or ""
    found = re.search(r"^Returns:\n((?: +.*\n?|\n)+)", doc, re.MULTILINE)
    return " ".join((found[1] if found else doc.partition("\n\n")[0]).split())


def _metrics() -> list[str]:
    rows = (
        (f"`{kind}`", ", ".join(f"`{name}`{' ↓' if name in LOWER_IS_BETTER else ''}" for name in names))
        for kind, names in METRICS.items()
    )
    about = "`scores` in `summary.json` and in `evaluation` events; ↓: smaller is better."
    return ["## Metrics of each task", "", about, "", *table(("task.kind", "metrics"), rows)]
