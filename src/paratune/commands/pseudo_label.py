"""`paratune pseudo-label`: labels for texts that have none, by one or several models, and a record of how."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import records
from paratune.base.text import plain
from paratune.base.units import format_number
from paratune.commands.infer import apply, check_batch_size, check_output
from paratune.commands.threads import respect_quota
from paratune.config.task_sections import ClassificationTask
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, DataError, coded
from paratune.records.predictions import write_table

log = logging.getLogger(__name__)


def pseudo_label_command(
    targets: Sequence[str],
    source: str,
    output: Path,
    *,
    threshold: float,
    max_per_class: int | None,
    limit: int | None,
    named: dict[str, str | None],
    batch_size: int,
    device: str,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write the rows that models are certain of, labelled, and the record beside it; return the exit code."""
    record_path = output.with_name(f"{output.name}.record.json")
    check_batch_size(batch_size)
    check_output(output, overwrite)
    if record_path.exists() and not overwrite:
        raise ConfigError(
            f"{record_path} exists; choose another --output, or use --overwrite", code="output.exists", path=record_path
        )
    _check_options(targets, threshold, max_per_class, limit)
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        from paratune.data.read import read_table
        from paratune.infer.label_record import make_record
        from paratune.infer.labelling import (
            check_rule,
            classes_without_rows,
            nothing_kept,
            output_table,
            refused_rows,
        )
        from paratune.infer.pseudo import SelectionRule, class_opinion, decide, number_opinion

        table = read_table(source)
    voices = _ask(targets, source, table, named, batch_size, device)
    task = voices[0].task
    check_rule(task, voices, threshold, max_per_class)
    outputs = [voice.outputs for voice in voices]
    opinion = class_opinion(outputs) if isinstance(task, ClassificationTask) else number_opinion(outputs)
    refused = refused_rows(voices)
    fates = decide(opinion, refused, SelectionRule(threshold, max_per_class, limit))
    kept = np.array([number for number, fate in enumerate(fates) if fate == "kept"], dtype=np.int64)
    if len(kept) == 0:
        raise DataError(nothing_kept(source, opinion, fates, threshold), code="data.nothing_kept")
    if (absent := classes_without_rows(task, opinion, fates)) is not None:
        log.warning("%s: %s", source, absent, extra=coded("pseudo_label.class_empty", source=source))
    made = output_table(table, voices, opinion, kept)
    counts = Counter(fates) + Counter({"without_text": table.num_rows - len(fates)})
    record = make_record(
        source, output, table, voices, opinion, fates, counts, SelectionRule(threshold, max_per_class, limit)
    )
    write_table(output, made)
    record["output"]["sha256"] = records.file_sha256(output)
    records.write_json(record_path, record)
    if as_json:
        print_json(record)
    else:
        _show(record, output, record_path)
    return EXIT_OK


def _check_options(targets: Sequence[str], threshold: float, max_per_class: int | None, limit: int | None) -> None:
    if not targets:
        raise ConfigError(
            "paratune pseudo-label needs at least one run or model, such as runs/NAME", code="cli.argument_missing"
        )
    twice = [target for target, count in Counter(str(Path(each).resolve()) for each in targets).items() if count > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice; a model agrees with itself", code="cli.named_twice")
    if not threshold > 0:
        raise ConfigError(
            f"--threshold {threshold:g}: above 0", code="cli.out_of_range", option="--threshold", value=threshold
        )
    for name, value in (("--max-per-class", max_per_class), ("--limit", limit)):
        if value is not None and value < 1:
            raise ConfigError(
                f"{name} {value}: at least 1",
                code="cli.out_of_range",
                option=name,
                value=value,
            )


def _ask(
    targets: Sequence[str], source: str, table: pa.Table, named: dict[str, str | None], batch_size: int, device: str
) -> list[Any]:
    """Return what each model says, one `Voice` after the other, so that only one model is in memory.

    Raises:
        ConfigError: A model's task is of another kind or has other classes or columns than the first one's.
    """
    from paratune.infer.label_record import model_facts
    from paratune.infer.labelling import Voice, check_alike, check_columns, check_kind, group_by_of
    from paratune.infer.seen import seen_texts
    from paratune.infer.trained import Named, load_trained

    voices: list[Any] = []
    for target in targets:
        with stdout_for_results():
            trained = load_trained(target, Named(**named), device)
        check_kind(target, trained.task, num_models=len(targets))
        if voices:
            check_alike(voices[0], target, trained.task, trained.columns)
        elif trained.columns.label in table.column_names:
            log.warning(
                "%s has the column %s; its values are not looked at",
                source,
                trained.columns.label,
                extra=coded("pseudo_label.label_ignored", source=source),
            )
        group_by = group_by_of(trained.run)
        check_columns(source, table, trained.columns, group_by)
        split = trained.read(source, table, require_labels=False)
        evaluation = apply(trained, split, batch_size)
        seen = seen_texts(trained.run)
        for name, each in seen.items():
            if each.unknown:
                log.warning(
                    "%s: texts of its %s set may be in the output: %s",
                    target,
                    name,
                    each.unknown,
                    extra=coded("pseudo_label.overlap", target=target),
                )
        facts = model_facts(target, trained)
        voices.append(
            Voice(target, trained.task, trained.columns, group_by, split.samples, evaluation.outputs, seen, facts)
        )
    return voices


def _show(record: Mapping[str, Any], output: Path, record_path: Path) -> None:
    from rich.table import Table

    from paratune.infer.pseudo import FATES

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows", format_number(record["input"]["num_rows"]))
    for fate, count in record["num_rows"].items():
        table.add_row(f"  {FATES[fate]}", format_number(count))
    for name, about in record.get("classes", {}).items():
        table.add_row(f"    {plain(name)}", format_number(about["num_kept"]))
    print_result(table)
    print(plain(output))  # noqa: T201
    print(plain(record_path))  # noqa: T201
