"""Repairs lines of extracted text, and joins lines that were wrapped to the width of a page to paragraphs."""

import re
import unicodedata
from collections.abc import Sequence

import ftfy
from ftfy.badness import is_bad
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

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


CONFIG = ftfy.TextFixerConfig(unescape_html=False, uncurl_quotes=False, explain=False)
_OTHERWISE = re.compile(
    f"[\x80-\x9f\x1b\ud800-\udfff{re.escape(''.join(map(chr, (*CONTROL_CHARS, *LIGATURES, *WIDTH_MAP))))}]"
)
"""Characters that ftfy also changes without mojibake. Skipping ftfy for other lines halves the time."""
_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\u2028\u2029]|\x85(?<![\xc2-\xf4]\x85)")
"""Line ends. After a letter such as Ã, \\x85 is the second byte of one in UTF-8: "Ã\\x85" is "Å"."""
_HONEST = re.compile("Ã(?:(?<=[A-ZÀ-ÖØ-Þ]Ã)(?=[\xa0\xad][A-ZÀ-ÖØ-Þ])|(?<=[A-ZÀ-ÖØ-Þ]{2}Ã)(?=[\xa0\xbb]))")
"""Ã in a word of capitals, before a soft hyphen, a fixed space or a quotation mark: it would become a lower-case letter
("IRMÃ\\xadZINHA" IRMíZINHA, "MANHÃ»" MANHû)."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # control characters except separators of words and lines
    "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # soft hyphens, zero-width and direction marks
    "\ufdd0-\ufdef\ufff9-\ufffc\ufffe\uffff\ud800-\udfff]"  # noncharacters; surrogates
)


def repair(text: str) -> str:
    r"""Return `text` in NFC, with repaired mojibake, single spaces, lines that end with "\n", and no empty lines.

    UTF-8 that was decoded as windows-1252 ("coraÃ§Ã£o"), even twice, is restored. Control characters, soft hyphens,
    direction marks and lone surrogates are removed.
    """
    lines = (" ".join(_UNSEEN.sub("", line).split()) for line in _ENDS.split(without_mojibake(text)))
    return "\n".join(unicodedata.normalize("NFC", line) for line in lines if line)


def without_mojibake(text: str) -> str:
    """Return `text` with repaired mojibake; lines and indentation are kept."""
    # Line ends first: ftfy would remove those that are control characters. `repair` removes the zero-width spaces.
    text = _HONEST.sub("Ã\u200b", text)
    return "\n".join(map(_fixed, _ENDS.sub("\n", text).split("\n")))


def _fixed(line: str) -> str:
    """Return a line after ftfy, which is only called if it does more than NFC."""
    normal = unicodedata.normalize("NFC", line)
    # Mojibake may appear only in NFC: ftfy goes on after it.
    if is_bad(normal) or (normal != line and is_bad(line)) or _OTHERWISE.search(line):
        return str(ftfy.fix_text(line, CONFIG))
    return normal


def repair_line(text: str | None) -> str | None:
    """Return a repaired text on one line; None if it is empty."""
    return " ".join(repair(text or "").split()) or None
