"""Checks of the data files: columns, labels, rows in several splits, truncated texts."""

import shlex
from collections.abc import Iterator

from paratune.base.text import listing
from paratune.base.units import format_share
from paratune.config.sections import data_sources
from paratune.config.task_sections import cuts_windows
from paratune.doctor.facts import DataFacts, Finding, Level, QueuedRun
from paratune.doctor.options import batch_size, same_rows

NOTE_SHARE, WARNING_SHARE = 0.05, 0.5
"""Shares of truncated samples for a note and for a warning."""
ALWAYS_DROPPED = ("pseudo_of_held_out_group", "mask", "duplicate")
"""Missing values that are never an error: the rows are dropped."""
RARE = 0.05
"""Share of all other classes below which a constant prediction has a high accuracy."""


def check_sources(setup: QueuedRun) -> Iterator[Finding]:
    yield from setup.data.findings if setup.data else ()
    for key, name in data_sources(setup.config.data):
        if not name.startswith("hub:"):
            continue
        fact = f"{name} is on the hub, and was not read"
        if setup.is_offline:
            why = "The machines of the run have no access to the hub: without the data in the cache, the run fails."
            line = f"paratune bundle {shlex.quote(str(setup.path))} -o bundle.tar"
            remedy = "on a machine with a network; the bundle contains the data set"
            yield setup.finding("data_on_hub", "warning", fact, why, line, remedy, key=key)
        else:
            yield setup.finding("data_on_hub", "note", fact, "The run downloads it at its start.", key=key)
    train = setup.data.split("train") if setup.data else None
    if train and train.label_counts_rows:
        fact = f"{train.source}: the target is the number of the row"
        why, remedy = "The column of data.columns.label is an index, not a target.", "name the column of the target"
        yield setup.finding("label_is_index", "problem", fact, why, remedy=remedy, key="data.columns.label")
    for split in setup.data.splits if setup.data else ():
        missing = {key: count for key, count in split.num_dropped.items() if key not in ALWAYS_DROPPED}
        if not missing or setup.config.data.missing == "drop":
            continue
        listed = ", ".join(f"{count} without {key}" for key, count in missing.items())
        fact, why = f"{split.source}: {listed}", "With data.missing: refuse, training fails (exit code 3)."
        yield setup.finding("missing_values", "problem", fact, why, "data.missing: drop", "or correct the file")


def check_labels(setup: QueuedRun) -> Iterator[Finding]:
    train = setup.data.split("train") if setup.data else None
    absent = [name for name, count in (train.labels or {}).items() if count == 0] if train else []
    if train and absent:
        fact = f"{train.source}: no row has the label {listing(map(repr, absent))}"
        why = "The model learns nothing about it, and may still predict it."
        remedy = "remove it from task.labels, or check the file"
        yield setup.finding("label_absent", "warning", fact, why, remedy=remedy, key="task.labels")
    known, named = list(setup.model.labels) if setup.model else [], list(train.labels or {}) if train else []
    if known and known != named and sorted(map(str.lower, known)) == sorted(map(str.lower, named)):
        fact = f"{setup.model.name if setup.model else ''} was trained with classes {known}, and task.labels is {named}"
        why = "Its head is reused by class id: the weights of one class are used for another."
        by_lower = {name.lower(): name for name in named}
        line = f"task.labels: [{', '.join(by_lower[name.lower()] for name in known)}]"
        yield setup.finding("label_order", "problem", fact, why, line)
    counts = sorted(((train.labels if train else None) or {}).items(), key=lambda item: -item[1])
    is_by_accuracy = setup.config.task.kind == "classification" and setup.config.evaluate.best == "accuracy"
    share = counts[0][1] / max(1, sum(count for _, count in counts)) if len(counts) > 1 else 0
    if is_by_accuracy and share > 1 - RARE:
        fact = f"{format_share(share)} of the training rows have the label {counts[0][0]!r}"
        why = "A constant prediction has this accuracy; the best model by accuracy may be one that learned nothing."
        yield setup.finding("accuracy_of_rare", "warning", fact, why, "evaluate.best: f1_macro")


def check_parts(setup: QueuedRun) -> Iterator[Finding]:
    data = setup.data or DataFacts()
    same = set()
    for number, first in enumerate(data.splits):
        for second in data.splits[number + 1 :]:
            if first.fingerprint == second.fingerprint:
                same.add((first.name, second.name))
                fact = f"{first.name} and {second.name} have the same rows ({first.source}, {second.source})"
                yield same_rows(fact, second.name, first.name, _where(setup, second.name))
    for overlap in data.overlaps:
        if (overlap.first, overlap.second) in same:
            continue
        fact, _, rest = overlap.message.partition("; ")
        why = rest.partition(": ")[0]
        level: Level = "warning" if overlap.num_rows / overlap.num_rows_of_second > NOTE_SHARE else "note"
        remedy = "remove them from one of the two"
        if overlap.first == "train":
            remedy = "data.drop_duplicates: true leaves them out; data.split.group_by keeps related rows in one split"
        why = f"{why[0].upper()}{why[1:]}."
        yield Finding("parts_overlap", level, fact, why, remedy, _where(setup, overlap.second))
    for split in data.splits:
        if split.num_conflicting > NOTE_SHARE * split.num_rows:
            fact = f"{split.num_conflicting} of {split.num_rows} rows of {split.name} have a text with several labels"
            why, where = "No model can predict all of them correctly.", _where(setup, split.name)
            yield Finding("label_conflict", "warning", fact, why, "check data.columns.text and the file", where)


def _where(setup: QueuedRun, split: str) -> str:
    is_cut = setup.config.data.split is not None and getattr(setup.config.data, split, None) is None
    return setup.where(f"data.split.{split}" if is_cut else f"data.{split}")


def check_lengths(setup: QueuedRun) -> Iterator[Finding]:
    """Check the lengths of samples, and the samples of a step."""
    data = setup.data or DataFacts()
    train = data.split("train")
    if train is None:
        return
    if train.share_truncated is not None and train.share_truncated >= NOTE_SHARE:
        share, limit = format_share(train.share_truncated), data.model_limit
        fact = f"{share} of the samples of train are longer than {data.max_length} tokens and are truncated"
        can_more = limit is not None and data.max_length is not None and limit > data.max_length
        length = min(limit or 0, -(-(train.p95_length or 0) // 8) * 8)  # kernels prefer multiples of 8
        line = f"data.max_length: {length}" if can_more else ""
        why = "The model does not see the end of these texts."
        level: Level = "warning" if train.share_truncated > WARNING_SHARE and can_more else "note"
        remedy = f"the model has at most {limit} tokens; data.truncation_side selects the end that is cut"
        yield setup.finding("truncated", level, fact, why, line, "" if can_more else remedy, key="data.max_length")
    size = None if cuts_windows(setup.config.task) else batch_size(setup)
    if size is not None and size > train.num_rows:
        fact = f"a step has {size} samples, and there are {train.num_rows} training rows"
        why = "Each step uses all of them: an epoch is one step."
        key = "batch.global" if setup.config.batch.global_ is not None else "batch.per_device"
        line = f"{key}: {max(1, min(32, train.num_rows // 10))}"
        yield setup.finding("batch_too_large", "warning", fact, why, line)
