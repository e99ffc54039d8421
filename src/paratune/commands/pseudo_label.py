"""`paratune pseudo-label`: labels unlabelled texts with one or several models, and writes a record."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune import records
from paratune.api.apply import allow_source, check_model
from paratune.api.process import respect_quota
from paratune.base.text import plain
from paratune.base.units import format_number
from paratune.commands.options import (
    BatchSize,
    Device,
    Json,
    LabelColumn,
    PairColumn,
    RunCode,
    TextColumn,
    check_output,
    require_some,
)
from paratune.console import print_json, print_table, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, DataError, coded, option_error, require_at_least

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


def pseudo_label(
    *models: str,
    input: str,
    output: Path,
    threshold: float,
    max_per_class: int | None = None,
    limit: int | None = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: bool = False,
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Label the texts of a file for which MODELS (runs, model folders or hub names) are confident.

    Several models must predict the same class, and their mean probability is the confidence. For numbers several models
    are required, and the confidence is their spread. OUTPUT.record.json lists the kept and dropped rows by reason.

    Args:
        input: file with texts without labels
        output: file for the kept rows, .csv, .jsonl or .parquet
        threshold: smallest confidence (classes), or largest spread over models (numbers)
        max_per_class: maximum number of rows of each class, most confident first
        limit: maximum number of rows, most confident first
        overwrite: replace an existing output file
    """
    import numpy as np

    from paratune.config.task_sections import ClassificationTask
    from paratune.records.predictions import SUFFIXES, write_table

    named = {"text": text, "text_pair": text_pair, "label": label}
    record_path = output.with_name(f"{output.name}.record.json")
    require_at_least("--batch-size", batch_size)
    check_output(output, overwrite=overwrite, suffixes=SUFFIXES)
    check_output(record_path, overwrite=overwrite)
    require_some(models, "runs or models, such as runs/NAME")
    places = Counter(str(Path(model).resolve()) for model in models)
    if repeated := [model for model, count in places.items() if count > 1]:
        raise ConfigError(f"{repeated[0]} is named twice; name each model once", code="cli.named_twice")
    if not threshold > 0:
        raise option_error("--threshold", threshold, "it is above 0", code="cli.out_of_range")
    require_at_least("--max-per-class", max_per_class)
    require_at_least("--limit", limit)
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        from paratune.data.read import read_table
        from paratune.infer.label_record import make_record
        from paratune.infer.labelling import (
            check_rule,
            classes_without_rows,
            excluded_rows,
            nothing_kept_text,
            output_table,
        )
        from paratune.infer.pseudo import OUTCOMES, SelectionRule, combine_classes, combine_numbers, decide

        allow_source(input)
        for model in models:
            check_model(model, run_code=run_code)
        table = read_table(input)
    label_models = _predictions(models, input, table, named, batch_size, device)
    task = label_models[0].task
    check_rule(task, label_models, threshold, max_per_class)
    outputs = [label_model.outputs for label_model in label_models]
    combined = combine_classes(outputs) if isinstance(task, ClassificationTask) else combine_numbers(outputs)
    excluded = excluded_rows(label_models)
    rule = SelectionRule(threshold, max_per_class, limit)
    outcomes = decide(combined, excluded, rule)
    rows = np.array([number for number, outcome in enumerate(outcomes) if outcome == "kept"], dtype=np.int64)
    if len(rows) == 0:
        raise DataError(nothing_kept_text(input, combined, outcomes, threshold), code="data.nothing_kept")
    if (warning := classes_without_rows(task, combined, outcomes)) is not None:
        log.warning("%s: %s", input, warning, extra=coded("pseudo_label.class_empty", source=input))
    labelled = output_table(table, label_models, combined, rows)
    counts = Counter(outcomes) + Counter({"without_text": table.num_rows - len(outcomes)})
    record = make_record(input, output, table, label_models, combined, outcomes, counts, rule)
    write_table(output, labelled)
    record["output"]["sha256"] = records.file_sha256(output)
    records.write_json(record_path, record)
    if json:
        print_json(record)
        return EXIT_OK
    lines = {"rows": record["input"]["num_rows"]}
    lines |= {f"  {OUTCOMES[outcome]}": count for outcome, count in record["num_rows"].items()}
    lines |= {f"    {name}": about["num_kept"] for name, about in record.get("classes", {}).items()}
    print_table(("", ""), ((name, format_number(count)) for name, count in lines.items()), right=(1,))
    print(plain(output))  # noqa: T201
    print(plain(record_path))  # noqa: T201
    return EXIT_OK


def _predictions(
    targets: Sequence[str], source: str, table: "pa.Table", named: dict[str, str | None], batch_size: int, device: str
) -> list[Any]:
    """Return a `LabelModel` with the predictions of each model; only one model is in memory at a time.

    Raises:
        ConfigError: The task, classes or columns of a model differ from those of the first model.
    """
    from paratune.api.apply import apply
    from paratune.infer.label_record import model_facts
    from paratune.infer.labelling import LabelModel, check_columns, check_kind, check_same_task, read_group_by
    from paratune.infer.seen import seen_texts
    from paratune.infer.trained import NamedColumns, load_trained

    label_models: list[Any] = []
    for target in targets:
        with stdout_for_results():
            trained = load_trained(target, NamedColumns(**named), device)
        check_kind(target, trained.task, num_models=len(targets))
        if label_models:
            check_same_task(label_models[0], target, trained.task, trained.columns)
        elif trained.columns.label in table.column_names:
            log.warning(
                "%s has the column %s; its values are ignored",
                source,
                trained.columns.label,
                extra=coded("pseudo_label.label_ignored", source=source),
            )
        group_by = read_group_by(trained.run)
        check_columns(source, table, trained.columns, group_by)
        split = trained.read(source, table, require_labels=False)
        evaluation = apply(trained, split, batch_size)
        seen = seen_texts(trained.run)
        for name, texts in seen.items():
            if texts.unknown:
                log.warning(
                    "%s: texts of its %s set may be in the output: %s",
                    target,
                    name,
                    texts.unknown,
                    extra=coded("pseudo_label.overlap", target=target),
                )
        facts = model_facts(target, trained)
        label_models.append(
            LabelModel(target, trained.task, trained.columns, group_by, split.samples, evaluation.outputs, seen, facts)
        )
    return label_models
