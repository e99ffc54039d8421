"""Describes the data of a configuration before training, for `paratune data CONFIG`.

Imports no torch.
"""

from collections.abc import Mapping
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
from paratune.data.windows import describe_questions

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_NUM_BINS = 12
_BAR_WIDTH = 30
MOST_LABELS = 50
"""Of more labels, the table has the most frequent ones."""
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
        about["questions"] = describe_questions(split.samples, split.store)
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
    parts: list[RenderableType] = [Text(plain(f"Columns   {columns}")), Text(""), _overview(description["splits"])]
    if any(about["labels"] or about["target"] for about in description["splits"].values()):
        parts += [Text(""), _balance(description["splits"])]
    if any("questions" in about for about in description["splits"].values()):
        parts += [Text(""), _questions(description["splits"])]
    for name, about in description["splits"].items():
        tokens = about["tokens"]
        limit = f"longer than {tokens['max_length']}"
        if about["num_sequences"] is not None:
            limit = f"truncated; {tokens['max_length']} tokens a sequence"
        cut = f"{format_share(tokens['share_truncated'])} {limit}"
        parts += [Text(""), Text(f"Tokens per sample, {name} ({cut})", style="italic"), _length_bars(tokens)]
    parts += [Text("")] * bool(description["warnings"])
    parts += [Text(plain(f"Warning: {warning}"), style="yellow") for warning in description["warnings"]]
    return Group(*parts)


def _overview(splits: Mapping[str, Any]) -> Table:
    """Return the table of rows and tokens, with one column for each split."""
    table = _table("Rows and tokens", splits)
    table.columns[0].no_wrap = True
    abouts = list(splits.values())
    tokens = [about["tokens"] for about in abouts]
    table.add_row("source", *(Text(plain(about["source"])) for about in abouts))
    table.add_row("rows", *(format_number(about["num_rows"]) for about in abouts))
    table.add_row("dropped", *(format_number(sum(about["num_dropped"].values())) for about in abouts))
    table.add_row("repeated texts", *(format_number(about["repeats"]["num_rows"]) for about in abouts))
    if any(about["num_samples"] != about["num_rows"] for about in abouts):
        table.add_row("windows", *(format_number(about["num_samples"]) for about in abouts))
        table.add_row("  full windows", *(format_number(counts["num_full"]) for counts in tokens))
    if any(about["num_sequences"] for about in abouts):
        table.add_row("sequences", *(format_number(about["num_sequences"]) for about in abouts))
    table.add_row("tokens", *(format_number(counts["num_tokens"]) for counts in tokens))
    for name, key in (("median", "median"), ("95th percentile", "p95"), ("longest", "max")):
        table.add_row(f"  per sample, {name}", *(format_number(counts["full_length"][key]) for counts in tokens))
    table.add_row("truncated", *(format_share(counts["share_truncated"]) for counts in tokens))
    return table


def _table(title: str, splits: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    for name in splits:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _balance(splits: Mapping[str, Any]) -> Table:
    """Return the table of label counts, or of the mean, sd and quantiles of the target; one column for each split."""
    is_class = any(about["labels"] is not None for about in splits.values())
    table = _table("Labels" if is_class else "Target", splits)
    abouts = list(splits.values())
    if is_class:
        # A line for each label in all splits.
        lines = list(zip(*(about["labels"] for about in abouts if about["labels"] is not None), strict=True))
        is_long = len(lines) > MOST_LABELS
        if is_long:
            lines.sort(key=lambda cells: -sum(cell["num_rows"] for cell in cells))
        for cells in lines[:MOST_LABELS]:
            counts = iter(f"{format_number(cell['num_rows'])} ({format_share(cell['share'])})" for cell in cells)
            shown = ["" if about["labels"] is None else next(counts) for about in abouts]
            table.add_row(Text(plain(cells[0]["name"])), *shown)
        if is_long:
            table.add_row(f"{format_number(len(lines) - MOST_LABELS)} rarer labels; --json has all")
        if any("num_without_label" in about for about in abouts):
            table.add_row("(no label)", *(format_number(about.get("num_without_label")) for about in abouts))
    else:
        for key in ("mean", "sd", *_QUANTILES):
            table.add_row(key, *(format_number((about["target"] or {}).get(key)) for about in abouts))
    return table


def _questions(splits: Mapping[str, Any]) -> Table:
    """Return the table of figures for question answering, with one column for each split."""
    table = _table("Questions", splits)
    abouts = [about.get("questions", {}) for about in splits.values()]
    table.add_row("contexts", *(format_number(about.get("num_contexts")) for about in abouts))
    shown = (
        f"{format_number(about.get('num_with_answer'))} ({format_share(about.get('share_with_answer'))})"
        for about in abouts
    )
    table.add_row("with an answer", *shown)
    for key, name in _OF_QUESTIONS.items():
        table.add_row(name, *(format_number(about.get(key)) for about in abouts))
    several = (format_share(about.get("share_of_several_windows")) for about in abouts)
    table.add_row("questions with several windows", *several)
    return table


def _length_bars(tokens: Mapping[str, Any]) -> Table:
    table = Table(show_header=False, box=None)
    for justify in ("right", "left", "right"):
        table.add_column(justify=justify)
    most = max(item["num_rows"] for item in tokens["histogram"])
    for item in tokens["histogram"]:
        width = round(_BAR_WIDTH * item["num_rows"] / most)
        bar = "█" * width or ("▏" if item["num_rows"] else "")
        lengths = str(item["from"]) if item["from"] == item["to"] else f"{item['from']}-{item['to']}"
        table.add_row(lengths, bar, format_number(item["num_rows"]))
    return table
