"""The tables of a comparison: all figures of few configurations, or the main changes of many."""

from collections.abc import Sequence

from paratune.base.units import NOT_AVAILABLE, counted, format_as
from paratune.reports.comparison.figures import MEMORY, FigureRow
from paratune.reports.comparison.make import Compared
from paratune.reports.rows.row import byte_unit, numbers
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, make_table
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.words import change_words, is_in_points, label_of, signed_interval_words


def figures_table(compared: Compared) -> Table:
    """Return the figures of all configurations: a column for each, with the changes against the baseline."""
    family, verdicts = compared.family, compared.verdicts
    base = next(group for group in family.groups if group.label == family.baseline)
    groups = [base, *(group for group in family.groups if group is not base)]
    counts = (_count(len(group.runs), group.by_seed) for group in groups)
    rows: list[Row] = [["runs", *counts]]
    rows += [[TableCell(row.label, row.key), *_texts(row, verdicts)] for row in compared.rows]
    baseline = Column(f"{family.baseline} (baseline)", is_repeated=True)
    return make_table("figures", "", [("", "figure"), baseline, *(verdict.label for verdict in verdicts)], rows)


def overview_table(compared: Compared) -> Table:
    """Return the changes in speed, memory and the first score with a line for each configuration."""
    verdicts = compared.verdicts
    measures = dict.fromkeys(verdict.speed.measure for verdict in verdicts)
    score = next((finding.measure for verdict in verdicts for finding in verdict.quality), None)
    columns: list[Heading] = [("", "configuration"), "runs", " or ".join(measures), "memory"]
    if score:
        columns.append(label_of(score) + (" (points)" if is_in_points(score) else ""))
    memory = next((row.findings for row in compared.rows if row.key == MEMORY), None)
    lines = []
    for at, verdict in enumerate(verdicts):
        texts = [verdict.label, str(len(verdict.runs)), _change(verdict.speed)]
        texts.append(NOT_AVAILABLE if memory is None or memory[at].change is None else change_words(memory[at]))
        if score:
            finding = next((finding for finding in verdict.quality if finding.measure == score), None)
            change = NOT_AVAILABLE if finding is None else _change(finding, verdict.task)
            texts.append(change.replace(" points", "").replace(" point", ""))
        lines.append(texts)
    return make_table("overview", "", columns, lines)


def _count(num_runs: int, by_seed: object) -> str:
    num_seeds = len(by_seed) if isinstance(by_seed, dict) else 0
    return str(num_runs) if num_seeds == num_runs else f"{num_runs} ({counted(num_seeds, 'seed')})"


def _texts(row: FigureRow, verdicts: Sequence[Verdict]) -> list[str]:
    """Return the figure of the baseline, and figure, change and interval of each other configuration."""
    base = next((finding.baseline for finding in row.findings if finding.baseline is not None), None)
    values = [base, *(finding.value for finding in row.findings)]
    if row.key == MEMORY:
        unit, size = byte_unit(values)
        figures = [text if text == NOT_AVAILABLE else f"{text} {unit}" for text in numbers(values, size)]
    elif any(not finding.is_ratio for finding in row.findings):
        figures = [format_as(value, ".4f") for value in values]
    else:
        figures = numbers(values)
    changes = (
        "" if finding.change is None else _change(finding, verdict.task)
        for finding, verdict in zip(row.findings, verdicts, strict=True)
    )
    return [figures[0], *(f"{text} {change}".rstrip() for text, change in zip(figures[1:], changes, strict=True))]


def _change(finding: MeasureComparison, task: str = "") -> str:
    if finding.change is None:
        return NOT_AVAILABLE
    interval = signed_interval_words(finding, task)
    change = change_words(finding, task)
    return change if interval == NOT_AVAILABLE else f"{change} {interval}"
