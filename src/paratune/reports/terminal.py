"""What commands print of a report: the conclusions, the figures that carry them, and warnings, on one screen.

Colours only repeat words: what is shown to be better or worse has one, and nothing that cannot be told apart. A table
that is too wide is divided into blocks of columns, one below the other. What does not fit on the screen is counted.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.base.units import (
    NOT_AVAILABLE,
    counted,
    format_as,
    format_bytes,
    format_count,
    format_duration,
    format_number,
)
from paratune.config.metric_names import metric_name
from paratune.reports.comparison import Comparison
from paratune.reports.document import Statement
from paratune.reports.outcomes import SweepReport, chosen_table
from paratune.reports.rows import TARGETS_GROUP
from paratune.reports.run import Report
from paratune.reports.runs.read import Certificate, Unfinished
from paratune.reports.runs.sameness import Difference, differing_settings
from paratune.reports.statements import MAX_SENTENCES, is_better, matrix_statements, run_statements, trust_statements
from paratune.reports.systems.judging import axis_verdicts
from paratune.reports.systems.model import Systems
from paratune.reports.systems.tables import MAX_BESIDE, headline_scores, main_table
from paratune.reports.tables.table import Row, Table, TableCell, make_table
from paratune.reports.text import shorten_all
from paratune.verdicts import Verdict
from paratune.verdicts.words import NOT_IN_POINTS, change_words, name_of, signed_interval_words

_GAP = 2
_HEADING_WIDTH = 22
"""Longest word of a heading over numbers, such as the name of a run; at 80 columns two runs fit side by side."""
_STYLES = {True: "green", False: "red", None: ""}
TRAIN_LINES, SWEEP_LINES, REPORT_LINES, _COMPARISON_LINES = 9, 22, 28, 30  # commands print up to three more
Part = Text | Padding | Table


@dataclass(frozen=True)
class TextBlock:
    """Things of one kind on a screen, of which it shows as many as fit."""

    noun: str  # one of them
    content: Sequence[Text] | Table  # a text or a line for each, the most important ones first
    rank: int = 0  # blocks of a lower rank get their lines before those of a higher one
    whole: Sequence[Part] = ()  # a longer form of all of them, shown where it fits

    @property
    def num(self) -> int:
        return len(self.content.lines if isinstance(self.content, Table) else self.content)

    def parts(self, num: int) -> Sequence[Part]:
        """Return the first ones, or the longer form for a number above that of all; nothing for 0."""
        if not num or num > self.num:
            return self.whole if num else ()
        if isinstance(self.content, Table):
            return [replace(self.content, lines=self.content.lines[:num])]
        return self.content[:num]


@dataclass(frozen=True)
class TextScreen:
    """Blocks that `rich.console.Console.print` prints; texts of records literally, never as markup."""

    blocks: Sequence[TextBlock]
    num_lines: float = math.inf
    place: str = ""  # where the rest is

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blocks = [block for block in self.blocks if block.num]

        @cache
        def lines_of(at: int, num: int) -> list[list[Segment]]:
            parts = blocks[at].parts(num)
            rich = [rich_table(part, options.max_width) if isinstance(part, Table) else [part] for part in parts]
            return [line for some in rich for one in some for line in console.render_lines(one, options, pad=False)]

        def screen(shown: Sequence[int]) -> list[list[Segment]]:
            lines: list[list[Segment]] = []
            is_below_table = False
            for at, (block, num) in enumerate(zip(blocks, shown, strict=True)):
                if num:
                    is_table = isinstance(block.content, Table)
                    lines += [[]] * (is_table and is_below_table) + lines_of(at, num)
                    is_below_table = is_table
            left = grouped((block.noun, max(0, block.num - num)) for block, num in zip(blocks, shown, strict=True))
            if more := [counted(sum(numbers), noun) for noun, numbers in left.items() if any(numbers)]:
                text = Text(f"Not shown: {', '.join(more)}{self.place}.", style="dim")
                lines += console.render_lines(text, options, pad=False)
            return lines

        # All blocks get a text or a few lines, then all that fits. A table of a baseline alone compares nothing.
        least = [(4, 2) if isinstance(block.content, Table) else (1, 1) for block in blocks]
        few = [(min(block.num, most), min(block.num, some)) for block, (most, some) in zip(blocks, least, strict=True)]
        all_of_it = [int(min(block.num, self.num_lines)) + bool(block.whole) for block in blocks]
        shown, order = [0] * len(blocks), sorted(range(len(blocks)), key=lambda at: blocks[at].rank)
        for at, most in [*((at, few[at][0]) for at in order), *((at, all_of_it[at]) for at in order)]:
            for num in range(most, max(shown[at] + 1, few[at][1]) - 1, -1):
                trial = [num if place == at else own for place, own in enumerate(shown)]
                if len(screen(trial)) <= self.num_lines:
                    shown = trial
                    break
        for line in screen(shown):
            yield from line
            yield Segment.line()


def rich_table(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Yield title, columns and notes of a table for a terminal of this width; texts of records appear literally."""
    labels = [plain(label).split() for label in table.header]
    long = list({word for label in labels[table.num_labels :] for word in label if cell_len(word) > _HEADING_WIDTH})
    short = dict(zip(long, shorten_all(long, _HEADING_WIDTH), strict=True))
    headings = [" ".join(short.get(word, word) for word in label) for label in labels]
    cells = [max((cell_len(plain(row[at])) for row in table.rows), default=0) for at in range(len(headings))]
    # Rich narrows the widest columns first when space is short, and would wrap numbers before headings.
    least = [max(own, _heading_width(label, len(label))) for own, label in zip(cells, headings, strict=True)]
    if table.title:
        yield Text(plain(table.title), style="bold")
    groups = dict(table.groups)
    blocks = [[*range(len(least))]]
    if not table.is_text:
        blocks = table.blocks([own + _GAP for own in least], width + _GAP)
    for number, columns in enumerate(blocks):
        yield from [Text()] * (number > 0)
        by_lines = ([max(cells[at], _heading_width(headings[at], most)) for at in columns] for most in (1, 2, 3, 4, 99))
        fitting = (widths for widths in by_lines if sum(widths) + _GAP * (len(columns) - 1) <= width)
        fixed = next(fitting, [None] * len(columns))
        own = [at for at in columns if at >= table.num_names]
        # A block leaves out the lines of which it has no value, unless it has none at all.
        known = [at for at, line in enumerate(table.lines) if any(line[of].is_known and line[of].text for of in own)]
        kept = known if known and len(blocks) > 1 else [*range(len(table.lines))]
        starts = [at for at, position in enumerate(kept) if at == 0 or position in groups]
        for first, last in zip(starts, [*starts, len(kept)][1:], strict=True):
            if kept[first] in groups:
                yield Text(plain(groups[kept[first]]), style="bold")
            rich = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
            rich.show_header = first == 0
            for at, own_width in zip(columns, fixed, strict=True):
                side: JustifyMethod = "left" if at < table.num_labels else "right"
                rich.add_column(Text(headings[at]), justify=side, overflow="fold", width=own_width)
            for position in kept[first:last]:
                cells_of = (table.lines[position][at] for at in columns)
                style = "bold" if position in table.marked else None
                rich.add_row(*(Text(plain(cell.shown), _STYLES[cell.better]) for cell in cells_of), style=style)
            yield rich
    for note in table.notes:
        yield Text(plain(note), style="dim")


def _heading_width(heading: str, most: int) -> int:
    """Return the width in which a heading has at most so many lines, without a break in a word."""
    least = max(map(cell_len, heading.split()), default=0)
    widths = range(max(1, least), cell_len(heading))
    flat = (width for width in widths if len(wrap(heading, width, break_on_hyphens=False)) <= most)
    return next(flat, cell_len(heading))


def terminal_runs(report: Report, num_lines: int = REPORT_LINES) -> TextScreen:
    """Return a report of runs as an object that `rich.console.Console.print` prints."""
    runs, conclusions = report.runs, run_statements(report.verdicts)
    is_told = bool(conclusions) and any(one.differs.refused for one in report.verdicts)
    is_different = report.sameness.verdict in ("different", "unknown") and not is_told
    trust = trust_statements(report.systems, report.certificates)
    until = [row for row in report.rows if row.measure.group == TARGETS_GROUP]
    times: list[Row] = [[run.name, *(row.cells[at] for row in until)] for at, run in enumerate(runs if until else ())]
    if len(runs) == 1:
        run = runs[0]
        headline = headline_scores([run]) if not run.is_probe else []
        metrics = list(dict.fromkeys(metric for _, metric in headline))
        name = run.summary.baseline.predicts or "constant answer"
        rows: list[Row] = []  # the scores, each above that of a constant answer
        for split in dict.fromkeys(split for split, _ in headline):
            for label, scores in ((split, run.summary.scores), (f"{split}, {name}", run.summary.baseline.scores)):
                values = [scores.get(split, {}).get(metric) for metric in metrics]
                if any(value is not None for value in values):
                    rows.append([label, *(format_as(value, ".4f") for value in values)])
        kept, steps = run.summary.kept_step, run.summary.num_steps
        heading = "" if kept is None else f"Kept: step {format_count(kept)} of {format_count(steps)}"
        train_s, total_s = run.summary.time.train_s, run.summary.time.total_s
        rate, memory = run.summary.throughput.samples_per_s, run.summary.memory.largest_bytes
        text = (
            f"Time {format_duration(total_s)}, training {format_duration(train_s)}; {format_number(rate, 3)} samples/s"
            f"; peak memory {format_bytes(memory)}{' a rank' if (run.run.world_size or 1) > 1 else ''}"
        )
        scored = make_table("scores", "", [heading, *map(metric_name, metrics)], rows)
        blocks = [TextBlock("score", scored), TextBlock("time", [Text(text)])]
    else:
        blocks = [
            TextBlock("conclusion", [*map(_line, conclusions)]),
            TextBlock("note", [Text(plain(note)) for note in report.verdict_notes], 1),
            TextBlock("conclusion", [Text(plain(report.sameness.sentence), style="yellow")] * is_different, 1),
            *_checks([one for one in trust if one.label != "Same experiment" or not (is_different or is_told)]),
            _main(report.systems, differing_settings(runs)),
        ]
    blocks += [
        TextBlock("run", make_table("targets", "", ["", *(row.label for row in until)], times), 2),
        TextBlock("warning", [Text(plain(f"Warning: {text}"), style="yellow") for text in report.warnings], 1),
        *_beside(report.unfinished, len(runs), report.certificates),
    ]
    return TextScreen(blocks, num_lines)


def _main(systems: Systems, settings: Sequence[Difference] = (), chosen: Sequence[Collection[str]] = ()) -> TextBlock:
    """Return the main table; in short without settings, or with the baseline, the fastest and the chosen of many.

    `chosen` are the names of the runs of each chosen candidate.
    """
    table, members = main_table(systems, settings), systems.measured
    if len(members) <= MAX_BESIDE:
        lines = table.lines[len(settings) :] + table.lines[: len(settings)]
        return TextBlock("figure", replace(table, lines=lines), 2, [table])
    table = table.varying()
    fastest = dict.fromkeys(member for most in range(1, len(members) + 1) for member in systems.drawn(most)[0])
    first = [[one for one in fastest if any(item.cell.name in names for item in one.cell_runs)] for names in chosen]
    order = dict.fromkeys([*list(fastest)[:2], *(own[0] for own in first if own), *fastest])
    short = replace(table, lines=tuple(table.lines[members.index(member)] for member in order))
    return TextBlock("configuration", short, 2, [table])


def _beside(
    lost: Sequence[Unfinished], num_finished: int, certificates: Sequence[Certificate] = ()
) -> Iterator[TextBlock]:
    """Yield certificates, and the reasons why runs are not finished, each once."""
    notes = []
    for certificate in certificates:
        text = f"Certificate ({certificate.run_names(num_finished)}): {certificate.sentence} {certificate.path}"
        notes.append(Text(plain(text), style="green" if certificate.verdict == "holds" else "yellow"))
    yield TextBlock("certificate", notes, 5)
    pairs = grouped((run.reason, run.name) for run in lost).items()
    reasons = [Text(plain(f"{listing(names, 3)}: {reason}"), style="yellow") for reason, names in pairs]
    title = f"Unfinished: {len(lost)} of {counted(num_finished + len(lost), 'run')}\n"
    yield TextBlock("reason", [Text(title, style="bold yellow").append(reason) for reason in reasons[:1]], 1)
    yield TextBlock("reason", reasons[1:], 5)


def _line(statement: Statement) -> Text:
    """Return the line of a statement; only the sign of a decided one has a colour."""
    return (
        Text(f"{statement.sign} ", style={True: "green", False: "yellow", None: ""}[statement.is_good])
        .append(f"{plain(statement.label)}: ", style="bold")
        .append(plain(statement.text), style="not bold")
    )


def _checks(trust: Sequence[Statement]) -> Iterator[TextBlock]:
    """Yield the checks of a comparison without a yes: problems in sentences where these fit, else by name."""
    for title, rank, is_good in (("! Problems", 3, False), ("? Cannot tell", 4, None)):
        found = [statement for statement in trust if statement.is_good is is_good]
        names = [Text(f"{title}: {', '.join(one.label for one in found).lower()}.")] if found else []
        yield TextBlock("check", names, rank, [*map(_line, found)] if is_good is False else ())


def terminal_sweep(report: SweepReport, num_lines: int = REPORT_LINES) -> TextScreen:
    """Return the conclusions of a matrix, the chosen candidates and the configurations for a terminal."""
    # The conclusions have the one choice by validation, without its test scores.
    has_choices = len(report.groups) > 1 or (report.is_choice and report.groups[0].split_shown == "test")
    tables = {section.key: section.tables for section in report.sections}
    ranks = {"chosen": 1, "resources": 6}
    blocks = [
        TextBlock("conclusion", [*map(_line, some)], ranks.get(subject, 0))
        for subject, some in groupby(matrix_statements(report), lambda statement: statement.evidence)
    ]
    blocks += _checks(trust_statements(report))
    if has_choices:
        blocks.append(TextBlock("selection", replace(chosen_table(report), title="", notes=(), marked=()), 6))
    candidates = [group.chosen for group in report.groups if group.chosen is not None]
    chosen = [{item.cell.name for item in candidate.cell_runs} for candidate in candidates]
    blocks += [_main(report, (), chosen)] if report.measured else []
    blocks += [TextBlock("line", table.varying(), 1) for table in tables.get("layout", ())]  # asked for by --layout
    for table in tables.get("targets", ()):  # the baseline, and those that reached the score first
        assert report.baseline is not None
        first, marks = report.baseline.label, tuple(note for note in table.notes if note.startswith("["))
        order = sorted(table.lines, key=lambda line: (line[0].text != first, line[1].value is None, line[1].value or 0))
        blocks.append(TextBlock("target time", replace(table, notes=marks, lines=tuple(order)).varying(), 2))
    return TextScreen([*blocks, *_beside(report.unfinished, len(report.runs))], num_lines)


def terminal_comparison(comparison: Comparison) -> TextScreen:
    """Return the verdicts of a comparison for a terminal: in sentences where these fit, else in numbers."""
    systems, mean = comparison.systems, ", on average over the other axes"
    effects = [
        ((verdict.baseline, f"{mean} ({title})" if title else mean), verdict)
        for (_, title), verdicts in axis_verdicts(comparison.effects).items()
        for verdict in verdicts
    ]
    found = [*effects, *(((verdict.baseline, ""), verdict) for verdict in systems.verdicts)]
    leading, conclusions = list[Statement](), list[Statement]()
    for (_, where), family in grouped(effects or found).items():
        ranked = run_statements(family) if len(family) > 1 else ()  # none of different experiments
        title = where.removeprefix(mean).strip(" ()")
        own = [replace(one, label=", ".join(filter(None, (one.label, title)))) for one in ranked]
        # The sentence on speed, or on quality where nothing may be faster.
        may_be_faster = any(is_better(verdict.speed) is not False for verdict in family)
        leading += own[:1] if may_be_faster else own[1:2] or own
        conclusions += own
    leading = conclusions if len(conclusions) <= MAX_SENTENCES else leading[:MAX_SENTENCES]
    compared = [(group, verdict) for group, verdict in found if not verdict.differs.refused]
    refused = grouped((verdict.parts[0][0], verdict.head) for _, verdict in found if verdict.differs.refused)
    sentences: list[Part] = []
    for (base, where), verdicts in grouped(compared).items():
        sentences += [Text(plain(f"Against {base}{where}:"), style="bold")] * (len(verdicts) > 1)
        for verdict in verdicts:
            # The first part after the names, and the other parts below it.
            (first, is_good), *others = verdict.parts
            head = plain(verdict.label) if len(verdicts) > 1 else f"{verdict.head}{plain(where)}"
            style = f"not bold {_STYLES[is_good]}".strip()
            sentences.append(Text(f"{head}: ", style="bold").append(first, style=style))
            for text, is_good in others:
                below = Text(plain(text), style=_STYLES[is_good])
                sentences.append(Padding(below, (0, 0, 0, 2), expand=False))
    reasons = grouped(
        (f"{finding.reason}.", finding.measure)
        for verdict in systems.verdicts if not verdict.differs.refused
        for finding in (verdict.speed, *verdict.quality)
        if finding.reason is not None and finding.outcome != "cannot tell"
    )  # fmt: skip
    notes = [*comparison.notes, *(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in reasons.items())]
    blocks = [
        TextBlock("conclusion", [*map(_line, leading)]),
        TextBlock("conclusion", [_line(one) for one in conclusions if one not in leading], 4),
        TextBlock("reason", [Text(plain(f"{listing(heads, 3)}: {why}")) for why, heads in refused.items()], 1),
        TextBlock("warning", [Text(plain(f"Warning: {text}"), style="yellow") for text in comparison.warnings], 1),
        TextBlock("verdict", _numbers(compared), 2, sentences),
        *_beside(comparison.unfinished, len(systems.runs), comparison.certificates),
        TextBlock("note", [Text(plain(note), style="dim") for note in notes], 3),
    ]
    return TextScreen(blocks, _COMPARISON_LINES, "; all: --json, or paratune report --out FOLDER")


def _numbers(found: Sequence[tuple[tuple[str, str], Verdict]]) -> Table:
    """Return verdicts as a table: the change of each measure with its interval, and a sign for the outcome."""
    known = [{name_of(one): one for one in (verdict.speed, *verdict.quality)} for _, verdict in found]
    columns: dict[str, str] = {}
    for name, one in (item for by_name in known for item in by_name.items()):
        unit = "" if one.is_ratio or one.measure in NOT_IN_POINTS else " (points)"
        columns[name] = f"{name[0].upper()}{name[1:]}{unit}"
    rows, groups = list[Row](), dict[str, int]()
    for ((base, where), verdict), by_name in zip(found, known, strict=True):
        groups.setdefault(f"Against {base}{where}:", len(rows))
        row: list[str | TableCell] = [verdict.label]
        for found_one in map(by_name.get, columns):
            if found_one is None or found_one.change is None:
                row.append("" if found_one is None else NOT_AVAILABLE)
                continue
            better = found_one.is_better if found_one.is_shown else None
            sign = "=" if found_one.is_shown and better is None else {True: "✓", False: "!", None: "?"}[better]
            interval = f" {signed_interval_words(found_one, verdict.task)}"
            ends = "" if found_one.low is None or found_one.low == found_one.high else interval
            text = f"{change_words(found_one, verdict.task).partition(' ')[0]}{ends} {sign}"
            row.append(TableCell(text, found_one.change, better=better))
        rows.append(row)
    # What else verdicts have, besides the differences that are compared.
    bare = (replace(one, quality=(), differs=replace(one.differs, allowed=())) for _, one in found)
    others = grouped((text, one.label) for one in bare for text, _ in one.parts[2:])
    notes = ["In brackets: 95% intervals. ✓ better, ! worse, = equal within the margin, ? cannot tell."]
    notes += [f"{listing(names, 3)}: {text}." for text, names in others.items()]
    starts = [(at, text) for text, at in groups.items()]
    return make_table("verdicts", "", ["", *columns.values()], rows, 1, notes, groups=starts)
