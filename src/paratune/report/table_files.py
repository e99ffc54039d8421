r"""A table of `paratune.report.tabular` as Markdown, LaTeX and CSV.

LaTeX is for the packages booktabs and graphicx: escaped, numbers with a sign or a spread as formulas
($0.85 \pm 0.05$), a table that is wider than the line made smaller, a long one as longtable. CSV has the unrounded
values where the table knows them, in columns of their own what a text has together.
"""

import csv
import io
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.report.model import GENERATOR
from paratune.report.tabular import Table, TableCell
from paratune.report.text import csv_text, latex, markdown

FOLDER = "tables"
_SPREAD = re.compile(r"([−-]?[\d,]*\.?\d+) ± ([\d,]*\.?\d+)(?: \((\d+) of (\d+)\))?")
_MAX_FLOAT = 40
"""Lines of a table that still fit on a page of a paper."""
_WIDE_TEXT = 34
"""Characters: columns of longer texts are paragraphs."""
_HEADING_WIDTH = 14
_WORD_PART = 8
_NO_SIGN = r"[^\s+\u2212-]"
_LONG_WORD = re.compile(
    rf"(?<!\S)\S{{{_WORD_PART}}}(?={_NO_SIGN}\S{{{_WORD_PART - 1}}})|(?<=\S)\S{{{_WORD_PART}}}(?={_NO_SIGN}\S{{3}})"
)
"""Where it may be broken: not before a hyphen, which would be the sign of a number then."""
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Begins what becomes smaller where it is wider than the line."""
_LONG_SIZES = ((0, "small", 6), (70, "footnotesize", 3), (85, "scriptsize", 2), (110, "tiny", 2))
"""From so many letters on a line: the size of a longtable's letters, and the points beside a column."""
_NEEDS_UNICODE_ENGINE = re.compile(r"[^\x00-\u017f]")


def table_files(tables: Iterable[Table]) -> dict[str, str]:
    """Return the files of tables, by their names below the report's folder."""
    files = {}
    for table in tables:
        for kind, write in (("md", markdown_table), ("tex", latex_table), ("csv", csv_table)):
            files[f"{FOLDER}/{table.key}.{kind}"] = write(table)
    return files


def markdown_table(table: Table) -> str:
    """Return a table in GitHub's flavour, with its notes as a list below."""
    header = [markdown(name) for name in table.header]
    sides = ["---" if column.is_text else "---:" for column in table.columns]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(sides) + "|"]
    groups = dict(table.groups)
    for position, line in enumerate(table.rows):
        if position in groups:
            lines.append("| " + " | ".join([f"**{markdown(groups[position])}**", *[""] * (len(header) - 1)]) + " |")
        cells = map(markdown, line)
        marked = position in table.marked
        lines.append("| " + " | ".join(f"**{cell}**" if marked and cell else cell for cell in cells) + " |")
    notes = "".join(f"- {markdown(note)}\n" for note in table.notes)
    return "\n".join(lines) + "\n" + (f"\n{notes}" if notes else "")


def latex_table(table: Table) -> str:
    """Return a table with its caption and label, for a document that uses booktabs."""
    is_long = len(table.lines) > _MAX_FLOAT
    packages = "booktabs, longtable" if is_long else "booktabs, graphicx"
    lines = [f"% Table {table.key}, written by {GENERATOR}. In the preamble: \\usepackage{{{packages}}}"]
    columns, wide = _latex_columns(table)
    body = [*_latex_rows(table, wide)]
    names = [table.title, *table.header, *table.notes]
    if _NEEDS_UNICODE_ENGINE.search("".join([*body, *map(latex, names)])):
        lines.append("% It holds letters that need XeLaTeX or LuaLaTeX, and a font that has them.")
    head = [" & ".join(_latex_heading(table, at) for at in range(len(table.columns))) + r" \\", r"\midrule"]
    caption, label = rf"\caption{{{latex(table.title)}}}", rf"\label{{tab:{table.key}}}"
    if is_long:
        lines += [
            r"\begingroup" + _latex_long_size(table),
            rf"\begin{{longtable}}{{{columns}}}",
            rf"{caption} {label} \\",
            r"\toprule", *head, r"\endfirsthead", r"\toprule", *head, r"\endhead", r"\bottomrule", r"\endfoot",
            *body, r"\end{longtable}", *_latex_notes(table), r"\endgroup",
        ]  # fmt: skip
    else:
        lines += [
            r"\begin{table}", r"\centering" + _latex_size(table), caption, label, _FIT,
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head, *body, r"\bottomrule", r"\end{tabular}}",
            *_latex_notes(table), r"\end{table}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _latex_heading(table: Table, at: int) -> str:
    """Return the name of a column, in several lines where it is long."""
    column = table.columns[at]
    lines = textwrap.wrap(plain(column.label), _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
    words = r" \\ ".join(rf"\textbf{{{latex(line)}}}" for line in lines)
    return words if len(lines) < 2 else rf"\shortstack[{'l' if column.is_text else 'r'}]{{{words}}}"


def _latex_columns(table: Table) -> tuple[str, Collection[int]]:
    """Return how columns are aligned, and which are of wide texts: these share the width of the line."""
    widest = [max([_HEADING_WIDTH, *(len(row[at]) for row in table.rows)]) for at, column in enumerate(table.columns)]
    wide = {at: width for at, width in enumerate(widest) if table.columns[at].is_text and width > _WIDE_TEXT}
    # What is left beside the narrow columns, of about 90 characters on a line.
    room = max(0.3, 1 - sum(width for at, width in enumerate(widest) if at not in wide) / 90 - 0.04 * len(widest))
    total = sum(wide.values())
    parts = []
    for at, column in enumerate(table.columns):
        if at in wide:
            parts.append(rf"p{{{max(0.12, room * wide[at] / total):.2f}\linewidth}}")
        else:
            parts.append("l" if column.is_text else "r")
    return "".join(parts), wide.keys()


def _latex_size(table: Table) -> str:
    return r"\small" if len(table.columns) <= 6 else r"\footnotesize\setlength{\tabcolsep}{3pt}"


def _latex_long_size(table: Table) -> str:
    """Return the size of a table that breaks over pages, which can't be made smaller as a whole."""
    widths = (max(_HEADING_WIDTH // 2, *(len(row[at]) for row in table.rows)) for at in range(len(table.columns)))
    letters = sum(min(width, _WIDE_TEXT) for width in widths)
    _, size, space = [each for each in _LONG_SIZES if letters >= each[0]][-1]
    return rf"\{size}\setlength{{\tabcolsep}}{{{space}pt}}"


def _latex_rows(table: Table, wide: Collection[int]) -> Iterator[str]:
    groups = dict(table.groups)
    for position, line in enumerate(table.lines):
        if position in groups:
            if position:
                yield r"\addlinespace"
            yield rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{latex(groups[position])}}}}} \\"
        is_marked = position in table.marked
        cells = (_latex_cell(entry, is_marked=is_marked, is_wide=at in wide) for at, entry in enumerate(line))
        yield " & ".join(cells) + r" \\"


def _latex_cell(entry: TableCell, *, is_marked: bool, is_wide: bool) -> str:
    text = _latex_broken(plain(entry.text)) if is_wide else latex(entry.text)
    if entry.marks:
        text += rf"\textsuperscript{{{latex(','.join(entry.marks))}}}"
    return rf"\textbf{{{text}}}" if is_marked and text else text


def _latex_broken(text: str) -> str:
    """Return an escaped text whose long words, such as names of runs, may go on in the next line."""
    parts = [0, *(match.start() + _WORD_PART for match in _LONG_WORD.finditer(text)), len(text)]
    return r"\allowbreak{}".join(latex(text[begin:end]) for begin, end in pairwise(parts))


def _latex_notes(table: Table) -> list[str]:
    return [rf"\par\smallskip{{\footnotesize {latex(note)}}}" for note in table.notes]


def csv_table(table: Table) -> str:
    """Return a table with a line for each of its own: values where they are known, empty where there is none.

    A column of means with their spreads becomes three: the mean, `_sd` its standard deviation, and `_num` of how many
    runs where some are missing. A confidence interval is `_low` and `_high`. Changes against a baseline are
    `_change_percent`; lines of a matrix end in their runs.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [_csv_column(table, at) for at in range(len(table.columns))]
    group = [["group", *_group_names(table)]] if table.groups else []
    for line in zip(*group, *(part for parts in columns for part in parts), *_csv_runs(table), strict=True):
        writer.writerow([csv_text(cell) if isinstance(cell, str) else cell for cell in line])
    return file.getvalue()


def _csv_runs(table: Table) -> list[list[str]]:
    """Return the column of the runs that each line is of; none where no cell of a matrix knows its runs."""
    if not any(column.key == "num_runs" for column in table.columns):
        return []
    of = [dict.fromkeys(run for entry in line for run in entry.runs) for line in table.lines]
    return [["runs", *(" ".join(names) for names in of)]]


def _csv_column(table: Table, at: int) -> list[list[str | float]]:
    """Return a column, or what it falls into, each with its name first."""
    name = table.columns[at].name
    entries = [line[at] for line in table.lines]
    found = [None if table.columns[at].is_text else _SPREAD.fullmatch(plain(entry.text)) for entry in entries]
    values: list[list[str | float]] = [
        [name, *(_csv_value(entry, one) for entry, one in zip(entries, found, strict=True))]
    ]
    if any(found):
        pairs = zip(entries, found, strict=True)
        values.append([f"{name}_sd", *(_deviation(entry, one) for entry, one in pairs)])
    if any(entry.change_percent is not None for entry in entries):
        changes = ("" if entry.change_percent is None else entry.change_percent for entry in entries)
        values.append([f"{name}_change_percent", *changes])
    if any(entry.interval is not None for entry in entries):
        for at_side, side in enumerate(("low", "high")):
            limits = ("" if entry.interval is None else entry.interval[at_side] for entry in entries)
            values.append([f"{name}_{side}", *limits])
    if any(one is not None and one.group(3) for one in found):
        values.append([f"{name}_num", *("" if one is None or not one.group(3) else int(one.group(3)) for one in found)])
    return values


def _deviation(entry: TableCell, spread: re.Match[str] | None) -> str | float:
    if entry.deviation is not None:
        return entry.deviation
    return "" if spread is None else _number(spread.group(2))


def _csv_value(entry: TableCell, spread: re.Match[str] | None) -> str | float:
    if entry.value is not None:
        return entry.value if isinstance(entry.value, int | float | str) else plain(entry.value)
    if spread is not None:
        return _number(spread.group(1))
    return "" if entry.text == NOT_AVAILABLE else entry.text


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _group_names(table: Table) -> Sequence[str]:
    """Return the heading above each line."""
    names, groups = [], dict(table.groups)
    now = ""
    for position in range(len(table.lines)):
        now = groups.get(position, now)
        names.append(now)
    return names
