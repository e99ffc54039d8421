"""Text from a record made fit to show: `paratune.base.text.plain`, and each output format's own escapes.

Labels, run names, columns and paths come from files that anyone may have written. Nothing of them may act: not as
markup in a page, not as a formula in a spreadsheet, not as a colour code in a terminal.
"""

import html
import re
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from paratune.base.text import plain

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\symbol{34}", "`": r"\textasciigrave{}",
    # Behind the end of a line brackets and stars would be its options.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "→": r"$\rightarrow$", "←": r"$\leftarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "↔": r"$\leftrightarrow$",
    "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "·": r"$\cdot$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "²": "$^2$", "³": "$^3$", "°": r"$^\circ$", "µ": r"$\mu$", "∞": r"$\infty$", "Δ": r"$\Delta$", "σ": r"$\sigma$",
    "ρ": r"$\rho$", "κ": r"$\kappa$", "α": r"$\alpha$", "…": r"\dots{}", "–": "--", "—": "---", "‘": "`", "’": "'",
    "“": "``", "”": "''",
}  # fmt: skip
_LATEX_NUMBER = re.compile(
    r"(?<![\w.,:/])(?P<mean>[−+-]?\d[\d,]*(?:\.\d+)?) ± (?P<spread>\d[\d,]*(?:\.\d+)?)"
    r"|(?<![\w.,:/)\]])(?P<signed>[−+-]\d[\d,]*(?:\.\d+)?)(?![\w-])"
)
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")


def shorten(value: Any, width: int) -> str:
    """Return `plain` text of at most `width` characters, with an ellipsis in the middle where some are left out."""
    text = plain(value)
    if len(text) <= width:
        return text
    head = width // 2
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def shorten_all(values: Sequence[Any], width: int) -> list[str]:
    """Return each value as `shorten` does; without the beginning that all share where two would look alike else."""
    texts = [plain(value) for value in values]
    short = [shorten(text, width) for text in texts]
    shared = len(commonprefix(texts))  # noqa: RUF071 - characters are meant, not folders
    if len(set(short)) == len(set(texts)) or not shared:
        return short
    return [shorten(f"…{text[shared:]}", width) for text in texts]


def some_names(names: Sequence[str], most: int = 24) -> str:
    """Return names one after the other; of many the first, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class Html(str):
    """Text that is markup already; only this module and `paratune.report.svg` make it from strings of ours."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """Return `value` for a page: markup as it is, all else as text."""
    return value if isinstance(value, Html) else Html(html.escape(plain(value), quote=True))


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """Return an element. Children and attribute values are escaped unless they are `Html`; None children are left out.

    An attribute that is None or False is left out, one that is True has no value; `class_` is written class, `data_run`
    data-run.
    """
    opening = [name]
    for key, value in attributes.items():
        written = key.rstrip("_").replace("_", "-")
        if value is True:
            opening.append(written)
        elif value is not None and value is not False:
            opening.append(f'{written}="{html.escape(plain(value), quote=True)}"')
    inside = "".join(escape(child) for child in children if child is not None)
    return Html(f"<{' '.join(opening)}>{inside}</{name}>")


def join(parts: Any) -> Html:
    """Return pieces of a page one after the other, each escaped unless it is `Html`."""
    return Html("\n".join(escape(part) for part in parts if part))


def markdown(value: Any) -> str:
    """Return `value` for a paragraph or a table cell of a Markdown file."""
    text = _MARKDOWN.sub(r"\\\1", plain(value))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("://", "&#58;//")


def latex(value: Any) -> str:
    r"""Return `value` for a LaTeX document; numbers with a spread or a sign become formulas, $0.85 \pm 0.05$."""
    text, parts, end = plain(value), [], 0
    for found in _LATEX_NUMBER.finditer(text):
        parts.append(_latex_letters(text[end : found.start()]))
        number = found["signed"] or rf"{found['mean']} \pm {found['spread']}"
        parts.append("$" + number.replace("−", "-").replace(",", "{,}") + "$")
        end = found.end()
    return "".join([*parts, _latex_letters(text[end:])])


def _latex_letters(text: str) -> str:
    # Hyphens beside each other would become a dash.
    pairs = zip(text, f"{text[1:]} ", strict=False)
    return "".join("-{}" if one == after == "-" else _LATEX.get(one, one) for one, after in pairs)


def csv_text(value: str) -> str:
    """Return a text for a CSV cell; one that a spreadsheet would take for a formula gets a leading apostrophe.

    Source: OWASP, CSV injection: = + - @, tab and carriage return at the start of a cell.
    """
    text = plain(value)
    return f"'{text}" if str(value)[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"} else text
