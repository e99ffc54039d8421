"""Joins lines that were wrapped to the width of a page to paragraphs, in plain text and PDF."""

import re
from collections.abc import Sequence

MIN_WIDTH, MAX_WIDTH = 40, 140
"""Range of widths of wrapped text: shorter lines are verse or tables, longer ones are paragraphs."""
LONG = 0.95
"""Quantile of line lengths that is the width, so that a single long URL does not count."""
HYPHEN = "\ufffe"
"""PDFium's marker of a hyphen at the end of a line, which may belong to the word or to the wrapping."""
_ITEM = re.compile(r"(?:[-*+•·▪–—]|\(?\d{1,3}(?:\.\d{1,3})*[.)]?|\(?[a-zA-Z][.)])\s")
_BROKEN = re.compile(r"(\w+)(?:-|\ufffe)$")
_WORD = re.compile(r"\w+")


def unwrap(lines: Sequence[str], *, slack: float = 1.0) -> list[str]:
    """Join the lines that end where the next word does not fit.

    Args:
        lines: Lines of a text or page; an empty line ends a paragraph.
        slack: Share of the width from which a line counts as full; 1 for a fixed-width font.

    Returns:
        Paragraphs, without empty ones.
    """
    lengths = sorted(_length(line) for line in lines if line.strip())
    width = lengths[min(len(lengths) - 1, int(LONG * len(lengths)))] if lengths else 0
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return [" ".join(line.split()) for line in lines if line.strip()]
    known = set(re.findall(r"\w+(?:-\w+)+|\w+", "\n".join(lines).lower()))
    paragraphs: list[list[str]] = []
    before = ""
    for raw_line in lines:
        line = " ".join(raw_line.split())
        # Whether the first word did not fit on the line before.
        full = line and before and _length(before) + 1 + len(line.split(maxsplit=1)[0]) > slack * width
        if line and before and not _ITEM.match(line) and (full or before.endswith(HYPHEN)):
            paragraphs[-1][-1] = _without_line_end(paragraphs[-1][-1], line, known)
            paragraphs[-1].append(line)
        elif line:
            paragraphs.append([line])
        before = raw_line.rstrip()
    return ["".join(parts) for parts in paragraphs]


def _length(line: str) -> int:
    """Return the number of columns of a line, including indentation."""
    return len(line.rstrip().expandtabs())


def _without_line_end(line: str, following: str, known: set[str]) -> str:
    """Return a line to which the next one can be appended: with a space at the end, or without a hyphen.

    A hyphen is kept if the text contains the word with a hyphen and not without one.
    """
    left, right = _BROKEN.search(line), _WORD.match(following)
    if left is None or right is None or not right[0][0].islower():
        return f"{line[:-1]}-" if line.endswith(HYPHEN) else f"{line} "
    whole, parted = (left[1] + right[0]).lower(), f"{left[1]}-{right[0]}".lower()
    return f"{line[:-1]}-" if parted in known and whole not in known else line[:-1]
