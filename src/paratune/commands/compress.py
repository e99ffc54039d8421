"""`paratune compress`: makes smaller forms of a finished run, and measures them beside its model."""

import json as json_format
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paratune.api.apply import check_model
from paratune.api.arguments import several
from paratune.api.threads import respect_quota
from paratune.base.atomic import delete_folder
from paratune.base.imports import collector_off_for_imports
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import format_bytes, format_number
from paratune.commands.options import Json, RunCode
from paratune.console import Display, print_json, print_table, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, CheckpointError, LaunchError, option_error, require_at_least
from paratune.records import MODEL_FOLDER, RUN_FILE, file_sha256, is_finished, predictions_file, read_json, read_run
from paratune.records.compressed import FORMS, FP32, SPLITS, form_folder, locked_forms, measured_folder, read_measured
from paratune.records.own import TASK_FILE, admit_model

if TYPE_CHECKING:
    from paratune.compress.measure import MeasureSettings

log = logging.getLogger(__name__)
PROGRAM = (sys.executable, "-P", "-m", "paratune.compress.measure")


def compress(
    run: Annotated[Path, Parameter(help="folder of a finished run")],
    *,
    to: Sequence[str] = ("bf16", "int8"),
    split: str | None = None,
    rows: int = 1000,
    timed_rows: int = 200,
    batch_size: Sequence[int] = (1, 8, 32),
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Make smaller forms of RUN, and measure each beside its model: size, speed, memory and scores.

    Finished forms and measurements are kept, so that an interrupted command can be repeated. The results are in the
    folder compressed/ of RUN.

    Args:
        to: forms of paratune quantize, separated by commas
        split: set whose rows are scored: test or validation; default test if the run has scored it
        rows: most rows that are scored, evenly spaced
        timed_rows: rows of latency and throughput
        batch_size: batch sizes of the throughput; may be repeated
    """
    forms = read_forms(to)
    for option, value, least in (
        ("--rows", rows, 2),
        ("--timed-rows", timed_rows, 1),
    ):
        require_at_least(option, value, least)
    for size in batch_size:
        require_at_least("--batch-size", size)
    set_up_logging(speaks=True)
    respect_quota()
    check_model(str(run), run_code=run_code)
    split = _split(run, split)
    # Here too: a refusal in the process that measures would be an error of this process.
    admit_model(str(run / MODEL_FOLDER), read_json(run / MODEL_FOLDER / TASK_FILE), run)
    with stdout_for_results(), locked_forms(run), scratch_folder() as scratch:
        with collector_off_for_imports():
            import torch

            from paratune.api.split_rows import split_table
            from paratune.compress.measure import MeasureSettings, evenly
            from paratune.records.predictions import write_table

        source, table = split_table(run, split)
        rows_file = scratch / "rows.parquet"
        write_table(rows_file, table.take(evenly(table.num_rows, rows)))
        sizes = tuple(sorted({1, *batch_size}))
        slices = tuple(read_run(run)["config"]["evaluate"].get("slices") or ())
        folders = {FP32: run / MODEL_FOLDER} | {form: form_folder(run, form) for form in forms}
        with Display(speaks=True).bar("compress", len(folders)) as bar:
            for number, (form, folder) in enumerate(folders.items()):
                bar.update(number, form)
                if form != FP32:
                    _make(run, form, folder)
                out = measured_folder(run, form)
                settings = MeasureSettings(
                    form, str(folder), weights_of(folder), str(rows_file), source, split, slices, sizes, rows,
                    timed_rows, torch.get_num_threads(), str(out),
                )  # fmt: skip
                if not _is_measured(out, settings):
                    log.info("%s", plain(f"measure {form} of {run}"))
                    _measure(settings, scratch / "settings.json", run_code=run_code)
    measured = {form: read_measured(measured_folder(run, form)) for form in folders}
    if json:
        print_json({"run": str(run), "forms": measured}, indent=1)
        return EXIT_OK
    show(measured)
    return EXIT_OK


def read_forms(words: Sequence[str]) -> tuple[str, ...]:
    """Return the forms that an option names.

    Raises:
        ConfigError: One is unknown, or none is named.
    """
    forms = tuple(dict.fromkeys(part.strip() for word in several(words) for part in word.split(",") if part.strip()))
    unknown = next((form for form in forms if form not in FORMS), None)
    if unknown is not None or not forms:
        raise option_error(
            "--to", unknown or "", f"allowed: {', '.join(FORMS)}, several separated by commas", code="cli.invalid_value"
        )
    return forms


def _split(run: Path, wanted: str | None) -> str:
    """Return the split that is scored.

    Raises:
        CheckpointError: `run` is not a finished run, or has no predictions of the split.
        ConfigError: `wanted` is neither test nor validation.
    """
    if wanted is not None and wanted not in SPLITS:
        raise option_error("--split", wanted, f"allowed: {' or '.join(SPLITS)}", code="cli.invalid_value")
    if not (run / RUN_FILE).is_file():
        raise CheckpointError(
            f"{plain(run)} is not the folder of a run; name one, such as runs/NAME", code="run.not_a_run", target=run
        )
    if not is_finished(run) or not (run / MODEL_FOLDER).is_dir():
        raise CheckpointError(
            f"{plain(run)} has no trained model: it is not finished, a probe, or a fitted baseline; finish it with "
            "paratune train --resume, or name another run",
            code="run.not_finished",
            target=run,
        )
    scored = [split for split in SPLITS if (run / predictions_file(split)).is_file()]
    if not scored or (wanted is not None and wanted not in scored):
        message = (
            f"{plain(run)} has no predictions of {wanted or 'test or validation'}; "
            f"it has: {', '.join(scored) or 'none'}"
        )
        raise CheckpointError(message, code="run.no_predictions", target=run, split=wanted)
    return wanted or scored[0]


def weights_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of weights in a model folder, by name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".onnx", ".data"))
    return {path.name: file_sha256(path) for path in files}


def _make(run: Path, form: str, folder: Path) -> None:
    """Make a form, unless the folder has it, made from the present weights; a folder is complete or absent."""
    if folder.exists():
        try:
            source = read_json(folder / "quantized.json")["source"]["weights_sha256"]
        except (CheckpointError, KeyError, TypeError):
            source = None
        if source == weights_of(run / MODEL_FOLDER):
            return
        delete_folder(folder)
    from paratune.commands.quantize import make_form

    make_form(str(run), form, folder)  # type: ignore[arg-type]


def _is_measured(out: Path, settings: "MeasureSettings") -> bool:
    """Return whether a folder has the measurements with these settings."""
    try:
        return bool(read_measured(out)["settings"] == settings.compared)
    except CheckpointError:  # missing or damaged: measured again
        return False


def _measure(settings: "MeasureSettings", path: Path, *, run_code: bool) -> None:
    """Measure a form in a separate process, which ends with this one.

    Raises:
        LaunchError: The process failed.
    """
    from paratune.launch.local import end_with_the_parent

    # The peak of memory belongs to one form only in a process that loads nothing else.
    path.write_text(json_format.dumps(asdict(settings)), encoding="utf-8")
    done = subprocess.run(
        [*PROGRAM, str(path), *(["--run-code"] if run_code else [])],
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
        message = (
            f"{settings.form} of {plain(settings.model)} could not be measured (exit code {done.returncode}): "
            f"{plain(lines[-1])}; repeat the command, finished forms are kept"
        )
        raise LaunchError(message, code="compress.not_measured", form=settings.form, exit_code=done.returncode)


def show(measured: dict[str, dict[str, Any]]) -> None:
    """Print a table with a line for each form; it fits into 80 columns."""
    first = next(iter(measured.values()))
    metrics = [name for name, value in first["scores"].items() if name != "loss" and value is not None][:2]
    header = ("form", "weights", "p50 ms", "p95 ms", "texts/s", "best (batch)", "memory", *metrics)
    rows: list[tuple[Any, ...]] = []
    for form, record in measured.items():
        size, rate = max(record["texts_per_s"].items(), key=lambda item: item[1])
        scores = (f"{value:.4f}" if (value := record["scores"].get(name)) is not None else "n/a" for name in metrics)
        times = (format_number(value, 3) for value in (record["p50_ms"], record["p95_ms"], record["texts_per_s"]["1"]))
        best, memory = f"{format_number(rate, 3)} ({size})", format_bytes(record["peak_bytes"])
        rows.append((form, format_bytes(record["weights_bytes"]), *times, best, memory, *scores))
    print_table(header, rows, right=header[1:], gap=1)
    print(plain(f"scores of {first['num_rows']} rows: {first['source']}"))  # noqa: T201
