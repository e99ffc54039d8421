"""`paratune pseudo-label`: labels unlabelled texts with one or several models, and writes a record."""

from collections import Counter
from functools import partial
from pathlib import Path

from paratune.api.apply import apply, check_model, read_source
from paratune.api.process import set_up_process
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
from paratune.console import print_json, print_table, stdout_for_results
from paratune.errors import ConfigError, option_error, require_at_least
from paratune.records import file_sha256, write_json


def pseudo_label(
    *models: str,
    input: str,
    out: Path,
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
) -> None:
    """Label the texts of a file for which MODELS (runs, model folders or hub names) are confident.

    Several models must predict the same class, and their mean probability is the confidence. For numbers several models
    are required, and the confidence is their spread. OUT.record.json lists the kept and dropped rows by reason.

    Args:
        input: file with texts without labels
        out: file for the kept rows, .csv, .jsonl or .parquet
        threshold: smallest confidence (classes), or largest spread over models (numbers)
        max_per_class: maximum number of rows of each class, most confident first
        limit: maximum number of rows, most confident first
        overwrite: replace an existing output file
    """
    from paratune.records.predictions import SUFFIXES, write_table

    record_path = out.with_name(f"{out.name}.record.json")
    require_at_least("--batch-size", batch_size)
    check_output(out, overwrite=overwrite, suffixes=SUFFIXES)
    check_output(record_path, overwrite=overwrite)
    require_some(models, "runs or models, such as runs/NAME")
    places = Counter(str(Path(model).resolve()) for model in models)
    if repeated := [model for model, count in places.items() if count > 1]:
        raise ConfigError(f"{repeated[0]} is named twice; name each model once", code="cli.conflict")
    if not threshold > 0:
        raise option_error("--threshold", threshold, "it is above 0", code="cli.invalid_value")
    require_at_least("--max-per-class", max_per_class)
    require_at_least("--limit", limit)
    set_up_process()
    with stdout_for_results():
        from paratune.infer.pseudo import OUTCOMES, Labeller, make_labeller, pseudo_labels
        from paratune.infer.trained import NamedColumns, load_trained

        for model in models:
            check_model(model, run_code=run_code)
        table = read_source(input, models[0])
    labellers: list[Labeller] = []
    for model in models:  # only one model is in memory at a time
        with stdout_for_results():
            trained = load_trained(model, NamedColumns(text=text, text_pair=text_pair, label=label), device)
        run = partial(apply, trained, batch_size=batch_size)
        first, is_only = next(iter(labellers), None), len(models) == 1
        labellers.append(make_labeller(model, trained, first, input, table, run, is_only=is_only))
    labelled, record = pseudo_labels(
        input, table, out, labellers, threshold=threshold, max_per_class=max_per_class, limit=limit
    )
    write_table(out, labelled)
    record["output"]["sha256"] = file_sha256(out)
    write_json(record_path, record)
    if json:
        print_json(record)
        return
    lines = {"rows": record["input"]["num_rows"]}
    lines |= {f"  {OUTCOMES[outcome]}": count for outcome, count in record["num_rows"].items()}
    lines |= {f"    {name}": count for name, count in record.get("classes", {}).items()}
    print_table(("", ""), ((name, format_number(count)) for name, count in lines.items()), right=(1,))
    print(plain(out))  # noqa: T201
    print(plain(record_path))  # noqa: T201
