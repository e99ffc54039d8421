"""Text made fit to keep: mojibake undone, one form of each letter, nothing in it that acts, a paragraph a line."""

import re
import unicodedata

import ftfy
from ftfy.badness import is_bad
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

CONFIG = ftfy.TextFixerConfig(unescape_html=False, uncurl_quotes=False, explain=False)
_OTHERWISE = re.compile(
    f"[\x80-\x9f\x1b\ud800-\udfff{re.escape(''.join(map(chr, (*CONTROL_CHARS, *LIGATURES, *WIDTH_MAP))))}]"
)
"""Characters that ftfy changes though nothing speaks of mojibake. All other lines take half the time without it."""
_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # control characters but those that part words and lines
    "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # soft hyphens, marks of width 0 and of direction
    "\ufdd0-\ufdef\ufff9-\ufffc\ufffe\uffff\ud800-\udfff]"  # not characters; halves of surrogate pairs
)


def repair(text: str) -> str:
    r"""Return `text` in NFC, with mojibake undone, spaces single, and lines ended by "\n" and none of them empty.

    What was UTF-8 and has been read as windows-1252 ("coraÃ§Ã£o"), even twice, becomes what it was. Control characters,
    soft hyphens, marks of direction and lone surrogates are left out.
    """
    lines = (" ".join(_UNSEEN.sub("", line).split()) for line in _ENDS.split(without_mojibake(text)))
    return "\n".join(unicodedata.normalize("NFC", line) for line in lines if line)


def without_mojibake(text: str) -> str:
    """Return `text` with mojibake undone; its lines stay, with what they are indented by."""
    # Before: ftfy takes marks of the end of a line that are control characters for damage, and leaves them out.
    return "\n".join(map(_fixed, _ENDS.sub("\n", text).split("\n")))


def _fixed(line: str) -> str:
    """Return what ftfy makes of a line; it is asked for those alone of which it makes something but NFC."""
    if is_bad(line) or _OTHERWISE.search(line):
        return str(ftfy.fix_text(line, CONFIG))
    return unicodedata.normalize("NFC", line)


def repair_line(text: str | None) -> str | None:
    """Return a text as `repair` does, on one line; None where nothing is left."""
    return " ".join(repair(text or "").split()) or None
