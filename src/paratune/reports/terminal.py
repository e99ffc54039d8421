"""What commands print of a report: the conclusions, the figures that carry them, and warnings, on one screen.

Colours only repeat words: what is shown to be better or worse has one, and nothing that cannot be told apart. A table
that is too wide is divided into blocks of columns, one below the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.base.units import counted, format_as, format_bytes, format_count, format_duration, format_number
from paratune.reports.comparison import Comparison
from paratune.reports.document import Statement
from paratune.reports.measures import metric_name
from paratune.reports.outcomes import SweepReport, chosen_table
from paratune.reports.rows import TARGETS_GROUP
from paratune.reports.run import Report
from paratune.reports.runs.read import Certificate, Unfinished
from paratune.reports.runs.sameness import differing_settings
from paratune.reports.statements import matrix_statements, run_statements, trust_statements
from paratune.reports.systems.judging import axis_verdicts
from paratune.reports.systems.tables import headline_scores, main_table
from paratune.reports.tables.table import Row, Table, make_table
from paratune.reports.text import shorten_all
from paratune.verdicts import Verdict

_GAP = 2
_HEADING_WIDTH = 22
"""Longest word of a heading over numbers, such as the name of a run; at 80 columns two runs fit side by side."""
Part = Table | Text | Padding
Parts = Iterator[Part]
_STYLES = {True: "green", False: "red", None: ""}
_MAX_LINES = 8  # configurations, differing settings or reasons; the files have all


@dataclass(frozen=True)
class TerminalParts:
    """Tables and texts that `rich.console.Console.print` prints; texts of records literally, never as markup."""

    parts: Sequence[Table | Text | Padding]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self.parts):
            if isinstance(part, Table):
                yield from [Text()] * (number > 0 and isinstance(self.parts[number - 1], Table))
                yield from rich_table(part, options.max_width)
            else:
                yield part


def rich_table(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Yield title, columns and notes of a table for a terminal of this width; texts of records appear literally."""
    headings = [plain(label).split() for label in table.header]
    words = {word for label in headings[table.num_labels :] for word in label if cell_len(word) > _HEADING_WIDTH}
    short = dict(zip(words, shorten_all([*words], _HEADING_WIDTH), strict=True))
    headings = [[short.get(word, word) for word in label] for label in headings]
    # Rich narrows the widest columns first when space is short, and would wrap numbers before headings.
    widths = [
        max(cell_len(text) for text in (*label, *(plain(row[at]) for row in table.rows), ""))
        for at, label in enumerate(headings)
    ]
    if table.title:
        yield Text(plain(table.title), style="bold")
    spaced = [least + _GAP for least in widths]
    blocks = [list(range(len(widths)))] if table.is_text else table.blocks(spaced, width + _GAP)
    for number, columns in enumerate(blocks):
        yield from [Text()] * (number > 0)
        whole = [max(widths[at], cell_len(" ".join(headings[at]))) for at in columns]
        space = width - _GAP * (len(columns) - 1)
        wrapped = [widths[at] for at in columns]
        fixed = next((fitting for fitting in (whole, wrapped) if sum(fitting) <= space), [None] * len(columns))
        rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for at, least in zip(columns, fixed, strict=True):
            side: JustifyMethod = "left" if at < table.num_labels else "right"
            rich.add_column(Text(" ".join(headings[at])), justify=side, overflow="fold", width=least)
        own = [at for at in columns if at >= table.num_names]
        for position, line in enumerate(table.lines):
            # A block leaves out the lines of which it has no value.
            if len(blocks) == 1 or any(line[at].is_known and line[at].text for at in own):
                style = "bold" if position in table.marked else None
                rich.add_row(*(Text(plain(line[at].shown)) for at in columns), style=style)
        yield rich
    for note in table.notes:
        yield Text(plain(note), style="dim")


def terminal_runs(report: Report) -> TerminalParts:
    """Return a report of runs as an object that `rich.console.Console.print` prints."""
    parts: list[Part] = []
    if len(report.runs) == 1:
        parts += _one_run(report)
    else:
        parts += _statements(run_statements(report.verdicts))
        parts += (Text(plain(note)) for note in report.verdict_notes)
        if report.sameness.verdict in ("different", "unknown"):
            parts.append(Text(plain(report.sameness.sentence), style="yellow"))
        parts.append(main_table(report.systems, differing_settings(report.runs)[:_MAX_LINES], 2 * _MAX_LINES))
    names, most = [run.name for run in report.runs], _MAX_LINES
    until: list[Row] = [[row.label, *row.cells[:most]] for row in report.rows if row.measure.group == TARGETS_GROUP]
    parts += [make_table("targets", "", ["", *names[:most]], until)] if until else []
    if report.warnings:
        more = f" And {counted(len(report.warnings) - 1, 'other warning')}: see --json." if report.warnings[1:] else ""
        parts.append(Text(plain(f"Warning: {report.warnings[0]}{more}"), style="yellow"))
    return TerminalParts([*parts, *_beside(report.certificates, report.unfinished, len(names))])


def _one_run(report: Report) -> Parts:
    (run,) = report.runs
    headline = headline_scores(report.runs) if not run.is_probe else []
    metrics = list(dict.fromkeys(metric for _, metric in headline))
    name = run.summary.baseline.predicts or "constant answer"
    rows: list[Row] = []
    for split in dict.fromkeys(split for split, _ in headline):
        for label, scores in ((split, run.summary.scores), (f"{split}, {name}", run.summary.baseline.scores)):
            values = [scores.get(split, {}).get(metric) for metric in metrics]
            if any(value is not None for value in values):
                rows.append([label, *(format_as(value, ".4f") for value in values)])
    if headline:
        kept, steps = run.summary.kept_step, run.summary.num_steps
        heading = "" if kept is None else f"Kept: step {format_count(kept)} of {format_count(steps)}"
        yield make_table("scores", "", [heading, *map(metric_name, metrics)], rows)
    train_s, total_s = run.summary.time.train_s, run.summary.time.total_s
    rate, memory = run.summary.throughput.samples_per_s, run.summary.memory.largest_bytes
    yield Text(
        f"Time {format_duration(total_s)}, training {format_duration(train_s)}; {format_number(rate, 3)} samples/s; "
        f"peak memory {format_bytes(memory)}{' a rank' if (run.run.world_size or 1) > 1 else ''}"
    )


def _beside(certificates: Iterable[Certificate], unfinished: Iterable[Unfinished], num_runs: int) -> Iterator[Text]:
    for certificate in certificates:
        text = f"Certificate ({certificate.run_names(num_runs)}): {certificate.sentence} {certificate.path}"
        yield Text(plain(text), style="green" if certificate.verdict == "holds" else "yellow")
    for run in unfinished:
        yield Text(f"Without results: {plain(run.name)} ({plain(run.folder)}): {plain(run.reason)}", style="yellow")


def _statements(statements: Iterable[Statement]) -> Iterator[Text]:
    """Yield a line for each statement; only the sign of a decided one has a colour."""
    for statement in statements:
        yield (
            Text(f"{statement.sign} ", style={True: "green", False: "yellow", None: ""}[statement.is_good])
            .append(f"{plain(statement.label)}: ", style="bold")
            .append(plain(statement.text), style="not bold")
        )


def terminal_sweep(report: SweepReport) -> TerminalParts:
    """Return the conclusions of a matrix, the chosen candidates and the configurations for a terminal."""
    trust = trust_statements(report)
    problems = [statement for statement in trust if statement.is_good is False]
    parts: list[Part] = [*_statements([*matrix_statements(report), *problems])]
    if unknown := [statement.label for statement in trust if statement.is_good is None]:
        parts.append(Text(plain(f"? Cannot tell: {', '.join(unknown).lower()}.")))
    if len(report.groups) > 1 or any(len(group.candidates) > 1 for group in report.groups):
        parts.append(replace(chosen_table(report), notes=(), marked=()).first(_MAX_LINES, "the report has all of them"))
    if report.measured:
        tables = {section.key: section.tables for section in report.sections}
        parts += [main_table(report, most=_MAX_LINES), *tables.get("layout", ()), *tables.get("targets", ())]
    lost = [cell_run for cell_run in report.cell_runs if cell_run.record is None]
    if lost:
        heading = f"Without results: {len(lost)} of {counted(len(report.cell_runs), 'run')}"
        parts.append(Text(heading, style="bold yellow"))
    reasons = grouped((cell_run.reason or "unknown", cell_run.cell.name) for cell_run in lost)
    for reason, names in list(reasons.items())[:_MAX_LINES]:
        parts.append(Text(plain(f"{listing(names, 3)}: {reason}"), style="yellow"))
    return TerminalParts(parts)


def terminal_comparison(comparison: Comparison) -> TerminalParts:
    """Return the verdicts of a comparison for a terminal."""
    verdicts = comparison.systems.verdicts
    parts: list[Part] = []
    for family in grouped((verdict.baseline, verdict) for verdict in verdicts).values():
        parts += _family(family)
    for (axis, title), effects in axis_verdicts(comparison.effects).items():
        where = f" ({plain(title)})" if title else ""
        parts.append(Text(f"Of {plain(axis)}, on average over the other axes{where}:", style="bold"))
        parts += (_indented(verdict.sentence) for verdict in effects)
    parts += _beside(comparison.certificates, comparison.unfinished, 0)
    reasons = grouped(
        (f"{finding.reason}.", finding.measure)
        for verdict in verdicts if not verdict.differs.refused
        for finding in (verdict.speed, *verdict.quality)
        if finding.reason is not None and finding.outcome != "cannot tell"
    )  # fmt: skip
    notes = [*comparison.notes, *(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items())]
    return TerminalParts([*parts, *(Text(plain(note), style="dim") for note in notes)])


def _family(verdicts: Sequence[Verdict]) -> Parts:
    is_long = len(verdicts) > 1
    if is_long:
        yield from _statements(run_statements(verdicts))
        yield Text(f"Against {plain(verdicts[0].baseline)}:", style="bold")
    for verdict in verdicts:
        # The first part after the names, and the other parts below it.
        (first, is_better), *others = verdict.parts
        head = Text(f"{plain(verdict.label) if is_long else verdict.head}: ", style="bold")
        yield head.append(first, style=f"not bold {_STYLES[is_better]}".strip())
        yield from (_indented(text, _STYLES[is_better]) for text, is_better in others)


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(plain(text), style=style), (0, 0, 0, 2), expand=False)
