"""Normalises text: repairs mojibake, applies NFC, removes control characters, and puts each paragraph on a line."""

import re
import unicodedata

import ftfy
from ftfy.badness import is_bad
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

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
