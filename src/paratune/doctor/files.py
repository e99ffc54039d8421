"""Do the files hold what the configuration says: columns, labels, parts that share rows, texts that are cut off."""

import shlex
from collections.abc import Iterator

from paratune.base.units import format_share
from paratune.doctor.configuration import batch_size, same_rows
from paratune.doctor.finding import Finding, Level
from paratune.doctor.installation import is_offline
from paratune.doctor.setup import DataFacts, QueuedRun, SourceError, SplitFacts

SHARE_NOTED, SHARE_ALARMING = 0.05, 0.5
"""Of samples that are cut off: from the first on it is said, from the second on most of what is read is not whole."""
LEFT_OUT_ANYHOW = ("pseudo_of_held_out_group", "mask")
"""What rows may lack without being refused."""
RARE = 0.05
"""Share of all other classes together below which always saying the first one looks good by accuracy."""


def check_sources(setup: QueuedRun) -> Iterator[Finding]:
    for error in setup.data.errors if setup.data else ():
        yield _judge_error(error, setup.where(error.key))
    for name in setup.data.too_large if setup.data else ():
        what, why = f"{name} was not looked into", "Reading it would take longer than this may."
        yield Finding("data_large", "note", what, why, "paratune data shows its content", str(setup.path))
    for key, name in setup.data.on_hub if setup.data else ():
        what = f"{name} is on the hub, and was not looked into"
        if setup.start.no_network or is_offline(setup.machine.environ):
            why = "The machines that train may not ask the hub: unless its cache has it, the run ends at once."
            line = f"paratune bundle {shlex.quote(str(setup.path))} -o bundle.tar"
            remedy = "where there is a network; it holds the data set as a file"
            yield Finding("data_on_hub", "warning", what, why, remedy, setup.where(key), line)
        else:
            yield Finding("data_on_hub", "note", what, "It is fetched when the run starts.", "", setup.where(key))
    if setup.data and not setup.data.errors and setup.data.splits:
        rows = ", ".join(f"{split.name} {split.num_rows:,}" for split in setup.data.splits)
        yield Finding("data", "ok", f"rows: {rows}", where=str(setup.path))


def _judge_error(error: SourceError, where: str) -> Finding:
    why = "Training refuses the data (exit code 3)."
    if error.kind == "file":
        return Finding("data_file", "problem", error.message, why, "", where, error.line)
    if error.kind == "column":
        return Finding("data_column", "problem", error.message, why, "", where, error.line)
    if error.kind == "label":
        return Finding("label_unknown", "problem", error.message, why, "", where, error.line)
    return Finding("data_value", "problem", error.message, why, "", where, error.line)


def check_columns(setup: QueuedRun) -> Iterator[Finding]:
    data = setup.data or DataFacts()
    for key, source, example in data.id_columns:
        what = f"{source}: the column of {key} holds names of rows, such as {example!r}, and not texts"
        why = "Nothing can be learned from them, and the loss falls all the same, by heart."
        line = f"{key}: {data.text_columns[0]}" if data.text_columns else ""
        yield Finding("text_is_id", "problem", what, why, "" if line else "name another", setup.where(key), line)
    train = data.split("train")
    if train and train.label_counts_rows:
        what = f"{train.source}: the target is the number of the row"
        why, where = "The column of data.columns.label is an index and no target.", setup.where("data.columns.label")
        yield Finding("label_is_index", "problem", what, why, "name the column of the target", where)


def check_missing(setup: QueuedRun) -> Iterator[Finding]:
    for split in setup.data.splits if setup.data else ():
        lacking = {key: count for key, count in split.num_dropped.items() if key not in LEFT_OUT_ANYHOW}
        if not lacking or setup.config.data.missing == "drop":
            continue
        listed = ", ".join(f"{count} without {key}" for key, count in lacking.items())
        what, why = f"{split.source}: {listed}", "data.missing is refuse, so training refuses the file (exit code 3)."
        where, line = setup.where("data.missing"), "data.missing: drop"
        yield Finding("missing_values", "problem", what, why, "or mend the file", where, line)


def check_labels(setup: QueuedRun) -> Iterator[Finding]:
    train = setup.data.split("train") if setup.data else None
    where = setup.where("task.labels")
    absent = [name for name, count in (train.labels or {}).items() if count == 0] if train else []
    if train and absent:
        what = f"{train.source}: no row has the label {', '.join(map(repr, absent))}"
        why = "Nothing is learned of it, and it is one more way to be wrong."
        yield Finding("label_absent", "warning", what, why, "take it out of task.labels, or look at the file", where)
    known, named = list(setup.model.labels) if setup.model else [], list(train.labels or {}) if train else []
    if known and known != named and sorted(map(str.lower, known)) == sorted(map(str.lower, named)):
        what = (
            f"{setup.model.name if setup.model else ''} was trained with the classes {known}, and here they are {named}"
        )
        why = "Its head is reused by class id: the weights of one class are used for another."
        line = f"task.labels: [{', '.join(_as_here(name, named) for name in known)}]"
        yield Finding("label_order", "problem", what, why, "", where, line)
    yield from _judge_balance(setup, train)


def _as_here(name: str, named: list[str]) -> str:
    return next(other for other in named if other.lower() == name.lower())


def _judge_balance(setup: QueuedRun, train: SplitFacts | None) -> Iterator[Finding]:
    counts = sorted(((train.labels if train else None) or {}).items(), key=lambda item: -item[1])
    if len(counts) < 2 or setup.config.task.kind != "classification" or setup.config.evaluate.best != "accuracy":
        return
    share = counts[0][1] / max(1, sum(count for _, count in counts))
    if share > 1 - RARE:
        what = f"{format_share(share)} of the training rows have the label {counts[0][0]!r}"
        why = "Always answering it is as accurate; the best model by accuracy may be one that has learned nothing."
        where, line = setup.where("evaluate.best"), "evaluate.best: f1_macro"
        yield Finding("accuracy_of_rare", "warning", what, why, "", where, line)


def check_parts(setup: QueuedRun) -> Iterator[Finding]:
    data = setup.data or DataFacts()
    same = set()
    for number, first in enumerate(data.splits):
        for second in data.splits[number + 1 :]:
            if first.fingerprint == second.fingerprint:
                same.add((first.name, second.name))
                what = f"{first.name} and {second.name} hold the same rows ({first.source}, {second.source})"
                yield same_rows(what, second.name, first.name, _where(setup, second.name))
    for first_name, second_name, count, total in data.overlaps:
        if (first_name, second_name) in same:
            continue
        what = f"{count} of {total} rows of {second_name} have a text that is also in {first_name}"
        why = f"Scores on {second_name} look better than they are."
        level: Level = "warning" if count / total > SHARE_NOTED else "note"
        remedy = "take them out of one of the two; data.split.group_by keeps together what belongs together"
        yield Finding("parts_overlap", level, what, why, remedy, _where(setup, second_name))
    for split in data.splits:
        if split.num_conflicting > SHARE_NOTED * split.num_rows:
            what = f"{split.num_conflicting} of {split.num_rows} rows of {split.name} have a text with several labels"
            why, where = "No model can be right about them.", _where(setup, split.name)
            yield Finding("label_conflict", "warning", what, why, "look at data.columns.text and the file", where)


def _where(setup: QueuedRun, split: str) -> str:
    is_cut = setup.config.data.split is not None and getattr(setup.config.data, split, None) is None
    return setup.where(f"data.split.{split}" if is_cut else f"data.{split}")


def check_lengths(setup: QueuedRun) -> Iterator[Finding]:
    data = setup.data or DataFacts()
    train = data.split("train")
    if train is None or train.share_truncated is None or train.share_truncated < SHARE_NOTED:
        return
    share = format_share(train.share_truncated)
    what = f"{share} of the samples of train are longer than {data.max_length} tokens and are cut off"
    where, limit = setup.where("data.max_length"), data.model_limit
    can_more = limit is not None and data.max_length is not None and limit > data.max_length
    wanted = min(limit or 0, _round_up(train.p95_length or 0))
    line = f"data.max_length: {wanted}" if can_more else ""
    why = "The end of these texts is not read."
    is_alarming = train.share_truncated > SHARE_ALARMING and can_more
    level: Level = "warning" if is_alarming else "note"
    remedy = (
        ""
        if can_more
        else f"the model takes no more than {limit} tokens; data.truncation_side chooses the end that is cut"
    )
    yield Finding("truncated", level, what, why, remedy, where, line)


def _round_up(length: int) -> int:
    """Return the next multiple of 8, for which kernels are made."""
    return -(-length // 8) * 8


def check_amount(setup: QueuedRun) -> Iterator[Finding]:
    train = setup.data.split("train") if setup.data else None
    if train is None or setup.config.task.kind in ("mlm", "qa"):
        return
    size = batch_size(setup)
    if size is not None and size > train.num_rows:
        what = f"a step takes {size} samples, and there are {train.num_rows} training rows"
        why = "Each step takes all of them: an epoch is one step."
        key = "batch.global" if setup.config.batch.global_ is not None else "batch.per_device"
        line = f"{key}: {max(1, min(32, train.num_rows // 10))}"
        yield Finding("batch_too_large", "warning", what, why, "", setup.where(key), line)
