"""Verdicts on runs that are reported by themselves: those that `paratune compare` gives of the same runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from paratune.errors import CheckpointError
from paratune.report.differing import differs_of
from paratune.report.model import Report
from paratune.report.systems.judging import MAX_JUDGED, MAX_RUNS, verdict_table
from paratune.report.tabular import Table
from paratune.report.versus.arrange import baseline_of, by_configuration
from paratune.verdicts import Margin, Verdict, judge


def run_verdicts(
    report: Report, baseline: Path | None = None, margins: Mapping[str, Margin] | None = None
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Return a verdict of each configuration but the baseline's, and why there is none where there is none.

    Runs are grouped by their configuration, as `paratune compare` groups them; probes are left out beside full runs.

    Args:
        report: The runs.
        baseline: Folder of the run whose configuration the others are compared with; that of the first when None.
        margins: As `judge` takes them.
    """
    groups = by_configuration(report.runs)
    if len(groups) < 2:
        return (), ()
    base = baseline_of(groups, None if baseline is None else str(baseline))
    by_name = {run.name: run for run in report.runs}
    of = {group.label: [by_name[run.name] for run in group.runs] for group in groups}
    groups = [group for group in groups if of[group.label][0].is_probe == of[base][0].is_probe]
    if len(groups) > MAX_JUDGED or sum(len(group.runs) for group in groups) > MAX_RUNS:
        limit = f"{MAX_JUDGED} configurations and {MAX_RUNS} runs"
        return (), (f"No verdicts on more than {limit}; paratune compare judges any number.",)
    if len(groups) < 2:
        return (), ()
    try:
        differs = {
            group.label: differs_of(of[base], of[group.label], frozenset()) for group in groups if group.label != base
        }
        return tuple(judge(groups, base, margins, differs=differs)), ()
    except CheckpointError as error:
        return (), (f"No verdict against {base}: {error}",)


def tables_of_verdicts(report: Report) -> Iterator[Table]:
    """Yield the table of verdicts, where there is one."""
    yield from verdict_table(report.verdicts, report.verdict_notes)
