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
_COLUMN = 56
"""Characters that are readable in a column of a page with two columns; a wider table spans both."""
_WIDE_TEXT = 34
"""Columns of text with more characters are paragraphs."""
_STACKED = 100
"""Characters of a line from which a change in brackets is below its value, so that letters remain readable."""
_HEADING_WIDTH = 14
_WORD_PART = 8
_NO_SIGN = r"[^\s+\u2212-]"
_LONG_WORD = re.compile(
    rf"(?<!\S)\S{{{_WORD_PART}}}(?={_NO_SIGN}\S{{{_WORD_PART - 1}}})|(?<=\S)\S{{{_WORD_PART}}}(?={_NO_SIGN}\S{{3}})"
)
"""Positions of line breaks inside words: never before a hyphen, which would look like a minus sign."""
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Start of a box that is scaled down to the width of the line."""
_LONG_SIZES = ((0, "small", 6), (70, "footnotesize", 3), (85, "scriptsize", 2), (110, "tiny", 2))
"""From so many characters in a line: font size of a longtable, and space beside a column in points."""
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
            r"\begingroup" + _latex_long_size(table), rf"\begin{{longtable}}{{{columns}}}", rf"{caption} \\",
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


def _num_characters(table: Table) -> int:
    """Return the characters in the widest line, with headings that are wrapped."""
    widths = (
        max([min(_HEADING_WIDTH, len(column.label)), *(len(row[at]) for row in table.rows)]) + 2
        for at, column in enumerate(table.columns)
    )
    return sum(min(width, _WIDE_TEXT) for width in widths)


def _latex_heading(table: Table, at: int) -> str:
    """Return the heading of a column, wrapped if it is long."""
    column = table.columns[at]
    lines = textwrap.wrap(plain(column.label), _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
    words = r" \\ ".join(rf"\textbf{{{latex(line)}}}" for line in lines)
    return words if len(lines) < 2 else rf"\shortstack[{'l' if column.is_text else 'r'}]{{{words}}}"


def _latex_columns(table: Table) -> tuple[str, Collection[int]]:
    """Return the alignment of the columns, and the columns of wide texts, which share the width of the line."""
    widest = [max([_HEADING_WIDTH, *(len(row[at]) for row in table.rows)]) for at, column in enumerate(table.columns)]
    wide = {at: width for at, width in enumerate(widest) if table.columns[at].is_text and width > _WIDE_TEXT}
    # Share of the line that the narrow columns leave, at about 90 characters in a line.
    free = max(0.3, 1 - sum(width for at, width in enumerate(widest) if at not in wide) / 90 - 0.04 * len(widest))
    total = sum(wide.values())
    parts = []
    for at, column in enumerate(table.columns):
        if at in wide:
            parts.append(rf"p{{{max(0.12, free * wide[at] / total):.2f}\linewidth}}")
        else:
            parts.append("l" if column.is_text else "r")
    return "".join(parts), wide.keys()


def _latex_size(table: Table) -> str:
    return r"\small" if len(table.columns) <= 6 else r"\footnotesize\setlength{\tabcolsep}{3pt}"


def _latex_long_size(table: Table) -> str:
    """Return the font size of a longtable, which cannot be scaled as a whole."""
    widths = (max(_HEADING_WIDTH // 2, *(len(row[at]) for row in table.rows)) for at in range(len(table.columns)))
    letters = sum(min(width, _WIDE_TEXT) for width in widths)
    _, size, space = [sized for sized in _LONG_SIZES if letters >= sized[0]][-1]
    return rf"\{size}\setlength{{\tabcolsep}}{{{space}pt}}"


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
