"""`paratune glue-submit`: predictions of GLUE's tests as the benchmark's site takes them, and a check of such a zip."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.config.glue import GLUE
from paratune.console import print_json
from paratune.errors import EXIT_DATA, EXIT_OK, ConfigError, DataError, did_you_mean
from paratune.submission.archive import check_archive, write_archive
from paratune.submission.runs import of_run
from paratune.submission.tables import TABLES, Predicted, SubmissionNote, check, write


def glue_submit_command(
    sources: Sequence[str],
    *,
    out: Path | None,
    check_only: Path | None,
    tasks: str | None,
    any_size: bool,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write a submission, or check one; return the exit code: that of wrong data when something is wrong with it."""
    wanted = _wanted(tasks)
    if check_only is not None:
        if sources or out is not None:
            raise ConfigError(
                "--check reads an existing zip; leave out the runs and --out",
                code="cli.conflict",
                options=("--check", "--out"),
            )
        findings = check_archive(check_only, wanted, any_size=any_size)
        return _say(findings, {"archive": str(check_only)}, as_json=as_json)
    if out is None or not sources:
        raise ConfigError(
            "name runs and --out, such as: paratune glue-submit runs/rte runs/mrpc --out rte.zip; or --check ZIP",
            code="cli.argument_missing",
        )
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; choose another --out, or use --overwrite", code="output.exists", path=out)
    predicted = _gather(sources)
    texts = {name: write(name, each) for name, each in predicted.items()}
    findings = [found for name, text in texts.items() for found in check(name, text, any_size=any_size)]
    errors = [str(found) for found in findings if found.is_error]
    if errors:
        raise DataError(
            "\n  ".join([f"{out} was not written: its site would refuse it", *errors]), code="submission.incomplete"
        )
    write_archive(out, texts)
    findings += [SubmissionNote(name, "is not in it", is_error=False) for name in wanted if name not in texts]
    return _say(findings, {"archive": str(out), "tables": list(texts)}, as_json=as_json)


def _wanted(tasks: str | None) -> list[str]:
    """Return the tables of the tasks that were named; all when none were."""
    if tasks is None:
        return list(TABLES)
    named = [task.strip().lower() for task in tasks.split(",")]
    unknown = [task for task in named if task not in GLUE and task != "ax"]
    if unknown:
        raise ConfigError(
            f"--tasks: {unknown[0]!r} is not a task of GLUE{did_you_mean(unknown[0], [*GLUE, 'ax'])}; "
            f"allowed: {', '.join(GLUE)} and ax",
            code="cli.unknown_name",
            option="--tasks",
        )
    return [name for name, table in TABLES.items() if ("ax" if name == "AX.tsv" else table.task) in named]


def _gather(sources: Sequence[str]) -> dict[str, Predicted]:
    found: dict[str, Predicted] = {}
    for source in sources:
        name, equals, file = source.partition("=")
        own = {_table_name(name): _of_file(file)} if equals and not Path(source).exists() else of_run(Path(source))
        for table, predicted in own.items():
            if table in found:
                raise ConfigError(
                    f"{table} comes from {found[table].source} and from {predicted.source}; name one",
                    code="cli.named_twice",
                    table=table,
                    source=predicted.source,
                )
            found[table] = predicted
    return found


def _table_name(name: str) -> str:
    names = {each.removesuffix(".tsv").lower(): each for each in TABLES}
    key = name.removesuffix(".tsv").lower()
    if key not in names:
        known = ", ".join(each.removesuffix(".tsv") for each in TABLES)
        raise ConfigError(
            f"{name!r} is not a table of a submission{did_you_mean(name, TABLES)}; allowed: {known}",
            code="cli.unknown_name",
            name=name,
        )
    return names[key]


def _of_file(file: str) -> Predicted:
    """Return the predictions in a file that `paratune predict` wrote: all rows of the test, in its order."""
    from paratune.data.read import read_table

    table = read_table(file)
    if "prediction" not in table.column_names:
        raise DataError(
            f"{file} has no column `prediction`; write it with: paratune predict RUN --input TEST --output ...",
            code="data.column_missing",
            file=file,
        )
    values = [None if value == "" else value for value in table["prediction"].to_pylist()]
    return Predicted(file, range(table.num_rows), values, table.num_rows)


def _say(findings: Sequence[SubmissionNote], about: dict[str, Any], *, as_json: bool) -> int:
    errors, notes = ([str(each) for each in findings if each.is_error is kind] for kind in (True, False))
    if as_json:
        print_json({**about, "errors": errors, "warnings": notes})
    else:
        for line in [*errors, *(f"warning: {note}" for note in notes)]:
            print(plain(line))  # noqa: T201
        number = f"{len(errors)} problem{'s' * (len(errors) > 1)}" if errors else "no problems"
        verdict = f"{number}, {len(notes)} warnings" if notes else number
        print(plain(f"{about['archive']}: {verdict}"))  # noqa: T201
    return EXIT_DATA if errors else EXIT_OK
