"""From bytes to text: which charset they are in, whatever they are declared to be.

Pages declare a charset in the header of HTTP, in an element `meta`, in both, in neither, and often wrongly. Bytes that
are UTF-8 are hardly ever anything else, so they are read as such whatever is declared; after that the order is that of
browsers: byte order mark, header, meta, and what the bytes look like. Labels mean what the Encoding standard says:
ISO-8859-1 and ASCII are windows-1252.

Source: https://encoding.spec.whatwg.org and https://html.spec.whatwg.org, "Determining the character encoding".
"""

import codecs
import re
from collections.abc import Iterator

import cchardet
import ftfy.bad_codecs  # noqa: F401 - brings the codecs whose names begin with sloppy
import webencodings

from paratune.corpus.extract.kinds import is_utf16

META_BYTES = 4096
"""Bytes at the start in which a page may declare its charset; the standard says 1024, old pages say it later."""
DETECT_BYTES = 1 << 16
"""Bytes that are looked at to tell a charset that is not declared."""
SURE = 0.65
"""Confidence of the detection from which on it is believed; below, it takes Portuguese for Cyrillic."""
FEW = 0.1
"""Share of letters beyond ASCII that may be damaged in a page of a declared charset."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LABEL = rb"""charset\s*=\s*["']?\s*([\w.:+-]+)"""
_IN_META = re.compile(rb"<meta\b[^>]{0,400}?" + _LABEL, re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml\b[^>]{0,200}?encoding\s*=\s*["']([\w.:+-]+)""")
_IN_HEADER = re.compile(_LABEL, re.IGNORECASE)


def decode(payload: bytes, content_type: str | None, *, fallback: str) -> tuple[str, str]:
    """Return the text of some bytes, and the name of their charset.

    Args:
        payload: A page or a text.
        content_type: The header of HTTP, which may name a charset.
        fallback: Charset of what declares none and of which none can be told.

    Returns:
        The text, with U+FFFD for what is no character, and the charset's name in the Encoding standard.
    """
    for mark, name in _MARKS:
        if payload.startswith(mark):
            return payload[len(mark) :].decode(name, "replace"), name
    try:
        text = payload.decode("utf-8")
        if text.isascii() and b"\x1b" not in payload:
            return text, _declared_or(payload, content_type, "utf-8")
        if not text.isascii():
            return text, "utf-8"
    except UnicodeDecodeError:
        pass
    for name in _candidates(payload, content_type):
        text = _decoded(payload, name)
        if text.count("\ufffd") <= FEW * sum(not each.isascii() for each in text):
            return text, name
    return _decoded(payload, _name(fallback) or fallback), _name(fallback) or fallback


def _declared_or(payload: bytes, content_type: str | None, name: str) -> str:
    """Return the charset that text of ASCII alone declares; it makes no difference to the text."""
    return next(_declared(payload, content_type), name)


def _candidates(payload: bytes, content_type: str | None) -> Iterator[str]:
    without_mark = is_utf16(payload)
    if without_mark:
        yield without_mark
    yield from _declared(payload, content_type)
    found = cchardet.detect(payload[:DETECT_BYTES])
    name = _name(found["encoding"] or "")
    if name is not None and (found["confidence"] or 0) >= SURE:
        yield name


def _declared(payload: bytes, content_type: str | None) -> Iterator[str]:
    """Yield the charsets that are declared: in the header of HTTP, in XML, in `meta`."""
    header = (content_type or "").encode("ascii", "replace")
    for pattern, source in ((_IN_HEADER, header), (_IN_XML, payload[:META_BYTES]), (_IN_META, payload[:META_BYTES])):
        found = pattern.search(source)
        name = _name(found[1].decode("ascii", "replace")) if found else None
        # Who can read the label in single bytes does not have UTF-16 before him.
        if name is not None:
            yield "utf-8" if name.startswith("utf-16") else name


def _name(label: str) -> str | None:
    """Return the name that the Encoding standard gives to a label; None if it knows none, or has it give no text."""
    found = webencodings.lookup(label)
    return None if found is None or found.name in ("x-user-defined", "replacement") else str(found.name)


def _decoded(payload: bytes, name: str) -> str:
    if name in ("windows-1252", "windows-1250", "windows-1251", "windows-1253", "windows-1254", "windows-1257"):
        # Their unused bytes are control characters in the standard, which ftfy has and Python has not.
        return payload.decode(f"sloppy-{name}", "replace")
    found = webencodings.lookup(name)
    return payload.decode(found.codec_info.name if found is not None else name, "replace")
