"""Verdicts on the configurations of a matrix, each compared with its baseline in speed and quality."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paratune import verdicts
from paratune.base.grouping import grouped
from paratune.errors import CheckpointError
from paratune.records.finished import RunRecord
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.efficiency import noise_kind_of
from paratune.reports.systems.labels import drawn_configurations
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table, TableCell, make_table
from paratune.verdicts import Margin, Verdict
from paratune.verdicts.sequential import look_history
from paratune.verdicts.words import head_of

MAX_JUDGED = 24
"""Configurations with a verdict; of more only the fastest have one."""
MAX_RUNS = 240
"""Runs whose predictions are read."""


def judged(
    systems: Systems, margins: Mapping[str, Margin] | None = None, *, all_of_them: bool = False
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Return the verdicts of a matrix, and notes on missing verdicts.

    At most `MAX_JUDGED` configurations and `MAX_RUNS` runs are judged unless `all_of_them`; `margins` as in `judge`.
    """
    members, selection = list(systems.measured), ""
    if not all_of_them:
        members, selection = drawn_configurations(systems, systems.measured, MAX_JUDGED)
    while not all_of_them and sum(len(configuration.runs) for configuration in members) > MAX_RUNS and len(members) > 1:
        members, selection = drawn_configurations(systems, systems.measured, len(members) - 1)
    families: dict[int, list[Configuration]] = {}
    for configuration in members:
        base = systems.baseline_of(configuration)
        if configuration is not base and configuration.is_probe == base.is_probe:
            families.setdefault(id(base), [base]).append(configuration)
    judgements: list[Verdict] = []
    notes = [selection.replace("Drawn", "Judged")] * bool(selection)
    for family in families.values():
        try:
            judgements += _of_family(systems, family, margins)
        except CheckpointError as error:
            notes.append(f"No verdict against {family[0].label}: {error}")
    return tuple(judgements), tuple(notes)


def verdict_table(judgements: Sequence[Verdict], remarks: Sequence[str], *, is_closed: bool = False) -> Iterator[Table]:
    """Yield the table of verdicts with a sentence for each configuration; closed in a page that has a figure of them.

    Notes that differ only in their figures are one note, with the configurations that they apply to.
    """
    if not judgements and not remarks:
        return
    rows = []
    for verdict in judgements:
        words = verdict.sentence.removeprefix(f"{head_of(verdict)}: ")  # names may contain ": " themselves
        text = TableCell(f"{words[:1].upper()}{words[1:]}", runs=(*verdict.runs, *verdict.baseline_runs))
        rows.append((TableCell(verdict.label, runs=verdict.runs), text))
    bases = list(dict.fromkeys(verdict.baseline for verdict in judgements))
    against = f"Each configuration against the baseline of its kind: {'; '.join(bases)}."
    if len(bases) == 1:
        against = f"Against {bases[0]}."
    level = "Intervals are 95% confidence intervals; those against one baseline are corrected for their number."
    notes = (*filter(None, (against, level, *remarks)), *_shared_notes(judgements))
    title = "Verdicts in words" if is_closed else "Verdicts"
    columns = (("Configuration", "configuration"), ("Verdict", "verdict"))
    yield make_table("verdicts", title, columns, rows, 2, notes, is_closed=is_closed)


def _shared_notes(judgements: Sequence[Verdict]) -> Iterator[str]:
    """Yield each note once, as a sentence, with its configurations if it does not apply to all of them."""
    labels = grouped((note, verdict.label) for verdict in judgements for note in verdict.notes)
    for note, names in labels.items():
        sentence = f"{note[:1].upper()}{note[1:]}."
        yield sentence if len(names) == len(judgements) else f"{', '.join(names)}: {sentence}"


def _of_family(
    systems: Systems, family: Sequence[Configuration], margins: Mapping[str, Margin] | None
) -> list[Verdict]:
    """Return the verdicts of configurations against the first of them."""
    base, *others = family
    return verdicts.judge(
        [replace(group_of(configuration), noise_kind=noise_kind_of(systems)) for configuration in family],
        base.label,
        margins,
        differs={configuration.label: systems.differs(configuration, base) for configuration in others},
        history=look_history(systems.record),
    )


def group_of(configuration: Configuration) -> verdicts.Group:
    """Return the runs of a configuration as verdicts compare them: probes without scores."""
    runs = configuration.runs
    return verdicts.Group(configuration.label, tuple(map(_without_scores, runs)) if configuration.is_probe else runs)


def _without_scores(run: RunRecord) -> RunRecord:
    """Return a probe without the scores of its few steps."""
    return replace(run, summary=run.summary.model_copy(update={"scores": {}}))
