"""Commands that read the records of runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.cli.options import Json

Margins = Annotated[
    list[str] | None,
    Parameter(
        name="--margin",
        negative=(),
        help="difference that counts as equal, MEASURE=AMOUNT or PERCENT%: f1=0.01,speed=3%",
    ),
]


def report(
    *runs: Path,
    out: Annotated[
        Path | None, Parameter(help="folder for the page, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)")
    ] = None,
    baseline: Annotated[Path | None, Parameter(help="run with which the others are compared, in per cent")] = None,
    target: Annotated[
        list[str] | None,
        Parameter(negative=(), help="score, such as f1>=0.88: show when each run or configuration first reached it"),
    ] = None,
    price: Annotated[
        float | None, Parameter(help="price of a device-hour, in any currency: adds the cost of runs")
    ] = None,
    plan: Annotated[
        Path | None, Parameter(help="file of paratune plan MATRIX --write: show it beside the published figures")
    ] = None,
    margin: Margins = None,
    data_figures: Annotated[
        bool, Parameter(negative=(), help="add figures of the data to the report of a matrix; reads the data again")
    ] = False,
    json: Json = False,
) -> int:
    """Compare finished runs, or the runs of a matrix: a table in the terminal, a page with figures in --out."""
    from paratune.base.imports import collector_off

    with collector_off():
        from paratune.commands.report import report_command

        return report_command(
            runs,
            out=out,
            as_json=json,
            baseline=baseline,
            targets=target or [],
            price=price,
            plan=plan,
            margins=margin or [],
            data_figures=data_figures,
        )


def watch(
    *paths: Path,
    once: Annotated[
        bool, Parameter(negative=(), help="print one view and exit; also the behaviour without a terminal")
    ] = False,
    interval: Annotated[float, Parameter(help="seconds between two updates")] = 2.0,
    json: Json = False,
) -> int:
    """Show the progress, loss, speed, memory and remaining time of runs and matrices.

    PATHS are runs, matrices or folders of them; default: the running ones below runs/. Only records are read.
    """
    from paratune.commands.watch import watch_command

    return watch_command(paths, once=once, interval=interval, as_json=json)


def compare(
    *runs: str,
    baseline: Annotated[
        str | None, Parameter(help="run, group or value with which the others are compared; default: the first")
    ] = None,
    by: Annotated[list[str] | None, Parameter(negative=(), help="axes of a matrix whose values are compared")] = None,
    margin: Margins = None,
    allow: Annotated[
        list[str] | None,
        Parameter(negative=(), help="what may differ between the runs: batch,model,train,steps,data,tokens,task,kept"),
    ] = None,
    json: Json = False,
) -> int:
    """Compare the speed and the quality of runs with a baseline, with intervals and a verdict in words.

    RUNS are run folders, which are grouped by configuration over seeds and repeats; or groups, each a quoted pattern
    ("runs/a_seed*") or a comma-separated list; or the folder of one matrix.
    """
    from paratune.base.imports import collector_off

    with collector_off():
        from paratune.commands.compare import compare_command

        return compare_command(
            runs, baseline=baseline, by=by or [], margins=margin or [], allow=allow or [], as_json=json
        )
