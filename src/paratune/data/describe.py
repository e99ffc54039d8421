"""Describes the data of a configuration before training, for `paratune data CONFIG`.

Imports no torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import format_number, format_share
from paratune.config.sections import Columns
from paratune.config.task_sections import ClassTask, MultipleChoiceTask, Task, class_names
from paratune.data.columns import dropped_text
from paratune.data.duplicates import overlaps, repeats
from paratune.data.labels import absence_warnings, class_counts
from paratune.data.load import Split, truncation_warnings, unknown_warnings
from paratune.data.sequences import EXAMPLE, answer_tokens, count_unreachable_answers

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
MOST_LABELS = 50
"""Of more labels, the table has the most frequent ones."""
_OVERVIEW: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "source": lambda about: about["source"],
    "rows": lambda about: about["num_rows"],
    "dropped": lambda about: sum(about["num_dropped"].values()),
    "repeated texts": lambda about: about["repeats"]["num_rows"],
    "windows": lambda about: about["num_samples"],
    "  full windows": lambda about: about["tokens"]["num_full"],
    "sequences": lambda about: about["num_sequences"],
    "tokens": lambda about: about["tokens"]["num_tokens"],
    "  per sample, median": lambda about: about["tokens"]["full_length"]["median"],
    "  per sample, 95th percentile": lambda about: about["tokens"]["full_length"]["p95"],
    "  per sample, longest": lambda about: about["tokens"]["full_length"]["max"],
    "truncated": lambda about: format_share(about["tokens"]["share_truncated"]),
    "contexts": lambda about: about.get("questions", {}).get("num_contexts"),
    "questions with an answer": lambda about: about.get("questions", {}).get("num_with_answer"),
    "answers that no window contains whole": lambda about: about.get("questions", {}).get("num_out_of_reach"),
    "most windows of a question": lambda about: about.get("questions", {}).get("most_windows"),
}
"""Lines of the first table, and the value of each; a line without any value is left out."""


def describe(splits: Mapping[str, Split], task: Task, columns: Columns, *, max_length: int) -> dict[str, Any]:
    """Return the description of splits with tokens that `paratune data` prints, as plain JSON values.

    Returns:
        `task`, `columns`, `max_length`, `splits` by name, `overlaps` between splits, and `warnings` as sentences.
    """
    shared = overlaps({name: split.samples for name, split in splits.items()})
    num_choices = max(int(split.store.num_sequences.max()) for split in splits.values())
    described = {name: _describe_split(split, task, max_length, num_choices) for name, split in splits.items()}
    warnings = [overlap.message for overlap in shared]
    for name, about in described.items():
        if num_texts := about["repeats"]["num_conflicting_texts"]:
            num_rows = about["repeats"]["num_conflicting_rows"]
            warnings.append(f"{name}: {num_texts} texts occur with different labels ({num_rows} rows)")
        warnings += absence_warnings(name, {label["name"]: label["num_rows"] for label in about["labels"] or []})
        if about["num_dropped"]:
            warnings.append(f"{name}: dropped rows: {dropped_text(about['num_dropped'])}")
    return {
        "task": task.kind,
        "columns": columns.model_dump(),
        "max_length": max_length,
        "splits": described,
        "overlaps": [asdict(overlap) for overlap in shared],
        "warnings": [*warnings, *truncation_warnings(splits), *unknown_warnings(splits)],
    }


def _describe_split(split: Split, task: Task, max_length: int, num_choices: int) -> dict[str, Any]:
    store, full = split.store, split.store.full_sample_lengths
    about: dict[str, Any] = {
        "source": split.source,
        "num_rows": split.num_rows,
        "num_samples": split.num_samples,
        "num_sequences": None if store.sample_offsets is None else len(store.sequence_lengths),
        "num_dropped": split.num_dropped,
        "fingerprint": split.fingerprint,
        "labels": None,
        "target": None,
        "tokens": {
            "num_tokens": store.num_tokens,
            "num_tokens_cut": int(full.sum()) - store.num_tokens,
            "num_unknown": store.num_unknown,
            "share_unknown": store.share_unknown,
            "num_full": int((store.sequence_lengths == max_length).sum()),
            "num_truncated": store.num_truncated,
            "share_truncated": store.num_truncated / split.num_samples,
            "full_length": {"mean": float(full.mean()), **_quantiles(full)},
        },
        "repeats": asdict(repeats(split.samples)),
    }
    if split.samples.answers is not None:
        about["questions"] = _describe_questions(split)
    labels = split.labels
    if labels is None:
        return about
    counts = None
    if isinstance(task, ClassTask):
        counts = class_counts(labels, class_names(task))
        if labels.ndim == 2:
            about["num_without_label"] = int((labels.sum(axis=1) == 0).sum())
    elif isinstance(task, MultipleChoiceTask):
        counts = class_counts(labels, [f"choice {place + 1}" for place in range(num_choices)])
    elif labels.ndim == 1 and labels.size:
        # An own task may have no column of labels; those of pairs without scores are numbers of texts.
        targets = labels.astype(np.float64)
        # The sample standard deviation, which a single row does not have.
        sd = float(targets.std(ddof=1)) if len(targets) > 1 else None
        about["target"] = {"mean": float(targets.mean()), "sd": sd, **_quantiles(targets)}
    if counts is not None:
        about["labels"] = [
            {"name": name, "num_rows": count, "share": count / split.num_rows} for name, count in counts.items()
        ]
    return about


def _describe_questions(split: Split) -> dict[str, Any]:
    answers, contexts, store = split.samples.answers, split.samples.text_pairs, split.store
    assert answers is not None
    assert contexts is not None
    num_windows = np.bincount(store.row_values[EXAMPLE], minlength=split.num_rows)
    num_with_answer = sum(map(bool, answers))
    return {
        "num_contexts": len(set(contexts)),
        "num_with_answer": num_with_answer,
        "share_with_answer": num_with_answer / len(answers),
        "most_answers": max(map(len, answers)),
        "num_out_of_reach": count_unreachable_answers(store, answer_tokens(store, answers), answers),
        "share_of_several_windows": float((num_windows > 1).mean()),
        "most_windows": int(num_windows.max()),
    }


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    quantiles = np.quantile(values, list(_QUANTILES.values()))
    return dict(zip(_QUANTILES, quantiles.tolist(), strict=True))


def render(description: Mapping[str, Any]) -> RenderableType:
    """Return the description for a terminal; texts from the data are never read as mark-up."""
    columns = ", ".join(
        f"{key}: {' + '.join(value) if isinstance(value, list) else value}"
        for key, value in description["columns"].items()
        if value is not None and key != "separator"
    )
    names, abouts = list(description["splits"]), list(description["splits"].values())
    absent = () if any(about["num_samples"] != about["num_rows"] for about in abouts) else ("windows", "  full windows")
    lines = [(name, [value(about) for about in abouts]) for name, value in _OVERVIEW.items() if name not in absent]
    overview = _table("Rows and tokens", names, [line for line in lines if any(value is not None for value in line[1])])
    overview.columns[0].no_wrap = True
    about_columns = f"Columns   {columns}; at most {description['max_length']} tokens in a sequence"
    parts: list[RenderableType] = [Text(plain(about_columns)), Text(""), overview]
    if any(about["labels"] for about in abouts):
        parts += [Text(""), _table("Labels", names, _label_lines(abouts))]
    elif any(about["target"] for about in abouts):
        keys = ("mean", "sd", *_QUANTILES)
        targets = [(key, [(about["target"] or {}).get(key) for about in abouts]) for key in keys]
        parts += [Text(""), _table("Target", names, targets)]
    parts += [Text("")] * bool(description["warnings"])
    parts += [Text(plain(f"Warning: {warning}"), style="yellow") for warning in description["warnings"]]
    return Group(*parts)


def _table(title: str, names: Sequence[str], lines: Iterable[tuple[str, Sequence[Any]]]) -> Table:
    """Return a table with a column for each split, from lines of numbers and texts."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for name, values in lines:
        cells = (plain(value) if isinstance(value, str) else format_number(value) for value in values)
        table.add_row(Text(plain(name)), *map(Text, cells))
    return table


def _label_lines(abouts: Sequence[Mapping[str, Any]]) -> list[tuple[str, Sequence[Any]]]:
    """Return a line for each label in all splits: its rows and their share; nothing for a split without labels."""
    labels = list(zip(*(about["labels"] for about in abouts if about["labels"] is not None), strict=True))
    num_rarer = len(labels) - MOST_LABELS
    if num_rarer > 0:
        labels.sort(key=lambda cells: -sum(cell["num_rows"] for cell in cells))
    lines: list[tuple[str, Sequence[Any]]] = []
    for cells in labels[:MOST_LABELS]:
        counts = iter(f"{format_number(cell['num_rows'])} ({format_share(cell['share'])})" for cell in cells)
        lines.append((cells[0]["name"], ["" if about["labels"] is None else next(counts) for about in abouts]))
    if num_rarer > 0:
        lines.append((f"{format_number(num_rarer)} rarer labels; --json has all", ()))
    if any("num_without_label" in about for about in abouts):
        lines.append(("(no label)", [about.get("num_without_label") for about in abouts]))
    return lines
