"""`paratune glue-submit`: writes predictions of GLUE's test sets for its site."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paratune.base.text import plain
from paratune.commands.options import Json
from paratune.console import print_json
from paratune.errors import EXIT_OK, ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from paratune.submission.tables import TablePredictions


def glue_submit(*runs: str, out: Path, any_size: bool = False, overwrite: bool = False, json: Json = False) -> int:
    """Write predictions of GLUE's test sets in the format of its site.

    RUNS are runs of GLUE tasks with the test sets in data.predict, or TABLE=FILE with a file of `paratune predict`,
    such as RTE=rte.parquet.

    Args:
        out: zip file to write
        any_size: allow numbers of rows that differ from the official ones
        overwrite: replace an existing zip file
    """
    from paratune.submission.tables import TABLES, table_text, write_tables

    if not runs:
        message = "name runs, such as: paratune glue-submit runs/rte runs/mrpc --out rte.zip"
        raise ConfigError(message, code="cli.argument_missing")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; choose another --out, or use --overwrite", code="output.exists", path=out)
    texts = {name: table_text(name, predictions) for name, predictions in _gather(runs).items()}
    errors = [
        f"{name}: {num_rows} rows, and the official test has {TABLES[name].num_rows}; for another test: --any-size"
        for name, text in texts.items()
        if (num_rows := text.count("\n") - 1) != TABLES[name].num_rows and not any_size
    ]
    if errors:
        raise DataError(
            "\n  ".join([f"{out} was not written: GLUE's site would reject it", *errors]), code="submission.incomplete"
        )
    write_tables(out, texts)
    missing = [name for name in TABLES if name not in texts]
    if json:
        print_json({"archive": str(out), "tables": list(texts), "missing": missing})
        return EXIT_OK
    absent = f"; without {', '.join(missing)}" if missing else ""
    print(plain(f"{out}: {', '.join(texts)}{absent}"))  # noqa: T201
    return EXIT_OK


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
