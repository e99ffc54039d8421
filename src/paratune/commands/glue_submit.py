"""`paratune glue-submit`: writes predictions of GLUE's test sets for its site, or checks such a zip file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.text import plain
from paratune.commands.options import Json
from paratune.console import print_json
from paratune.errors import EXIT_DATA, EXIT_OK, ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from paratune.submission.tables import SubmissionNote, TablePredictions


def glue_submit(
    *runs: str,
    out: Path | None = None,
    check: Path | None = None,
    tasks: str | None = None,
    any_size: bool = False,
    overwrite: bool = False,
    json: Json = False,
) -> int:
    """Write predictions of GLUE's test sets in the format of its site, or check such a zip file.

    RUNS are runs of GLUE tasks with the test sets in data.predict, or TABLE=FILE with a file of `paratune predict`,
    such as RTE=rte.parquet.

    Args:
        out: zip file to write
        check: zip file to check; nothing is written
        tasks: tables that the zip must contain, comma-separated; default: all of GLUE
        any_size: allow numbers of rows that differ from the official ones
        overwrite: replace an existing zip file
    """
    from paratune.submission.archive import check_archive, write_archive
    from paratune.submission.tables import SubmissionNote, check_table, table_text

    names = _table_names(tasks)
    if check is not None:
        if runs or out is not None:
            message = "--check reads an existing zip; leave out the runs and --out"
            raise ConfigError(message, code="cli.conflict", options=("--check", "--out"))
        findings = check_archive(check, names, any_size=any_size)
        return _print_findings(findings, {"archive": str(check)}, as_json=json)
    if out is None or not runs:
        message = "name runs and --out, such as: paratune glue-submit runs/rte runs/mrpc --out rte.zip; or --check ZIP"
        raise ConfigError(message, code="cli.argument_missing")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; choose another --out, or use --overwrite", code="output.exists", path=out)
    predicted = _gather(runs)
    texts = {name: table_text(name, predictions) for name, predictions in predicted.items()}
    findings = [note for name, text in texts.items() for note in check_table(name, text, any_size=any_size)]
    errors = [str(note) for note in findings if note.is_error]
    if errors:
        raise DataError(
            "\n  ".join([f"{out} was not written: GLUE's site would reject it", *errors]), code="submission.incomplete"
        )
    write_archive(out, texts)
    findings += [SubmissionNote(name, "is missing", is_error=False) for name in names if name not in texts]
    return _print_findings(findings, {"archive": str(out), "tables": list(texts)}, as_json=json)


def _table_names(tasks: str | None) -> list[str]:
    """Return the tables of the named tasks; all tables for None."""
    from paratune.config.glue import GLUE
    from paratune.submission.tables import TABLES

    if tasks is None:
        return list(TABLES)
    named = [task.strip().lower() for task in tasks.split(",")]
    unknown = [task for task in named if task not in GLUE and task != "ax"]
    if unknown:
        message = (
            f"--tasks: {unknown[0]!r} is not a task of GLUE{did_you_mean(unknown[0], [*GLUE, 'ax'])}; "
            f"allowed: {', '.join(GLUE)} and ax"
        )
        raise ConfigError(message, code="cli.unknown_name", option="--tasks")
    return [name for name, table in TABLES.items() if ("ax" if name == "AX.tsv" else table.task) in named]


def _gather(sources: Sequence[str]) -> dict[str, "TablePredictions"]:
    from paratune.submission.runs import run_predictions

    predictions: dict[str, TablePredictions] = {}
    for source in sources:
        name, equals, file = source.partition("=")
        own = (
            {_table_name(name): _read_predictions(file)}
            if equals and not Path(source).exists()
            else run_predictions(Path(source))
        )
        for table, predicted in own.items():
            if table in predictions:
                message = f"{table} comes from {predictions[table].source} and from {predicted.source}; name one"
                raise ConfigError(message, code="cli.named_twice", table=table, source=predicted.source)
            predictions[table] = predicted
    return predictions


def _table_name(name: str) -> str:
    from paratune.submission.tables import TABLES

    names = {table.removesuffix(".tsv").lower(): table for table in TABLES}
    key = name.removesuffix(".tsv").lower()
    if key not in names:
        known = ", ".join(table.removesuffix(".tsv") for table in TABLES)
        message = f"{name!r} is not a table of a submission{did_you_mean(name, TABLES)}; allowed: {known}"
        raise ConfigError(message, code="cli.unknown_name", name=name)
    return names[key]


def _read_predictions(file: str) -> "TablePredictions":
    """Return the predictions in a file of `paratune predict`: all rows of the test set, in order."""
    from paratune.data.read import read_table
    from paratune.submission.tables import TablePredictions

    table = read_table(file)
    if "prediction" not in table.column_names:
        message = f"{file} has no column `prediction`; write it with: paratune predict RUN --input TEST --output ..."
        raise DataError(message, code="data.column_missing", file=file)
    values = [None if value == "" else value for value in table["prediction"].to_pylist()]
    return TablePredictions(file, range(table.num_rows), values, table.num_rows)


def _print_findings(findings: Sequence["SubmissionNote"], about: dict[str, Any], *, as_json: bool) -> int:
    errors, notes = ([str(note) for note in findings if note.is_error is is_error] for is_error in (True, False))
    if as_json:
        print_json({**about, "errors": errors, "warnings": notes})
    else:
        for line in [*errors, *(f"warning: {note}" for note in notes)]:
            print(plain(line))  # noqa: T201
        number = f"{len(errors)} problem{'s' * (len(errors) > 1)}" if errors else "no problems"
        verdict = f"{number}, {len(notes)} warnings" if notes else number
        print(plain(f"{about['archive']}: {verdict}"))  # noqa: T201
    return EXIT_DATA if errors else EXIT_OK
