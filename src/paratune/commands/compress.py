"""`paratune quantize` and `compress`: a smaller form of a model, and all forms of a run, measured beside its model."""

import json as json_format
import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paratune.api.apply import allow_source, check_model, model_reading
from paratune.api.process import set_up_process, several
from paratune.api.run import Run
from paratune.base.atomic import delete_folder
from paratune.base.imports import collector_off_for_imports
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import format_bytes, format_share
from paratune.commands.options import BatchSize, Json, LabelColumn, PairColumn, RunCode, TextColumn
from paratune.console import Display, print_json, print_result, print_table, stdout_for_results
from paratune.errors import CheckpointError, ConfigError, LaunchError, coded, option_error, require_at_least
from paratune.records import MODEL_FOLDER, RUN_FILE, SUMMARY_FILE, file_sha256, predictions_file, read_json
from paratune.records.own import TASK_FILE, admit_data, admit_model
from paratune.records.run_folder import (
    COMPRESSED_FOLDER,
    FORMS,
    FP32,
    SPLITS,
    Form,
    ScoredSplit,
    is_measured,
    locked_folder,
    weight_files,
)

if TYPE_CHECKING:
    from paratune.compress.measure import MeasureSettings

log = logging.getLogger(__name__)
PROGRAM = (sys.executable, "-P", "-m", "paratune.compress.measure")
MIN_AGREEMENT = 0.95
"""Share of same decisions below which there is a warning."""
MIN_CPU_SHARE = 0.9
"""CPU seconds per second, below which a process waited for a processor."""


def compress(
    run: Annotated[Path, Parameter(help="folder of a finished run")],
    /,
    *,
    to: Sequence[str] = ("bf16", "int8"),
    split: ScoredSplit | None = None,
    rows: int = 1000,
    timed_rows: int = 200,
    batch_size: int = 32,
    run_code: RunCode = False,
    json: Json = False,
) -> None:
    """Make smaller forms of RUN, and measure each beside its model: size, speed, memory and scores.

    Each form is a run folder, RUN/compressed/FORM, for paratune report and compare. Finished forms are kept, so that an
    interrupted command can be repeated; with other options they are only measured again.

    Args:
        to: forms of paratune quantize, separated by commas
        split: set whose rows are scored; default test if the run has scored it
        rows: most rows that are scored, evenly spaced
        timed_rows: rows of latency and throughput
        batch_size: batch size of the throughput; the latency is that of one text
    """
    forms = (FP32, *dict.fromkeys(part.strip() for word in several(to) for part in word.split(",")))
    if unknown := [form for form in forms[1:] if form not in FORMS]:
        advice = f"allowed: {', '.join(FORMS)}, several separated by commas"
        raise option_error("--to", unknown[0], advice, code="cli.invalid_value")
    for option, value, least in (("--rows", rows, 2), ("--timed-rows", timed_rows, 1), ("--batch-size", batch_size, 1)):
        require_at_least(option, value, least)
    set_up_process()
    check_model(str(run), run_code=run_code)
    if not Run(run).is_finished or not (run / MODEL_FOLDER).is_dir():
        message = f"{plain(run)} has no trained model: it is not finished, a probe, or a fitted baseline; finish it "
        message += "with paratune train --resume, or name another run"
        raise CheckpointError(message, code="run.not_finished", target=run)
    scored: str = split or next((name for name in SPLITS if (run / predictions_file(name)).is_file()), SPLITS[0])
    # Here too: a refusal in the process that measures would be an error of this process.
    admit_model(str(run / MODEL_FOLDER), read_json(run / MODEL_FOLDER / TASK_FILE), run)
    remedy = "make it possible to write in the run folder"
    locked = locked_folder(run / COMPRESSED_FOLDER, "paratune compress", remedy)
    with stdout_for_results(), locked, scratch_folder() as scratch:
        with collector_off_for_imports():
            import torch

            from paratune.api.split_rows import split_table
            from paratune.compress.measure import MeasureSettings
            from paratune.compress.quantize import evenly
            from paratune.records.predictions import write_table
            from paratune.reports import make
            from paratune.reports.terminal import terminal_runs

        _, table = split_table(run, scored)
        rows_file = scratch / "rows.parquet"
        write_table(rows_file, table.take(evenly(table.num_rows, rows)))
        weights = {path.name: file_sha256(path) for path in weight_files(run / MODEL_FOLDER)}
        with Display(speaks=True).bar("compress", len(forms)) as bar:
            for number, form in enumerate(forms):
                bar.update(number, form)
                settings = MeasureSettings(form, weights, scored, rows, timed_rows, batch_size, torch.get_num_threads())
                if not is_measured(run / COMPRESSED_FOLDER / form, asdict(settings)):
                    _make(run, settings, rows_file, run_code=run_code)
    found = make([run / COMPRESSED_FOLDER / form for form in forms], None)
    if json:
        print_json(found.as_dict(), indent=1)
    else:
        print_result(terminal_runs(found))


def _make(run: Path, settings: "MeasureSettings", rows_file: Path, *, run_code: bool) -> None:
    """Make a form, unless it was made from these weights, and measure it in a separate process."""
    from paratune.compress.quantize import RECORD_FILE
    from paratune.processes.local import end_with_the_parent

    folder = run / COMPRESSED_FOLDER / settings.form
    model = folder / MODEL_FOLDER
    is_made = settings.form == FP32
    with suppress(CheckpointError, KeyError, TypeError):  # its record is missing or damaged: it is made again
        is_made = is_made or read_json(model / RECORD_FILE)["source"]["weights_sha256"] == settings.weights_sha256
    folder.mkdir(exist_ok=True)
    (folder / SUMMARY_FILE).unlink(missing_ok=True)  # first: a form without it is not finished
    for path in folder.iterdir():
        if path != model or not is_made:
            delete_folder(path) if path.is_dir() else path.unlink()
    if not is_made:
        make_form(str(run), settings.form, model)  # type: ignore[arg-type]
    log.info("%s", plain(f"measure {settings.form} of {run}"))
    words = [str(run), json_format.dumps(asdict(settings)), str(rows_file), *(["--run-code"] if run_code else [])]
    # The peak of memory belongs to one form only in a process that loads nothing else.
    done = subprocess.run(
        [*PROGRAM, *words],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=end_with_the_parent if sys.platform == "linux" else None,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        message = f"{settings.form} of {plain(run)} could not be measured (exit code {done.returncode}): "
        message += f"{plain(lines[-1])}; repeat the command, finished forms are kept"
        raise LaunchError(message, code="compress.not_measured", form=settings.form, exit_code=done.returncode)
    if read_json(folder / SUMMARY_FILE)["inference"]["cpu_share"] < MIN_CPU_SHARE:
        message = "other programs used the processors while %s was measured: its times are too long"
        log.warning(message, settings.form, extra=coded("compress.other_load", form=settings.form))


def quantize(
    model: Annotated[str, Parameter(help="run, model folder or hub name")],
    /,
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
) -> None:
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
    set_up_process()
    with stdout_for_results():
        check_model(model, run_code=run_code)
        allow_source(data or "")
        columns = {"text": text, "text_pair": text_pair, "label": label}
        record = make_form(model, to, out, data=data, rows=rows, batch_size=batch_size, **columns)
    if json:
        print_json({"output": str(out), **record})
        return
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


def make_form(
    model: str, form: Form, out: Path, data: str | None = None, rows: int = 256, batch_size: int = 32, **columns: Any
) -> dict[str, Any]:
    """Write a smaller form of a model, with a progress bar and a warning where its decisions differ; return its record.

    `data` is a file on whose rows outputs are compared; None: that of the run. `columns` are as for `load_model`.
    """
    with collector_off_for_imports():
        from paratune.compress.quantize import QuantizeJob, evenly, quantize_model, require_quantizable
        from paratune.data.read import read_table
        from paratune.infer.trained import NamedColumns, load_trained

    trained = load_trained(model, NamedColumns(**columns), "cpu")
    require_quantizable(trained, model, form)
    source = data or _file_of_run(trained, model)
    table = read_table(source, model_reading(model))
    checked = trained.read(source, table.take(evenly(table.num_rows, rows)), require_labels=False)
    with Display(speaks=True).bar("quantize", 1) as bar:
        job = QuantizeJob(trained, model, form, checked, batch_size=batch_size, on_batch=bar.show)
        record = quantize_model(job, out)
    agreement = record["check"]["agreement"]
    if agreement is not None and agreement < MIN_AGREEMENT:
        decided = f"{out} decides like {model} in {format_share(agreement)} of {record['check']['num_rows']} rows"
        advice = f"compare the scores with: paratune evaluate {out} --data FILE"
        log.warning("%s; %s", decided, advice, extra=coded("quantize.decisions", agreement=agreement))
    return record


def _file_of_run(trained: Any, model: str) -> str:
    if trained.run is None:
        message = f"{model} is not a run, whose files are known; name a file with --data"
        raise ConfigError(message, code="cli.required", option="--data", target=model)
    data = read_json(trained.run / RUN_FILE)["config"]["data"]
    admit_data(trained.run)
    files = data.get("validation") or data["train"]
    return files if isinstance(files, str) else str(files[0])
