"""Paragraphs out of lines that were broken to fit a page: plain text of old, and the pages of a PDF."""

import re
from collections.abc import Sequence

MIN_WIDTH, MAX_WIDTH = 40, 140
"""Characters of a line between which text is wrapped: shorter lines are verse or tables, longer ones paragraphs."""
LONG = 0.95
"""Share of the lines that are no longer than the width: a long address on a line of its own does not set it."""
HYPHEN = "\ufffe"
"""What PDFium puts for a hyphen at the end of a line, which may be of the word or of the line."""
_ITEM = re.compile(r"(?:[-*+•·▪–—]|\(?\d{1,3}(?:\.\d{1,3})*[.)]?|\(?[a-zA-Z][.)])\s")
_BROKEN = re.compile(r"(\w+)(?:-|\ufffe)$")
_WORD = re.compile(r"\w+")


def unwrap(lines: Sequence[str], *, slack: float = 1.0) -> list[str]:
    """Join the lines that were broken because the next word would not have fitted.

    Args:
        lines: Of one text or one page, in their order; an empty line ends a paragraph.
        slack: Share of the width from which on a line counts as full: 1 where all letters are as wide as each other.

    Returns:
        Paragraphs, none of them empty.
    """
    lengths = sorted(_length(line) for line in lines if line.strip())
    width = lengths[min(len(lengths) - 1, int(LONG * len(lengths)))] if lengths else 0
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return [" ".join(line.split()) for line in lines if line.strip()]
    known = set(re.findall(r"\w+(?:-\w+)+|\w+", "\n".join(lines).lower()))
    found: list[list[str]] = []
    before = ""
    for each in lines:
        line = " ".join(each.split())
        if line and before and not _ITEM.match(line) and _was_full(before, line, slack * width):
            found[-1][-1] = _opened(found[-1][-1], line, known)
            found[-1].append(line)
        elif line:
            found.append([line])
        before = each.rstrip()
    return ["".join(parts) for parts in found]


def _length(line: str) -> int:
    """Return the columns of a line, those with which it is indented among them."""
    return len(line.rstrip().expandtabs())


def _was_full(line: str, following: str, width: float) -> bool:
    """Return whether the next word, or what its hyphen left of it, would not have fitted."""
    return line.endswith(HYPHEN) or _length(line) + 1 + len(following.split(maxsplit=1)[0]) > width


def _opened(line: str, following: str, known: set[str]) -> str:
    """Return a line so that the next one can follow it: with a space at its end, or without its hyphen.

    A hyphen stays where the text has the word with it elsewhere, and not without.
    """
    left, right = _BROKEN.search(line), _WORD.match(following)
    if left is None or right is None or not right[0][0].islower():
        return f"{line[:-1]}-" if line.endswith(HYPHEN) else f"{line} "
    whole, parted = (left[1] + right[0]).lower(), f"{left[1]}-{right[0]}".lower()
    return f"{line[:-1]}-" if parted in known and whole not in known else line[:-1]
