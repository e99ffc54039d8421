"""`paratune sweep`: a matrix of runs, planned, trained one after the other, and reported."""

from collections.abc import Sequence
from pathlib import Path

from paratune.base.text import plain
from paratune.commands.options import Json, Overrides, RunCode
from paratune.errors import EXIT_OK, ConfigError


def sweep(
    matrix: Path,
    *,
    set_: Overrides = (),
    dry_run: bool = False,
    only: Sequence[str] = (),
    retry_failed: bool = False,
    overwrite: bool = False,
    probe: bool = False,
    list_: bool = False,
    until: str | None = None,
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Train every combination of MATRIX, select the best by validation, and write a report.

    Runs that are impossible here are skipped with the reason. After a crash, repeat the command: finished runs are
    kept, and unfinished runs are resumed.

    Args:
        dry_run: show the runs and their problems; start none
        only: only these runs: AXIS=VALUE[,VALUE] or a pattern of names; repeat it to combine conditions
        retry_failed: train failed runs again
        overwrite: delete and train again the runs whose settings changed in MATRIX
        probe: train only 20 steps of each run, to measure speed, in a separate folder
        list_: print the command of each run, for a cluster; start none
        until: add seeds only until the verdicts are decided on speed, on quality, or on both (decided)
        run_code: also run code that the folders of models and teachers name; that of MATRIX always runs
    """
    from paratune.api.sweep import prepare, steps_to_list, train_matrix
    from paratune.commands.sweep_plan import show_list, show_plan
    from paratune.console import outlive_readers, set_up_logging

    if dry_run and list_:
        message = "--list writes files and --dry-run writes nothing; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--list", "--dry-run"))
    prepared = prepare(
        matrix, set_, "list" if list_ else "show" if dry_run else "train", only=only,
        retry_failed=retry_failed, overwrite=overwrite, probe=probe, until=until,
    )  # fmt: skip
    if dry_run:
        show_plan(prepared.matrix, prepared.plan, prepared.names, retry_failed=retry_failed, as_json=json)
        return EXIT_OK
    if list_:
        set_up_logging(speaks=True)
        show_list(prepared.matrix, steps_to_list(prepared), run_code=run_code, as_json=json)
        return EXIT_OK
    outlive_readers()
    set_up_logging(speaks=True)
    trained = train_matrix(prepared, run_code=run_code)
    _report(prepared.matrix.folder, as_json=json)
    return trained.check()


def _report(folder: Path, *, as_json: bool) -> None:
    """Write the report of a matrix, and print it."""
    from paratune.console import print_json, print_result
    from paratune.records.sweep import REPORT_FOLDER
    from paratune.reports.matrix import make_sweep
    from paratune.reports.terminal import terminal_sweep

    report = make_sweep(folder, folder / REPORT_FOLDER)
    if as_json:
        print_json(report.as_dict(), indent=1)
        return
    print_result(terminal_sweep(report))
    for name, path in (("report", report.files[0]), ("runs", report.folder / "runs"), ("logs", report.folder / "logs")):
        print(f"{name}: {plain(path)}")  # noqa: T201
