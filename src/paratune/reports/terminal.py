"""What commands print of a report: the conclusions, the figures that carry them, and warnings, on one screen.

Colours only repeat words: what is shown to be better or worse has one, and nothing that cannot be told apart. A table
that is too wide is divided into blocks of columns, one below the other. Lists get shorter until all fits on a screen.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from paratune.reports.runs.sameness import differing_settings
from paratune.reports.statements import is_better, matrix_statements, run_statements, trust_statements
from paratune.reports.systems.judging import axis_verdicts
from paratune.reports.systems.tables import ALL_IN_JSON, headline_scores, main_table
from paratune.reports.tables.table import Row, Table, make_table
from paratune.reports.text import shorten_all
from paratune.verdicts import Verdict
from paratune.verdicts.words import comparison_words, name_of

_GAP = 2
_HEADING_WIDTH = 22
"""Longest word of a heading over numbers, such as the name of a run; at 80 columns two runs fit side by side."""
Part = Table | Text | Padding
Parts = Iterator[Part]
_STYLES = {True: "green", False: "red", None: ""}
_MAX_LINES = 8  # configurations, differing settings, verdicts or reasons, where a screen has room for them
_FEW_LINES = 4  # with fewer of them, problems of a matrix are named without their sentences
_RUNS_LINES, _SWEEP_LINES, _COMPARISON_LINES = 29, 22, 30  # of a screen; commands print up to three more


@dataclass(frozen=True)
class TerminalParts:
    """Tables and texts that `rich.console.Console.print` prints; texts of records literally, never as markup."""

    parts: Callable[[int], Iterable[Part]]  # by the length of lists, from `_MAX_LINES` down to 1
    num_lines: float = math.inf  # of a screen, on which the printed parts fit if any do

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for most in range(_MAX_LINES, 0, -1):
            shown: list[RichTable | Text | Padding] = []
            last: Part | None = None
            for part in self.parts(most):
                is_table = isinstance(part, Table)
                shown += [Text()] * (is_table and isinstance(last, Table))
                shown += rich_table(part, options.max_width) if isinstance(part, Table) else [part]
                last = part
            if sum(len(console.render_lines(part, options)) for part in shown) <= self.num_lines:
                break
        yield from shown


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
    names, settings = [run.name for run in report.runs], differing_settings(report.runs)

    def parts(most: int) -> Parts:
        if len(names) == 1:
            yield from _one_run(report)
        else:
            yield from _statements(run_statements(report.verdicts))
            yield from (Text(plain(note)) for note in report.verdict_notes)
            if report.sameness.verdict in ("different", "unknown"):
                yield Text(plain(report.sameness.sentence), style="yellow")
            yield main_table(report.systems, settings[:most], 2 * most)
        until: list[Row] = [[row.label, *row.cells[:most]] for row in report.rows if row.measure.group == TARGETS_GROUP]
        yield from [make_table("targets", "", ["", *names[:most]], until)] if until else []
        if report.warnings:
            others = len(report.warnings) - 1
            more = f" And {counted(others, 'other warning')}: see --json." if others else ""
            yield Text(plain(f"Warning: {report.warnings[0]}{more}"), style="yellow")
        yield from _beside(report, len(names), most)

    return TerminalParts(parts, _RUNS_LINES)


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


def _beside(report: Report | Comparison, num_runs: int, most: int) -> Iterator[Text]:
    for certificate in report.certificates:
        text = f"Certificate ({certificate.run_names(num_runs)}): {certificate.sentence} {certificate.path}"
        yield Text(plain(text), style="green" if certificate.verdict == "holds" else "yellow")
    lost = [(run.reason, run.name) for run in report.unfinished]
    yield from _unfinished(lost, num_runs + len(lost), most)


def _unfinished(lost: Sequence[tuple[str, str]], num_runs: int, most: int) -> Iterator[Text]:
    """Yield the first reasons why runs are unfinished, each once; `lost` has the reason and the name of each run."""
    if lost:
        yield Text(f"Unfinished: {len(lost)} of {counted(num_runs, 'run')}", style="bold yellow")
    for reason, names in [*grouped(lost).items()][:most]:
        yield Text(plain(f"{listing(names, 3)}: {reason}"), style="yellow")


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
    conclusions, trust = matrix_statements(report), grouped((item.is_good, item) for item in trust_statements(report))
    problems, unknown = trust.get(False, []), trust.get(None, [])
    # The conclusions have the one choice by validation, without its test scores.
    has_choices = len(report.groups) > 1 or (report.is_choice and report.groups[0].split_shown == "test")
    tables = {section.key: section.tables for section in report.sections}
    lost = [(run.reason, run.name) for run in report.unfinished]

    def parts(most: int) -> Parts:
        is_short = most < _FEW_LINES
        yield from _statements(conclusions if is_short else [*conclusions, *problems])
        for title, found in (("! Problems", problems if is_short else []), ("? Cannot tell", unknown)):
            names = ", ".join(statement.label for statement in found).lower()
            yield from [Text(plain(f"{title}: {names}."))] if found else []
        if has_choices:
            yield replace(chosen_table(report), title="", notes=(), marked=()).first(most, ALL_IN_JSON)
        if report.measured:
            yield main_table(report, most=most)
            yield from (*tables.get("layout", ()), *tables.get("targets", ()))
        yield from _unfinished(lost, len(report.cell_runs), most)

    return TerminalParts(parts, _SWEEP_LINES)


def terminal_comparison(comparison: Comparison) -> TerminalParts:
    """Return the verdicts of a comparison for a terminal, in short where all of them do not fit on a screen."""
    systems, mean = comparison.systems, ", on average over the other axes"
    found = [
        ((verdict.baseline, f"{mean} ({title})" if title else mean), verdict)
        for (_, title), verdicts in axis_verdicts(comparison.effects).items()
        for verdict in verdicts
    ]
    found += [((verdict.baseline, ""), verdict) for verdict in systems.verdicts]
    leading = found[: -len(systems.verdicts)] or found
    reasons = grouped(
        (f"{finding.reason}.", finding.measure)
        for verdict in systems.verdicts if not verdict.differs.refused
        for finding in (verdict.speed, *verdict.quality)
        if finding.reason is not None and finding.outcome != "cannot tell"
    )  # fmt: skip
    notes = [*comparison.notes, *(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items())]

    def parts(most: int) -> Parts:
        is_short = most < _MAX_LINES
        for family in [*grouped(leading).values()][:most]:
            sentences = run_statements(family) if len(family) > 1 else ()  # none of different experiments
            if is_short:
                may_be_faster = any(is_better(verdict.speed) is not False for verdict in family)
                sentences = sentences[:1] if may_be_faster else sentences[1:] or sentences
            yield from _statements(sentences)
        shown = leading[:most] if is_short else found
        for (base, where), family in grouped(shown).items():
            if len(family) > 1:
                yield Text(plain(f"Against {base}{where}:"), style="bold")
            for verdict in family:
                # The first part after the names, and the other parts below it.
                (first, is_good), *others = _short_parts(verdict) if is_short else verdict.parts
                head = plain(verdict.label) if len(family) > 1 else f"{verdict.head}{plain(where)}"
                yield Text(f"{head}: ", style="bold").append(first, style=f"not bold {_STYLES[is_good]}".strip())
                for text, is_good in others:
                    yield Padding(Text(plain(text), style=_STYLES[is_good]), (0, 0, 0, 2), expand=False)
        yield from _beside(comparison, len(systems.runs), most)
        yield from (Text(plain(note), style="dim") for note in notes[: most // 2 if is_short else None])
        if is_short:
            yield Text(f"{len(shown)} of {len(found)} verdicts in short; all: --json, or paratune report --out FOLDER")

    return TerminalParts(parts, _COMPARISON_LINES)


def _short_parts(verdict: Verdict) -> list[tuple[str, bool | None]]:
    """Return the parts of a verdict, without what its configurations are compared in; what is open by name alone."""
    unclear = {
        comparison_words(found, verdict.task): name_of(found)
        for found in (verdict.speed, *verdict.quality)
        if found.outcome == "cannot tell" or (found.change is None and found.code != "placebo")
    }
    parts = replace(verdict, differs=replace(verdict.differs, allowed=())).parts
    names = ", ".join(unclear[text] for text, _ in parts if text in unclear)
    return [*(part for part in parts if part[0] not in unclear), *([(f"cannot tell: {names}", None)] if names else [])]
