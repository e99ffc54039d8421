"""Commands that read the records of runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.cli.options import Json


def report(
    *runs: Path,
    out: Annotated[
        Path | None, Parameter(help="folder for the page, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)")
    ] = None,
    baseline: Annotated[
        Path | None, Parameter(help="run whose figures the others are compared with, in per cent")
    ] = None,
    target: Annotated[
        list[str] | None,
        Parameter(negative=(), help="score, such as f1>=0.88: when each run, or those of a matrix, first reached it"),
    ] = None,
    price: Annotated[float | None, Parameter(help="of a device-hour, in any currency: adds what runs cost")] = None,
    json: Json = False,
) -> int:
    """Put finished runs, or those of a matrix, beside each other: a table here, a page with figures in --out."""
    from paratune.base.imports import collector_off

    with collector_off():
        from paratune.commands.report import report_command

        return report_command(runs, out=out, as_json=json, baseline=baseline, targets=target or [], price=price)


def watch(
    *paths: Path,
    once: Annotated[bool, Parameter(negative=(), help="print one view and end, as where there is no terminal")] = False,
    interval: Annotated[float, Parameter(help="seconds between two looks")] = 2.0,
    json: Json = False,
) -> int:
    """Show what runs and matrices are at, from their records alone: progress, loss, speed, memory, time left.

    PATHS are runs, matrices or folders of them; without any, what is running below runs. Nothing of them is touched.
    """
    from paratune.commands.watch import watch_command

    return watch_command(paths, once=once, interval=interval, as_json=json)


def compare(
    *runs: str,
    baseline: Annotated[
        str | None, Parameter(help="run, group or value that the others are held against; the first if none")
    ] = None,
    by: Annotated[list[str] | None, Parameter(negative=(), help="axes of a matrix whose values are compared")] = None,
    margin: Annotated[
        list[str] | None,
        Parameter(negative=(), help="MEASURE=AMOUNT or PERCENT% that counts as equal: f1=0.01,speed=3%"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        Parameter(
            negative=(), help="what may differ because it is compared: batch,model,train,steps,data,tokens,task,kept"
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Say how much faster runs are than a baseline, and whether they are as good, with intervals and words.

    RUNS are run folders, grouped by their configuration over seeds and repeats; or groups, each a quoted pattern
    ("runs/a_seed*") or a list with commas; or the folder of one matrix.
    """
    from paratune.base.imports import collector_off

    with collector_off():
        from paratune.commands.compare import compare_command

        return compare_command(
            runs, baseline=baseline, by=by or [], margins=margin or [], allow=allow or [], as_json=json
        )
