r"""Tables as LaTeX, for the packages adjustbox, booktabs and threeparttable.

Texts are escaped. Numbers with a sign or a spread are formulas ($0.85 \pm 0.05$). A table that is too large
for a page is scaled down with its notes, which are as wide as the table.
"""

import re
import textwrap
from itertools import pairwise
from typing import Any

from paratune.base.text import plain
from paratune.reports.tables.table import Table, TableCell
from paratune.reports.text import GENERATOR

_MAX_LINES = 40
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
_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\symbol{34}", "`": r"\textasciigrave{}",
    # After the end of a line, brackets and stars would be options of the line break.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "→": r"$\rightarrow$", "←": r"$\leftarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "↔": r"$\leftrightarrow$",
    "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "²": "$^2$", "³": "$^3$", "°": r"$^\circ$", "µ": r"$\mu$", "∞": r"$\infty$", "Δ": r"$\Delta$", "σ": r"$\sigma$",
    "ρ": r"$\rho$", "κ": r"$\kappa$", "α": r"$\alpha$", "…": r"\dots{}", "–": "--", "—": "---", "‘": "`", "’": "'",
    "“": "``", "”": "''",
}  # fmt: skip
_NUMBER = re.compile(
    r"(?<![\w.,:/])(?P<mean>[−+-]?\d[\d,]*(?:\.\d+)?) ± (?P<spread>\d[\d,]*(?:\.\d+)?)"
    r"|(?<![\w.,:/)\]])(?P<signed>[−+-]\d[\d,]*(?:\.\d+)?)(?![\w-])"
)


def latex(value: Any) -> str:
    r"""Return `value` escaped for LaTeX; numbers with a spread or a sign become formulas, $0.85 \pm 0.05$."""
    text, parts, end = plain(value), [], 0
    for match in _NUMBER.finditer(text):
        number = match["signed"] or rf"{match['mean']} \pm {match['spread']}"
        parts += [_letters(text[end : match.start()]), f"${number.replace('−', '-').replace(',', '{,}')}$"]
        end = match.end()
    return "".join([*parts, _letters(text[end:])])


def _letters(text: str) -> str:
    # Consecutive hyphens would become a dash.
    pairs = zip(text, f"{text[1:]} ", strict=False)
    return "".join("-{}" if letter == after == "-" else _ESCAPES.get(letter, letter) for letter, after in pairs)


def latex_table(table: Table) -> str:
    """Return the first lines of a table with its caption and label, for a document that uses booktabs."""
    table = table.varying().first(_MAX_LINES)
    columns = list(enumerate(table.columns))
    widths = [max(min(_HEADING_WIDTH, len(own.label)), *(len(row[at]) for row in table.rows), 0) for at, own in columns]
    num_letters = sum(min(width + 2, _WIDE_TEXT) for width in widths)
    # Wide texts share what the narrow columns leave of the line, at about 90 letters in a line.
    wide = {at: widths[at] for at, own in columns if own.is_text and widths[at] > _WIDE_TEXT}
    narrow = sum(max(_HEADING_WIDTH, width) for at, width in enumerate(widths) if at not in wide)
    free = max(0.3, 1 - narrow / 90 - 0.04 * len(widths))
    shares = {at: max(0.12, free * width / sum(wide.values())) for at, width in wide.items()}
    sides = (rf"p{{{shares[at]:.2f}\linewidth}}" if at in wide else "l" if own.is_text else "r" for at, own in columns)
    groups, rows = dict(table.groups), []
    for position, line in enumerate(table.lines):
        if position in groups:
            rows += [r"\addlinespace"] * (position > 0)
            rows.append(rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{latex(groups[position])}}}}} \\")
        cells = (
            _cell(line[at], is_wide=at in wide, is_stacked=num_letters > _STACKED and not own.is_text)
            for at, own in columns
        )
        rows.append(" & ".join(cells) + r" \\")
    heading = " & ".join(_heading(own.label, "l" if own.is_text else "r") for _, own in columns)
    small = r"\small" if len(columns) <= 6 else r"\footnotesize\setlength{\tabcolsep}{3pt}"
    notes = [rf"\item {latex(note)}" for note in table.notes]
    listed = [r"\begin{tablenotes}[flushleft]\footnotesize", *notes, r"\end{tablenotes}"]
    environment = "table*" if num_letters > _COLUMN else "table"
    body = [
        rf"\begin{{{environment}}}", rf"\centering{small}",
        rf"\caption{{{latex(table.title)}}} \label{{tab:{table.key}}}",
        r"\begin{adjustbox}{max width=\linewidth, max totalheight=0.85\textheight}", r"\begin{threeparttable}",
        rf"\begin{{tabular}}{{{''.join(sides)}}}", r"\toprule", rf"{heading} \\", r"\midrule", *rows, r"\bottomrule",
        r"\end{tabular}", *(listed if notes else []), r"\end{threeparttable}", r"\end{adjustbox}",
        rf"\end{{{environment}}}",
    ]  # fmt: skip
    lines = [f"% Table {table.key}, written by {GENERATOR}."]
    lines.append(r"% In the preamble: \usepackage{adjustbox, booktabs, threeparttable}")
    if re.search(r"[^\x00-\u017f]", "".join(body)):
        lines.append("% It holds letters that need XeLaTeX or LuaLaTeX, and a font that has them.")
    return "\n".join([*lines, *body]) + "\n"


def _heading(label: str, side: str) -> str:
    """Return the heading of a column, wrapped if it is long."""
    lines = textwrap.wrap(plain(label), _HEADING_WIDTH, break_long_words=False, break_on_hyphens=False)
    words = r" \\ ".join(rf"\textbf{{{latex(line)}}}" for line in lines)
    return words if len(lines) < 2 else rf"\shortstack[{side}]{{{words}}}"


def _cell(cell: TableCell, *, is_wide: bool, is_stacked: bool) -> str:
    text = latex(cell.text)
    if is_wide:  # long words, such as names of runs, may be broken
        text = "".join(map(_breakable, re.split(r"(\s+)", plain(cell.text))))
    if cell.marks:
        text += rf"\textsuperscript{{{latex(','.join(cell.marks))}}}"
    if is_stacked and " (" in cell.text:
        value, change = text.split(" (", 1)
        text = rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{value} \\ ({change}\end{{tabular}}"
    return text


def _breakable(word: str) -> str:
    """Return a word that may be broken if it is long; one without a letter is a number and stays whole."""
    breaks = _LONG_WORD.finditer(word) if re.search("[A-Za-z]", word) else ()
    ends = [0, *(match.start() + _WORD_PART for match in breaks), len(word)]
    return r"\allowbreak{}".join(latex(word[start:end]) for start, end in pairwise(ends))
