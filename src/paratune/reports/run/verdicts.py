"""Verdicts in a report of runs: the verdicts that `paratune compare` gives for the same runs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paratune.errors import CheckpointError
from paratune.reports.comparison.arrange import baseline_of, by_configuration
from paratune.reports.run.model import Report
from paratune.reports.runs.differing import differs_of
from paratune.reports.systems.judging import MAX_JUDGED, MAX_RUNS
from paratune.verdicts import Margin, Verdict, judge
from paratune.verdicts.rates import noise_kind


def run_verdicts(
    report: Report, baseline: Path | None = None, margins: Mapping[str, Margin] | None = None
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Return a verdict for each configuration but the baseline, and notes on missing verdicts.

    Runs are grouped by their configuration, as in `paratune compare`. Probes are not compared with full runs.
    `baseline` is the folder of a run of the baseline, by default of the first run; `margins` as in `judge`.
    """
    groups = by_configuration(report.runs)
    if len(groups) < 2:
        return (), ()
    base = baseline_of(groups, None if baseline is None else str(baseline))
    by_name = {run.name: run for run in report.runs}
    members = {group.label: [by_name[run.name] for run in group.runs] for group in groups}
    groups = [group for group in groups if members[group.label][0].is_probe == members[base][0].is_probe]
    if len(groups) > MAX_JUDGED or sum(len(group.runs) for group in groups) > MAX_RUNS:
        limit = f"{MAX_JUDGED} configurations and {MAX_RUNS} runs"
        return (), (f"No verdicts on more than {limit}; paratune compare judges any number.",)
    if len(groups) < 2:
        return (), ()
    others = (group.label for group in groups if group.label != base)
    try:
        differs = {label: differs_of(members[base], members[label], frozenset()) for label in others}
        kind = noise_kind(report.runs)
        groups = [replace(group, noise_kind=kind) for group in groups]
        return tuple(judge(groups, base, margins, differs=differs)), ()
    except CheckpointError as error:
        return (), (f"No verdict against {base}: {error}",)
