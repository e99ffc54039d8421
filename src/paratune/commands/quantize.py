"""`paratune quantize`: writes a smaller model, and compares it with the original."""

import logging
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paratune.api.apply import allow_source, check_model
from paratune.api.process import respect_quota
from paratune.base.imports import collector_off_for_imports
from paratune.base.text import plain
from paratune.base.units import format_bytes, format_share
from paratune.commands.options import BatchSize, Json, LabelColumn, PairColumn, RunCode, TextColumn
from paratune.console import Display, print_json, print_table, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, coded, require_at_least
from paratune.records.run_folder import Form

log = logging.getLogger(__name__)
MIN_AGREEMENT = 0.95
"""Share of same decisions below which there is a warning."""


def quantize(
    model: Annotated[str, Parameter(help="run, model folder or hub name")],
    *,
    to: Form,
    out: Path,
    data: str | None = None,
    rows: int = 256,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 32,
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Write a smaller form of MODEL as a folder, and compare its outputs and decisions with those of MODEL.

    Args:
        to: bf16 (weights for PyTorch), onnx (float32) or int8 (8-bit integers as ONNX)
        out: folder to write; it must not exist, or be empty
        data: file on whose rows both are compared; default the validation file of the run, else its training file
        rows: most rows that are compared, evenly spaced
    """
    require_at_least("--rows", rows)
    require_at_least("--batch-size", batch_size)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{plain(out)} exists; choose another --out", code="output.exists", path=out)
    set_up_logging(speaks=True)
    respect_quota()
    with stdout_for_results():
        check_model(model, run_code=run_code)
        allow_source(data or "")
        with collector_off_for_imports():
            from paratune.infer.trained import NamedColumns

        named = NamedColumns(text=text, text_pair=text_pair, label=label)
        record = make_form(model, to, out, data=data, num_rows=rows, named=named, batch_size=batch_size)
    if json:
        print_json({"output": str(out), **record})
        return EXIT_OK
    size, check = record["size"], record["check"]
    original = f"{format_share(size['share'])} of {format_bytes(size['original_float32_bytes'])}"
    lines = [
        ("weights", f"{format_bytes(size['weights_bytes'])}, {original} in float32"),
        ("compared on", f"{check['num_rows']} rows of {check['data']}"),
        ("difference", f"at most {check['max_abs']:.2g}, mean {check['mean_abs']:.2g} of an output"),
        ("outputs", f"up to {check['largest_output']:.3g}"),
    ]
    if check["agreement"] is not None:
        lines.append(("same decisions", format_share(check["agreement"])))
    print_table(("", ""), lines)
    print(plain(out))  # noqa: T201
    return EXIT_OK


def make_form(
    model: str,
    form: Form,
    out: Path,
    *,
    data: str | None = None,
    num_rows: int = 256,
    named: Any = None,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Write a smaller form of a model, with a progress bar and a warning where its decisions differ; return its record.

    `data` is a file on whose rows outputs are compared; None: that of the run.
    """
    from paratune.compress.quantize import QuantizeJob, evenly, quantize_model, require_quantizable
    from paratune.data.read import read_table
    from paratune.infer.trained import NamedColumns, load_trained

    trained = load_trained(model, named or NamedColumns(), "cpu")
    require_quantizable(trained, model, form)
    source = data or _file_of_run(trained, model)
    table = read_table(source)
    checked = trained.read(source, table.take(evenly(table.num_rows, num_rows)), require_labels=False)
    with Display(speaks=True).bar("quantize", 1) as bar:
        job = QuantizeJob(
            trained, model, form, checked,
            batch_size=batch_size, on_batch=lambda part, done, total: bar.update(done, total=total),
        )  # fmt: skip
        record = quantize_model(job, out)
    agreement = record["check"]["agreement"]
    if agreement is not None and agreement < MIN_AGREEMENT:
        log.warning(
            "%s decides like %s in %s of %d rows; compare the scores with: paratune evaluate %s --data FILE",
            out,
            model,
            format_share(agreement),
            record["check"]["num_rows"],
            out,
            extra=coded("quantize.decisions", agreement=agreement),
        )
    return record


def _file_of_run(trained: Any, model: str) -> str:
    """Return the validation file of a run, else its training file.

    Raises:
        ConfigError: The model is not in a run folder.
    """
    from paratune.records import read_run
    from paratune.records.own import admit_data

    if trained.run is None:
        message = f"{model} is not a run, whose files are known; name a file with --data"
        raise ConfigError(message, code="cli.option_missing", option="--data", target=model)
    data = read_run(trained.run)["config"]["data"]
    admit_data(trained.run)
    files = data.get("validation") or data["train"]
    return files if isinstance(files, str) else str(files[0])
