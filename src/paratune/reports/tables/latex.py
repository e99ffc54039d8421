r"""Tables as LaTeX, for the packages adjustbox, booktabs and threeparttable.

Texts are escaped. Numbers with a sign or a spread are formulas ($0.85 \pm 0.05$). A table that is too large
for a page is scaled down with its notes, which are as wide as the table.
"""

import re
from typing import Any

from paratune.base.text import plain
from paratune.reports.tables.table import Table
from paratune.reports.text import GENERATOR

_MAX_LINES = 40  # lines of a table that fits on a page
_COLUMN, _WIDE_TEXT = 56, 34
"""Characters that are readable in a column of a page with two columns: a wider table spans both. Columns of text with
more than the second number are paragraphs."""
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
_LONG, _BREAKS = re.compile(r"\S{18,}"), re.compile(r"(\\_|/)(?=\w)|[A-Za-z0-9]{8}(?=[A-Za-z0-9]{16})")
"""Long words in escaped text, and the places in them after which names, paths and fingerprints may be broken; words of
a language have fewer than 24 letters between other characters."""


def latex(value: Any) -> str:
    r"""Return `value` escaped for LaTeX; numbers with a spread or a sign become formulas, $0.85 \pm 0.05$."""
    text, parts, end = plain(value), [], 0
    for match in (*_NUMBER.finditer(text), None):
        letters = text[end : match.start() if match else None]
        # Consecutive hyphens would become a dash.
        pairs = zip(letters, f"{letters[1:]} ", strict=False)
        parts += ["-{}" if letter == after == "-" else _ESCAPES.get(letter, letter) for letter, after in pairs]
        if match:
            number = match["signed"] or rf"{match['mean']} \pm {match['spread']}"
            parts.append(f"${number.replace('−', '-').replace(',', '{,}')}$")
            end = match.end()
    return "".join(parts)


def latex_table(table: Table) -> str:
    """Return the first lines of a table with its caption and label, for a document that uses booktabs."""
    table = table.varying().first(_MAX_LINES)
    widths = [max([len(row[at]) for row in table.rows], default=0) for at in range(len(table.columns))]
    wide = [own.is_text and width > _WIDE_TEXT for own, width in zip(table.columns, widths, strict=True)]
    share = f"{0.8 / max(1, sum(wide)) if all(wide) else 0.5 / max(1, sum(wide)):.2f}"
    sides = (
        rf"p{{{share}\linewidth}}" if is_wide else "l" if own.is_text else "r"
        for own, is_wide in zip(table.columns, wide, strict=True)
    )
    groups, rows = dict(table.groups), []
    for position, line in enumerate(table.lines):
        if position in groups:
            rows += [r"\addlinespace"] * (position > 0)
            rows.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{latex(groups[position])}}}}} \\")
        texts = []
        for cell, is_wide in zip(line, wide, strict=True):
            text = latex(cell.text)
            if is_wide:
                text = _LONG.sub(lambda word: _BREAKS.sub(r"\g<0>\\allowbreak{}", word[0]), text)
            texts.append(text + (rf"\textsuperscript{{{latex(','.join(cell.marks))}}}" if cell.marks else ""))
        rows.append(" & ".join(texts) + r" \\")
    heading = " & ".join(rf"\textbf{{{latex(own.label)}}}" for own in table.columns)
    small = r"\small" if len(table.columns) <= 6 else r"\footnotesize\setlength{\tabcolsep}{3pt}"
    notes = [rf"\item {latex(note)}" for note in table.notes]
    listed = [r"\begin{tablenotes}[flushleft]\footnotesize", *notes, r"\end{tablenotes}"]
    environment = "table*" if sum(min(width + 2, _WIDE_TEXT) for width in widths) > _COLUMN else "table"
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
