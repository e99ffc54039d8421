"""Describes the data of a configuration before training, for `paratune data CONFIG`.

Imports no torch.
"""

from collections.abc import Callable, Iterable, Mapping
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
from paratune.data.columns import IntArray, dropped_text
from paratune.data.duplicates import overlaps, repeats
from paratune.data.labels import absence_warnings, class_counts
from paratune.data.load import Split, truncation_warnings, unknown_warnings
from paratune.data.sequences import EXAMPLE, answer_tokens, count_unreachable_answers

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_NUM_BINS = 12
MOST_LABELS = 50
"""Of more labels, the table has the most frequent ones."""
_OVERVIEW: dict[str, Callable[[Mapping[str, Any]], Any]] = {
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
}
"""Lines of the first table, and the number of each."""
_OF_QUESTIONS = {
    "most_answers": "most gold answers of a question",
    "num_out_of_reach": "answers that no window contains whole",
    "most_windows": "most windows of a question",
    "median_answer_chars": "median characters of an answer",
    "most_answer_chars": "most characters of an answer",
}


def describe(splits: Mapping[str, Split], task: Task, columns: Columns, *, max_length: int) -> dict[str, Any]:
    """Return the description of splits with tokens that `paratune data` prints, as plain JSON values.

    Returns:
        `task`, `columns`, `max_length`, `splits` by name, `overlaps` between splits, and `warnings` as sentences.
    """
    shared = overlaps({name: split.samples for name, split in splits.items()})
    edges = _bin_edges(np.concatenate([split.store.full_sample_lengths for split in splits.values()]))
    num_choices = max(int(split.store.num_sequences.max()) for split in splits.values())
    described = {name: _describe_split(split, task, max_length, edges, num_choices) for name, split in splits.items()}
    warnings = [overlap.message for overlap in shared]
    for name, about in described.items():
        warnings += _warnings(name, about)
    warnings += [*truncation_warnings(splits), *unknown_warnings(splits)]
    return {
        "task": task.kind,
        "columns": columns.model_dump(),
        "max_length": max_length,
        "splits": described,
        "overlaps": [asdict(overlap) for overlap in shared],
        "warnings": warnings,
    }


def _describe_split(split: Split, task: Task, max_length: int, edges: IntArray, num_choices: int) -> dict[str, Any]:
    about: dict[str, Any] = {
        "source": split.source,
        "num_rows": split.num_rows,
        "num_samples": split.num_samples,
        "num_sequences": None if split.store.sample_offsets is None else len(split.store.sequence_lengths),
        "num_dropped": split.num_dropped,
        "fingerprint": split.fingerprint,
        "labels": None,
        "target": None,
        "tokens": _describe_tokens(split, max_length, edges),
        "repeats": asdict(repeats(split.samples)),
    }
    if split.samples.answers is not None:
        about["questions"] = _describe_questions(split)
    if split.labels is not None and isinstance(task, ClassTask):
        about["labels"] = [
            {"name": name, "num_rows": count, "share": count / split.num_rows}
            for name, count in class_counts(split.labels, class_names(task)).items()
        ]
        if split.labels.ndim == 2:
            about["num_without_label"] = int((split.labels.sum(axis=1) == 0).sum())
    elif split.labels is not None and isinstance(task, MultipleChoiceTask):
        counts = np.bincount(split.labels, minlength=num_choices)
        about["labels"] = [
            {"name": f"choice {place + 1}", "num_rows": int(count), "share": int(count) / split.num_rows}
            for place, count in enumerate(counts)
        ]
    elif split.labels is not None and split.labels.ndim == 1 and split.labels.size:
        # An own task may have no column of labels; those of pairs without scores are numbers of texts.
        targets = split.labels.astype(np.float64)
        # The sample standard deviation, which a single row does not have.
        sd = float(targets.std(ddof=1)) if len(targets) > 1 else None
        about["target"] = {"mean": float(targets.mean()), "sd": sd, **_quantiles(targets)}
    return about


def _describe_tokens(split: Split, max_length: int, edges: IntArray) -> dict[str, Any]:
    full = split.store.full_sample_lengths
    counts = np.histogram(full, bins=edges)[0]
    return {
        "num_tokens": split.store.num_tokens,
        "num_tokens_cut": int(full.sum()) - split.store.num_tokens,
        "num_unknown": split.store.num_unknown,
        "share_unknown": split.store.share_unknown,
        "num_full": int((split.store.sequence_lengths == max_length).sum()),
        "num_truncated": split.store.num_truncated,
        "share_truncated": split.store.num_truncated / split.num_samples,
        "max_length": max_length,
        "full_length": {"mean": float(full.mean()), **_quantiles(full)},
        "histogram": [
            {"from": int(low), "to": int(high) - 1, "num_rows": int(count)}
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
    }


def _describe_questions(split: Split) -> dict[str, Any]:
    answers, contexts, store = split.samples.answers, split.samples.text_pairs, split.store
    assert answers is not None
    assert contexts is not None
    num_windows = np.bincount(store.row_values[EXAMPLE], minlength=split.num_rows)
    lengths = [len(answer.text) for gold in answers for answer in gold]
    num_with_answer = sum(map(bool, answers))
    return {
        "num_contexts": len(set(contexts)),
        "num_with_answer": num_with_answer,
        "share_with_answer": num_with_answer / len(answers),
        "most_answers": max(map(len, answers)),
        "num_out_of_reach": count_unreachable_answers(store, answer_tokens(store, answers), answers),
        "share_of_several_windows": float((num_windows > 1).mean()),
        "most_windows": int(num_windows.max()),
        "median_answer_chars": float(np.median(lengths)) if lengths else None,
        "most_answer_chars": max(lengths, default=None),
    }


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    quantiles = np.quantile(values, list(_QUANTILES.values()))
    return dict(zip(_QUANTILES, quantiles.tolist(), strict=True))


def _bin_edges(lengths: npt.NDArray[Any]) -> IntArray:
    """Return the edges of at most 13 bins of a round width; the last bin includes the longest sample."""
    # Bins of equal width end at the 99th percentile: a few very long samples would make all others one bin.
    reach = max(1, int(np.ceil(np.quantile(lengths, 0.99))))
    width = next(size * 10**power for power in range(12) for size in (1, 2, 5) if size * 10**power * _NUM_BINS >= reach)
    edges = np.arange(int(lengths.min()) // width * width, reach + width, width)
    if lengths.max() >= edges[-1]:
        edges = np.append(edges, lengths.max() + 1)
    return edges.astype(np.int64)


def _warnings(name: str, about: dict[str, Any]) -> list[str]:
    warnings = []
    if about["repeats"]["num_conflicting_texts"]:
        warnings.append(
            f"{name}: {about['repeats']['num_conflicting_texts']} texts occur with different labels "
            f"({about['repeats']['num_conflicting_rows']} rows)"
        )
    warnings += absence_warnings(name, {label["name"]: label["num_rows"] for label in about["labels"] or []})
    if about["num_dropped"]:
        warnings.append(f"{name}: dropped rows: {dropped_text(about['num_dropped'])}")
    return warnings


def render(description: Mapping[str, Any]) -> RenderableType:
    """Return the description for a terminal; texts from the data are never read as mark-up."""
    columns = ", ".join(
        f"{key}: {' + '.join(value) if isinstance(value, list) else value}"
        for key, value in description["columns"].items()
        if value is not None and key != "separator"
    )
    names, abouts = list(description["splits"]), list(description["splits"].values())
    parts: list[RenderableType] = [Text(plain(f"Columns   {columns}")), Text(""), _overview(names, abouts)]
    if any(about["labels"] or about["target"] for about in abouts):
        parts += [Text(""), _balance(names, abouts)]
    if any("questions" in about for about in abouts):
        parts += [Text(""), _questions(names, abouts)]
    bins = zip(*(about["tokens"]["histogram"] for about in abouts), strict=True)
    heading = Text(f"Tokens per sample (at most {description['max_length']} in a sequence)", style="italic")
    lengths = _table(None, names)
    for cells in bins:
        low, high = cells[0]["from"], cells[0]["to"]
        _add(lengths, str(low) if low == high else f"{low}-{high}", (cell["num_rows"] for cell in cells))
    parts += [Text(""), heading, lengths, *[Text("")] * bool(description["warnings"])]
    parts += [Text(plain(f"Warning: {warning}"), style="yellow") for warning in description["warnings"]]
    return Group(*parts)


def _table(title: str | None, names: Iterable[str]) -> Table:
    """Return an empty table with one column for each split."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _add(table: Table, name: str, values: Iterable[Any]) -> None:
    """Add a line of numbers, or of texts."""
    cells = (plain(value) if isinstance(value, str) else format_number(value) for value in values)
    table.add_row(Text(plain(name)), *map(Text, cells))


def _overview(names: list[str], abouts: list[dict[str, Any]]) -> Table:
    """Return the table of rows and tokens."""
    table = _table("Rows and tokens", names)
    table.columns[0].no_wrap = True
    _add(table, "source", (about["source"] for about in abouts))
    left_out = set()
    if all(about["num_samples"] == about["num_rows"] for about in abouts):
        left_out |= {"windows", "  full windows"}
    if not any(about["num_sequences"] for about in abouts):
        left_out.add("sequences")
    for name, value in _OVERVIEW.items():
        if name not in left_out:
            _add(table, name, map(value, abouts))
    _add(table, "truncated", (format_share(about["tokens"]["share_truncated"]) for about in abouts))
    return table


def _balance(names: list[str], abouts: list[dict[str, Any]]) -> Table:
    """Return the table of label counts, or of the mean, sd and quantiles of the target."""
    if all(about["labels"] is None for about in abouts):
        table = _table("Target", names)
        for key in ("mean", "sd", *_QUANTILES):
            _add(table, key, ((about["target"] or {}).get(key) for about in abouts))
        return table
    table = _table("Labels", names)
    # A line for each label in all splits.
    lines = list(zip(*(about["labels"] for about in abouts if about["labels"] is not None), strict=True))
    num_rarer = len(lines) - MOST_LABELS
    if num_rarer > 0:
        lines.sort(key=lambda cells: -sum(cell["num_rows"] for cell in cells))
    for cells in lines[:MOST_LABELS]:
        counts = iter(f"{format_number(cell['num_rows'])} ({format_share(cell['share'])})" for cell in cells)
        _add(table, cells[0]["name"], ("" if about["labels"] is None else next(counts) for about in abouts))
    if num_rarer > 0:
        _add(table, f"{format_number(num_rarer)} rarer labels; --json has all", ())
    if any("num_without_label" in about for about in abouts):
        _add(table, "(no label)", (about.get("num_without_label") for about in abouts))
    return table


def _questions(names: list[str], abouts: list[dict[str, Any]]) -> Table:
    """Return the table of figures for question answering."""
    table = _table("Questions", names)
    figures = [about.get("questions", {}) for about in abouts]
    _add(table, "contexts", (about.get("num_contexts") for about in figures))
    counts = ((about.get("num_with_answer"), about.get("share_with_answer")) for about in figures)
    _add(table, "with an answer", (f"{format_number(count)} ({format_share(share)})" for count, share in counts))
    for key, name in _OF_QUESTIONS.items():
        _add(table, name, (about.get(key) for about in figures))
    several = (format_share(about.get("share_of_several_windows")) for about in figures)
    _add(table, "questions with several windows", several)
    return table
