r"""Tables as LaTeX, for the packages booktabs, graphicx and threeparttable; longtable for tables of many lines.

Texts are escaped. Numbers with a sign or a spread are formulas ($0.85 \pm 0.05$). A table that is wider than the line
is scaled down with its notes, which are as wide as the table.
"""

import re
import textwrap
from collections.abc import Collection, Iterator
from itertools import pairwise

from paratune.base.text import plain
from paratune.reports.tables.table import Table, TableCell, with_varying_columns
from paratune.reports.text import GENERATOR, latex

_MAX_FLOAT = 40
"""Lines of a table that fits on a page."""
_COLUMN, _STACKED = 56, 100
"""Characters that are readable in a column of a page with two columns: a wider table spans both. From so many on, a
change in brackets is below its value."""
_WIDE_TEXT, _HEADING_WIDTH, _WORD_PART = 34, 14, 8
"""Characters: columns of text with more are paragraphs; headings with more are wrapped; parts of a broken word."""
_NO_SIGN = r"[^\s+\u2212-]"
_LONG_WORD = re.compile(
    rf"(?<!\S)\S{{{_WORD_PART}}}(?={_NO_SIGN}\S{{{_WORD_PART - 1}}})|(?<=\S)\S{{{_WORD_PART}}}(?={_NO_SIGN}\S{{3}})"
)
"""Positions of line breaks inside words: never before a hyphen, which would look like a minus sign."""
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Start of a box that is scaled down to the width of the line."""
_NEEDS_UNICODE_ENGINE = re.compile(r"[^\x00-\u017f]")


def latex_table(table: Table) -> str:
    """Return a table with its caption and label, for a document that uses booktabs."""
    table = with_varying_columns(table)
    is_long = len(table.lines) > _MAX_FLOAT
    packages = "booktabs, longtable" if is_long else "booktabs, graphicx, threeparttable"
    lines = [f"% Table {table.key}, written by {GENERATOR}.", rf"% In the preamble: \usepackage{{{packages}}}"]
    columns, wide = _latex_columns(table)
    body = [*_latex_rows(table, wide)]
    names = [table.title, *table.header, *table.notes]
    if _NEEDS_UNICODE_ENGINE.search("".join([*body, *map(latex, names)])):
        lines.append("% It holds letters that need XeLaTeX or LuaLaTeX, and a font that has them.")
    head = [" & ".join(_latex_heading(table, at) for at in range(len(table.columns))) + r" \\", r"\midrule"]
    caption = rf"\caption{{{latex(table.title)}}} \label{{tab:{table.key}}}"
    notes = [latex(note) for note in table.notes]
    if is_long:
        lines += [
            r"\begingroup" + _latex_size(table), rf"\begin{{longtable}}{{{columns}}}", rf"{caption} \\",
            r"\toprule", *head, r"\endfirsthead", r"\toprule", *head, r"\endhead", r"\bottomrule", r"\endfoot",
            *body, r"\end{longtable}", *(rf"\par\noindent {note}" for note in notes), r"\endgroup",
        ]  # fmt: skip
    else:
        environment = "table*" if _num_characters(table) > _COLUMN else "table"
        items = [rf"\item {note}" for note in notes]
        listed = [r"\begin{tablenotes}[flushleft]\footnotesize", *items, r"\end{tablenotes}"]
        lines += [
            rf"\begin{{{environment}}}", r"\centering" + _latex_size(table), caption, _FIT, r"\begin{threeparttable}",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head, *body, r"\bottomrule", r"\end{tabular}",
            *(listed if notes else []), r"\end{threeparttable}}", rf"\end{{{environment}}}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _widths(table: Table) -> list[int]:
    """Return the characters of each column, with a heading that is wrapped."""
    return [
        max([min(_HEADING_WIDTH, len(column.label)), *(len(row[at]) for row in table.rows)])
        for at, column in enumerate(table.columns)
    ]


def _num_characters(table: Table) -> int:
    return sum(min(width + 2, _WIDE_TEXT) for width in _widths(table))


def _latex_heading(table: Table, at: int) -> str:
    """Return the heading of a column, wrapped if it is long."""
    column = table.columns[at]
    lines = textwrap.wrap(plain(column.label), _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
    words = r" \\ ".join(rf"\textbf{{{latex(line)}}}" for line in lines)
    return words if len(lines) < 2 else rf"\shortstack[{'l' if column.is_text else 'r'}]{{{words}}}"


def _latex_columns(table: Table) -> tuple[str, Collection[int]]:
    """Return the alignment of the columns, and the columns of wide texts, which share the width of the line."""
    widths = _widths(table)
    wide = {at: width for at, width in enumerate(widths) if table.columns[at].is_text and width > _WIDE_TEXT}
    # Share of the line that the narrow columns leave, at about 90 characters in a line.
    narrow = sum(max(_HEADING_WIDTH, width) for at, width in enumerate(widths) if at not in wide)
    free = max(0.3, 1 - narrow / 90 - 0.04 * len(widths))
    parts = [
        rf"p{{{max(0.12, free * wide[at] / sum(wide.values())):.2f}\linewidth}}"
        if at in wide
        else "l"
        if column.is_text
        else "r"
        for at, column in enumerate(table.columns)
    ]
    return "".join(parts), wide.keys()


def _latex_size(table: Table) -> str:
    """Return the size of the letters; a longtable, which cannot be scaled, has smaller ones."""
    if len(table.lines) > _MAX_FLOAT and _num_characters(table) > 70:
        return r"\scriptsize\setlength{\tabcolsep}{2pt}"
    return r"\small" if len(table.columns) <= 6 else r"\footnotesize\setlength{\tabcolsep}{3pt}"


def _latex_rows(table: Table, wide: Collection[int]) -> Iterator[str]:
    groups = dict(table.groups)
    is_stacked = _num_characters(table) > _STACKED and len(table.lines) <= _MAX_FLOAT
    for position, line in enumerate(table.lines):
        if position in groups:
            if position:
                yield r"\addlinespace"
            yield rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{latex(groups[position])}}}}} \\"
        cells = (
            _latex_cell(
                entry,
                is_wide=at in wide,
                is_stacked=is_stacked and not table.columns[at].is_text and " (" in entry.text,
            )
            for at, entry in enumerate(line)
        )
        yield " & ".join(cells) + r" \\"


def _latex_cell(entry: TableCell, *, is_wide: bool, is_stacked: bool) -> str:
    text = _latex_broken(plain(entry.text)) if is_wide else latex(entry.text)
    if entry.marks:
        text += rf"\textsuperscript{{{latex(','.join(entry.marks))}}}"
    if is_stacked:
        value, change = text.split(" (", 1)
        text = rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{value} \\ ({change}\end{{tabular}}"
    return text


def _latex_broken(text: str) -> str:
    """Return an escaped text with line breaks allowed inside long words, such as names of runs."""
    parts = [0, *(match.start() + _WORD_PART for match in _LONG_WORD.finditer(text)), len(text)]
    return r"\allowbreak{}".join(latex(text[begin:end]) for begin, end in pairwise(parts))
