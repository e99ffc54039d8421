"""Verdicts and figures in a terminal: the verdict first, as many configurations beside each other as fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.report.rows import byte_unit, numbers
from paratune.report.text import shorten_all
from paratune.report.versus.figures import FigureRow
from paratune.report.versus.make import Compared, Comparison
from paratune.report.versus.overview import overview
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.words import change_words, count_words, head_of, parts_of, signed_interval_words

_NAME_WIDTH = 26
_GAP = 2
_BASELINE = "baseline"
_MOST_IN_FULL = 4
"""Configurations beside a baseline up to which all figures are shown; of more a line each."""


@dataclass(frozen=True)
class TerminalComparison:
    """A comparison that rich can print; texts of runs are taken literally, never as markup."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for each in self.comparison.families:
            if each.family.title:
                yield Text(plain(each.family.title), style="bold")
            is_long = len(each.verdicts) > _MOST_IN_FULL
            if is_long:
                yield Text(f"Against {plain(each.family.baseline)}:", style="bold")
            for verdict in each.verdicts:
                yield from _sentence(verdict, is_alone=not is_long)
            yield Text()
            yield from (overview(each),) if is_long else _tables(each, options.max_width)
            yield Text()
        yield from _remarks(self.comparison)


def terminal_comparison(comparison: Comparison) -> TerminalComparison:
    """Return a comparison as something that `rich.console.Console.print` takes."""
    return TerminalComparison(comparison)


_STYLES = {True: "bold green", False: "bold red", None: "bold yellow"}


def _sentence(verdict: Verdict, *, is_alone: bool) -> Iterator[Text | Padding]:
    """Yield the first part behind the names, and the others below it."""
    (first, is_good), *others = parts_of(verdict)
    head = head_of(verdict) if is_alone else plain(verdict.label)
    yield Text(f"{head}: ", style="bold").append(first, style=_STYLES[is_good])
    for text, good in others:
        yield Padding(Text(text, style=_STYLES[good]), (0, 0, 0, 2), expand=False)


def _tables(each: Compared, width: int) -> Iterator[Table | Text | Padding | Group]:
    rows = [(row.label, _texts(row, each.verdicts)) for row in each.rows]
    base = next(group for group in each.family.groups if group.label == each.family.baseline)
    counts = [_runs_text(each, len(base.runs), base.by_seed), *(
        _runs_text(each, len(group.runs), group.by_seed) for group in each.family.groups if group is not base
    )]  # fmt: skip
    first = max(len(label) for label, _ in (*rows, ("runs", ()))) + _GAP
    base_name, *names = _names(each)
    base_width = max(len(base_name), len(_BASELINE), *(len(texts[0]) for _, texts in rows), len(counts[0])) + _GAP
    start = 0
    while start < len(each.verdicts):
        end, used = start, first + base_width
        while end < len(each.verdicts):
            wide = max(len(names[end]), *(len(texts[end + 1]) for _, texts in rows), 0) + _GAP
            if used + wide > width + _GAP and end > start:
                break
            used, end = used + wide, end + 1
        if start:
            yield Text()
        yield _table(each, rows, counts, range(start, end))
        start = end


def _table(each: Compared, rows: Sequence[tuple[str, Sequence[str]]], counts: Sequence[str], of: range) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    base, *names = _names(each)
    table.add_column(Text(f"{base}\n{_BASELINE}"), justify="right")
    for place in of:
        table.add_column(Text(names[place]), justify="right", overflow="fold")
    table.add_row(Text("runs", style="dim"), *(Text(counts[place], style="dim") for place in (0, *(p + 1 for p in of))))
    for label, texts in rows:
        table.add_row(Text(label), Text(texts[0]), *(Text(texts[place + 1]) for place in of))
    return table


def _runs_text(each: Compared, num_runs: int, by_seed: object) -> str:
    seeds = len(by_seed) if isinstance(by_seed, dict) else 0
    return str(num_runs) if seeds == num_runs else f"{num_runs} ({count_words(seeds, 'seed')})"


def _names(each: Compared) -> list[str]:
    """Return how columns are called: the baseline first."""
    return shorten_all([each.family.baseline, *(verdict.label for verdict in each.verdicts)], _NAME_WIDTH)


def _texts(row: FigureRow, verdicts: Sequence[Verdict]) -> list[str]:
    """Return the cells of a row: the baseline's figure, and of each other its figure, change and interval."""
    base = next((found.baseline for found in row.findings if found.baseline is not None), None)
    values = [base, *(found.value for found in row.findings)]
    if row.unit == "bytes":
        unit, size = byte_unit(values)
        figures = numbers([None if value is None else value / size for value in values])
        figures = [text if text == NOT_AVAILABLE else f"{text} {unit}" for text in figures]
    elif any(not found.is_ratio for found in row.findings):
        figures = [NOT_AVAILABLE if value is None else f"{value:.4f}" for value in values]
    else:
        figures = numbers(values)
    changes = [_change(found, verdict.task) for found, verdict in zip(row.findings, verdicts, strict=True)]
    return [figures[0], *(f"{text} {change}".rstrip() for text, change in zip(figures[1:], changes, strict=True))]


def _change(found: MeasureComparison, task: str) -> str:
    if found.change is None:
        return ""
    interval = signed_interval_words(found, task)
    change = change_words(found, task)
    return change if interval == NOT_AVAILABLE else f"{change} {interval}"


def _remarks(comparison: Comparison) -> Iterator[Text]:
    reasons: dict[str, list[str]] = {}
    for each in comparison.families:
        for verdict in each.verdicts:
            for found in (verdict.speed, *verdict.quality):
                if found.reason is not None and not verdict.differs.refused and found.outcome != "cannot tell":
                    reasons.setdefault(found.reason, []).append(found.measure)
    for one in comparison.certificates:
        style = "green" if one.verdict == "holds" else "bold yellow"
        yield Text(plain(f"Certificate ({', '.join(one.runs[:4])}): {one.sentence} {one.path}"), style=style)
    for run in comparison.unfinished:
        yield Text(f"Not compared: {plain(run.name)} ({plain(run.folder)}): {plain(run.reason)}", style="yellow")
    for note in comparison.notes:
        yield Text(plain(note), style="dim")
    for reason, measures in reasons.items():
        yield Text(plain(f"{', '.join(dict.fromkeys(measures))}: {reason}."), style="dim")
