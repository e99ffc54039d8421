"""`paratune glue-submit`: writes predictions of GLUE's test sets for its site."""

from pathlib import Path
from typing import TYPE_CHECKING

from paratune.base.text import plain
from paratune.commands.options import Json, check_output, require_some
from paratune.console import print_json
from paratune.errors import EXIT_OK, ConfigError, DataError

if TYPE_CHECKING:
    from paratune.hub.submission import TablePredictions


def glue_submit(*runs: Path, out: Path, any_size: bool = False, overwrite: bool = False, json: Json = False) -> int:
    """Write predictions of GLUE's test sets in the format of its site.

    RUNS are runs of GLUE tasks with the test sets in data.predict.

    Args:
        out: zip file to write
        any_size: allow numbers of rows that differ from the official ones
        overwrite: replace an existing zip file
    """
    from paratune.hub.submission import TABLES, table_text, write_tables
    from paratune.hub.submission_runs import run_predictions

    require_some(runs, "runs, such as: paratune glue-submit runs/rte runs/mrpc --out rte.zip")
    check_output(out, option="--out", overwrite=overwrite)
    predictions: dict[str, TablePredictions] = {}
    for run in runs:
        for table, predicted in run_predictions(run).items():
            if table in predictions:
                message = f"{table} comes from {predictions[table].source} and from {predicted.source}; name one"
                raise ConfigError(message, code="cli.named_twice", table=table, source=predicted.source)
            predictions[table] = predicted
    texts = {name: table_text(name, predicted) for name, predicted in predictions.items()}
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
