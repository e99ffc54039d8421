"""Describes the data of a configuration before training, for `paratune data CONFIG`.

Imports no torch.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import counted, format_number, format_share
from paratune.config.sections import Data
from paratune.config.task_sections import ClassTask, Task, class_names
from paratune.data.columns import dropped_text
from paratune.data.duplicates import overlaps, repeats
from paratune.data.labels import absence_warnings, class_counts
from paratune.data.load import Split, truncation_warnings, unknown_warnings
from paratune.data.questions import answer_tokens, count_unreachable_answers
from paratune.data.tokens import unknown_id

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
MOST_LABELS = 20
"""Of more labels, the table has the most frequent ones."""
NUM_EXAMPLES = 3
_MOST_CHARACTERS, _MOST_TOKENS = 500, 100
"""Of a text and of its tokens in an example; a line of the terminal has fewer."""
_PART = 1 << 24
"""Tokens of a split that are in memory at a time."""
_TABLE: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "source": lambda about: about["source"],
    "rows": lambda about: about["num_rows"],
    "dropped": lambda about: sum(about["num_dropped"].values()),
    "repeated texts": lambda about: about["repeats"]["num_rows"],
    "windows": lambda about: about["num_samples"],
    "sequences": lambda about: about["num_sequences"],
    "contexts": lambda about: about.get("questions", {}).get("num_contexts"),
    "questions with an answer": lambda about: about.get("questions", {}).get("num_with_answer"),
    "answers that no window contains whole": lambda about: about.get("questions", {}).get("num_out_of_reach"),
    "tokens": lambda about: about["tokens"]["num_tokens"],
    "of a sample, median": lambda about: about["tokens"]["full_length"]["median"],
    "of a sample, 95th percentile": lambda about: about["tokens"]["full_length"]["p95"],
    "of a sample, longest": lambda about: about["tokens"]["full_length"]["max"],
    "truncated samples": lambda about: format_share(about["tokens"]["share_truncated"]),
    "mean of the target (SD)": lambda about: _target(about, "{mean} ({sd})"),
    "min / median / max": lambda about: _target(about, "{min} / {median} / {max}"),
}
"""Lines of the table, and the value of each; a line without any value but 0 is left out."""


def describe(splits: Mapping[str, Split], task: Task, data: Data, tokenizer: Any, *, max_length: int) -> dict[str, Any]:
    """Return the description of splits with tokens that `paratune data` prints, as plain JSON values."""
    shared = overlaps({name: split.samples for name, split in splits.items()})
    num_choices = max(int(split.store.num_sequences.max()) for split in splits.values())
    described = {name: _describe_split(split, task, num_choices) for name, split in splits.items()}
    group = ""
    if data.split is not None and data.split.group_by is None and isinstance(data.columns.text, str):
        group = f", or data.split.group_by: {data.columns.text} to keep equal texts in one part"
    cut = [name for name in ("validation", "test") if getattr(data, name) is None]  # by data.split
    is_cut = [overlap.first == "train" and overlap.second in cut for overlap in shared]
    warnings = [overlap.message + group * is_one for overlap, is_one in zip(shared, is_cut, strict=True)]
    for name, about in described.items():
        if num_rows := about["repeats"]["num_rows"] if name == "train" else 0:
            warnings.append(f"train: {num_rows} rows repeat an earlier text; to leave them out: data.drop_duplicates")
        if num_texts := about["repeats"]["num_conflicting_texts"]:
            num_rows = about["repeats"]["num_conflicting_rows"]
            warnings.append(f"{name}: {num_texts} texts occur with different labels ({num_rows} rows)")
        warnings += absence_warnings(name, {label["name"]: label["num_rows"] for label in about["labels"] or []})
        if about["num_dropped"]:
            warnings.append(f"{name}: dropped rows: {dropped_text(about['num_dropped'])}")
    return {
        "task": task.kind,
        "columns": data.columns.model_dump(),
        "max_length": max_length,
        "splits": described,
        "overlaps": [asdict(overlap) for overlap in shared],
        "examples": list(_examples(next(iter(splits.values())), task, tokenizer)),
        "ok": True,
        "warnings": [*warnings, *truncation_warnings(splits, task), *unknown_warnings(splits)],
    }


def _describe_split(split: Split, task: Task, num_choices: int) -> dict[str, Any]:
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
            "num_full": int((store.sequence_lengths == store.max_length).sum()),
            "num_truncated": store.num_truncated,
            "share_truncated": store.num_truncated / split.num_samples,
            "full_length": {"mean": float(full.mean()), **_quantiles(full)},
        },
        "repeats": asdict(repeats(split.samples)),
    }
    if split.samples.answers is not None:
        answers, contexts = split.samples.answers, split.samples.text_pairs
        assert contexts is not None
        num_windows, num_with_answer = np.bincount(store.examples, minlength=split.num_rows), sum(map(bool, answers))
        about["questions"] = {
            "num_contexts": len(set(contexts)),
            "num_with_answer": num_with_answer,
            "share_with_answer": num_with_answer / len(answers),
            "most_answers": max(map(len, answers)),
            "num_out_of_reach": count_unreachable_answers(store, answer_tokens(store, answers), answers),
            "share_of_several_windows": float((num_windows > 1).mean()),
            "most_windows": int(num_windows.max()),
        }
    labels, tags, counts = split.labels, split.samples.tags, None
    if labels is not None and isinstance(task, ClassTask):
        counts = class_counts(labels, class_names(task))
        if labels.ndim == 2:
            about["num_without_label"] = int((labels.sum(axis=1) == 0).sum())
    elif tags is not None:
        counts = class_counts(np.concatenate(tags), class_names(task))
    elif labels is not None and split.samples.choices is not None:
        counts = class_counts(labels, [f"choice {place + 1}" for place in range(num_choices)])
    elif labels is not None and labels.ndim == 1 and labels.size:
        # An own task may have no column of labels; those of pairs without scores are numbers of texts.
        targets = labels.astype(np.float64)
        # The sample standard deviation, which a single row does not have.
        sd = float(targets.std(ddof=1)) if len(targets) > 1 else None
        about["target"] = {"mean": float(targets.mean()), "sd": sd, **_quantiles(targets)}
    if counts is not None:
        total = split.num_rows if tags is None else sum(map(len, tags))  # then they are tags of words
        shares = [(name, count, count / max(1, total)) for name, count in counts.items()]
        about["labels"] = [{"name": name, "num_rows": count, "share": share} for name, count, share in shares]
    return about


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float]:
    quantiles = np.quantile(values, list(_QUANTILES.values()))
    return dict(zip(_QUANTILES, quantiles.tolist(), strict=True))


def _examples(split: Split, task: Task, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield rows as the model sees them: the first ones, and the first one with unknown tokens in place of the last."""
    store, unknown = split.store, unknown_id(tokenizer)
    of_sequence = store.examples
    _, first = np.unique(of_sequence, return_index=True)  # the first sequence of each row that begins one
    shown = first[:NUM_EXAMPLES].tolist()
    if store.num_unknown:
        parts = (slice(begin, begin + _PART) for begin in range(0, store.num_tokens, _PART))
        place = next(
            part.start + int(np.argmax(is_it)) for part in parts if (is_it := store.tokens[part] == unknown).any()
        )
        sequence = int(np.searchsorted(store.offsets, place, side="right")) - 1
        row = int(of_sequence[sequence])
        if row not in (of_sequence[number] for number in shown):
            shown[NUM_EXAMPLES - 1 :] = [sequence]
    for sequence in shown:
        row, samples = int(of_sequence[sequence]), split.samples
        texts: dict[str, str] = {"text": samples.texts[row]} if samples.has_texts else {}
        for key, values in (("text_pair", samples.text_pairs), ("negative", samples.negatives)):
            texts |= {} if values is None else {key: values[row]}
        if samples.choices is not None:
            texts |= {f"choice {number}": text for number, text in enumerate(samples.choices[row], start=1)}
        ids = store.tokens[store.offsets[sequence] : store.offsets[sequence + 1]].tolist()
        tokens = tokenizer.convert_ids_to_tokens(ids)
        yield {
            "split": split.name,
            "row": int(samples.rows[row]),
            "texts": {key: text[:_MOST_CHARACTERS] for key, text in texts.items()},
            "num_tokens": len(tokens),
            "tokens": tokens[:_MOST_TOKENS],
            "label": _label(split, row, task),
            "unknown": _unknown_pieces(texts.values(), tokenizer) if unknown in ids else [],
        }


def _label(split: Split, row: int, task: Task) -> str | None:
    """Return the label of a row as text; None without one."""
    samples, labels = split.samples, split.labels
    if samples.answers is not None:
        gold = samples.answers[row]
        return f"{gold[0].text!r} at {gold[0].start}" if gold else "no answer"
    if samples.tags is not None and samples.words is not None:
        names = class_names(task)
        pairs = zip(samples.words[row], samples.tags[row].tolist(), strict=True)
        return " ".join(f"{word}/{names[tag]}" for word, tag in pairs)[:_MOST_CHARACTERS]
    if labels is None or (labels.ndim == 2 and not isinstance(task, ClassTask)):
        return None
    if isinstance(task, ClassTask):
        numbers = np.flatnonzero(labels[row]) if labels.ndim == 2 else [int(labels[row])]
        return ", ".join(class_names(task)[number] for number in numbers) or "(no label)"
    return f"choice {labels[row] + 1}" if samples.choices is not None else format_number(float(labels[row]))


def _unknown_pieces(texts: Iterable[str], tokenizer: Any) -> list[str]:
    """Return the characters that are unknown tokens; whole words where each of their characters is known."""
    unknown, pieces = unknown_id(tokenizer), []

    def is_unknown(piece: str) -> bool:
        return unknown in tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]

    for word in dict.fromkeys(chain.from_iterable(text[:10_000].split() for text in texts)):
        if is_unknown(word):
            pieces += [character for character in word if is_unknown(character)] or [word]
    return list(dict.fromkeys(pieces))[:20]


def render(description: Mapping[str, Any], *, all_: bool) -> list[RenderableType]:
    """Return the description for a terminal, without `all_` one example; texts of the data are never mark-up."""
    named = {key: value for key, value in description["columns"].items() if value is not None and key != "separator"}
    columns = ", ".join(f"{key}: {' + '.join(own) if isinstance(own, list) else own}" for key, own in named.items())
    names, abouts = list(description["splits"]), list(description["splits"].values())
    lines = [(name, [value(about) for about in abouts]) for name, value in _TABLE.items()]
    num_rows = [about["num_rows"] for about in abouts]  # windows are shown where there are more of them
    lines = [line for line in lines if any(line[1]) and (line[0] != "windows" or line[1] != num_rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(Text(plain(name)), justify="right", overflow="fold")
    for name, values in (*lines, *_label_lines(abouts, None if all_ else MOST_LABELS)):
        cells = (plain(value) if isinstance(value, str) else format_number(value) for value in values)
        pieces = re.findall(".{1,37}", plain(name))  # names of labels may be long; rich would shrink the numbers
        table.add_row(Text("\n".join(pieces)), *map(Text, cells))
    about_columns = f"Columns   {columns or 'none'}; at most {description['max_length']} tokens in a sequence"
    counts = " and ".join(f"{about['num_rows']:,} {name}" for name, about in description["splits"].items())
    warnings, examples = description["warnings"], description["examples"]
    verdict = "ready to train" if description["ok"] else "not ready to train"
    parts: list[RenderableType] = [
        Text(plain(f"{verdict}: {counts} rows; {counted(len(warnings), 'warning')}"), "bold")
    ]
    parts += [Text(plain(f"Warning: {warning}"), style="yellow") for warning in warnings]
    parts += [Text(plain(about_columns)), Text(""), table, Text("")]
    for example in examples[: None if all_ else 1]:
        texts = {**example["texts"], "tokens": f"{example['num_tokens']}: {' '.join(example['tokens'])}"}
        texts |= {} if example["label"] is None else {"label": example["label"]}
        texts |= {"unknown": " ".join(map(repr, example["unknown"]))} if example["unknown"] else {}
        shown = [f"Row {example['row']} of {example['split']}", *(f"  {key:<10}{text}" for key, text in texts.items())]
        parts += [Text(plain(line), no_wrap=True, overflow="ellipsis") for line in shown]
    if len(examples) > 1 and not all_:
        parts.append(Text(f"{counted(len(examples) - 1, 'more row')}: --all", style="dim"))
    return parts


def _target(about: Mapping[str, Any], form: str) -> str | None:
    target = about["target"]
    return target and form.format(**{name: format_number(value) for name, value in target.items()})


def _label_lines(abouts: Sequence[Mapping[str, Any]], most: int | None) -> list[tuple[str, Sequence[Any]]]:
    """Return a line for each label in all splits: its rows and their share; nothing for a split without labels."""
    labels = list(zip(*(about["labels"] for about in abouts if about["labels"] is not None), strict=True))
    num_rarer = len(labels[most:]) if most else 0
    if num_rarer > 0:
        labels.sort(key=lambda cells: -sum(cell["num_rows"] for cell in cells))
    lines: list[tuple[str, Sequence[Any]]] = []
    for cells in labels[:most]:
        counts = iter(f"{format_number(cell['num_rows'])} ({format_share(cell['share'])})" for cell in cells)
        texts = ["" if about["labels"] is None else next(counts) for about in abouts]
        lines.append((f"label {cells[0]['name']}", texts))
    if num_rarer > 0:
        lines.append((f"{format_number(num_rarer)} rarer labels: --all", ()))
    if any("num_without_label" in about for about in abouts):
        lines.append(("(no label)", [about.get("num_without_label") for about in abouts]))
    return lines
