"""`paratune glue-submit`: writes predictions of GLUE's test sets for its site."""

from pathlib import Path

from paratune.base.text import plain
from paratune.commands.options import Json, check_output, require_some
from paratune.console import print_json
from paratune.errors import ConfigError, DataError


def glue_submit(*runs: Path, out: Path, any_size: bool = False, overwrite: bool = False, json: Json = False) -> None:
    """Write predictions of GLUE's test sets in the format of its site.

    RUNS are runs of GLUE tasks with the test sets in data.predict.

    Args:
        out: zip file to write
        any_size: allow numbers of rows that differ from the official ones
        overwrite: replace an existing zip file
    """
    from paratune.hub.submission import TABLES, run_tables, write_tables

    require_some(runs, "runs, such as: paratune glue-submit runs/rte runs/mrpc --out rte.zip")
    check_output(out, option="--out", overwrite=overwrite)
    texts: dict[str, str] = {}
    sources: dict[str, Path] = {}
    for run in runs:
        for table, text in run_tables(run).items():
            if table in texts:
                message = f"{table} comes from {sources[table]} and from {run}; name one"
                raise ConfigError(message, code="cli.conflict", table=table, source=sources[table])
            texts[table], sources[table] = text, run
    errors = [
        f"{name}: {num_rows} rows, and the official test has {TABLES[name].num_rows}; for another test: --any-size"
        for name, text in texts.items()
        if (num_rows := text.count("\n") - 1) != TABLES[name].num_rows and not any_size
    ]
    if errors:
        message = "\n  ".join([f"{out} was not written: GLUE's site would reject it", *errors])
        raise DataError(message, code="submission.invalid")
    write_tables(out, texts)
    missing = [name for name in TABLES if name not in texts]
    if json:
        print_json({"archive": str(out), "tables": list(texts), "missing": missing})
        return
    absent = f"; without {', '.join(missing)}" if missing else ""
    print(plain(f"{out}: {', '.join(texts)}{absent}"))  # noqa: T201
