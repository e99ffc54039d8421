"""Decodes bytes to text: finds the charset from declarations and from the bytes.

Pages declare a charset in the HTTP header, in a `meta` element, in both or in neither, and often wrongly. Valid UTF-8
is almost never in another charset, so it is decoded as UTF-8 despite the declaration. Otherwise the order is that of
browsers: byte order mark, header, meta, detection. Labels have the meaning of the Encoding standard: ISO-8859-1 and
ASCII are windows-1252.

Source: https://encoding.spec.whatwg.org and https://html.spec.whatwg.org, "Determining the character encoding".
"""

import codecs
import re
from collections.abc import Iterator

import cchardet
import ftfy.bad_codecs  # noqa: F401 - registers the sloppy-* codecs
import webencodings

META_BYTES = 4096
"""Bytes at the start of a page that are searched for a charset; 1024 in the standard, too few for old pages."""
DETECT_BYTES = 1 << 16
"""Bytes that are read to detect a charset."""
SURE = 0.65
"""Minimum confidence of the detection; below, it confuses Portuguese with Cyrillic."""
FEW = 0.1
"""Maximum share of undecodable characters among those outside ASCII, in a declared charset."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LABEL = rb"""charset\s*=\s*["']?\s*([\w.:+-]+)"""
_IN_META = re.compile(rb"<meta\b[^>]{0,400}?" + _LABEL, re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml\b[^>]{0,200}?encoding\s*=\s*["']([\w.:+-]+)""")
_IN_HEADER = re.compile(_LABEL, re.IGNORECASE)


def decode(payload: bytes, content_type: str | None, *, fallback: str) -> tuple[str, str]:
    """Return the text of some bytes, and the name of their charset.

    Args:
        fallback: Charset if none is declared or detected.

    Returns:
        The text, with U+FFFD for invalid bytes, and the name of the charset in the Encoding standard.
    """
    for mark, name in _MARKS:
        if payload.startswith(mark):
            return payload[len(mark) :].decode(name, "replace"), name
    try:
        text = payload.decode("utf-8")
        if text.isascii() and b"\x1b" not in payload:  # equal in the declared charset; ISO-2022 has escapes
            return text, next(_declared(payload, content_type), "utf-8")
        if not text.isascii():
            return text, "utf-8"
    except UnicodeDecodeError:
        pass
    for name in _candidates(payload, content_type):
        text = _decoded(payload, name)
        if text.count("\ufffd") <= FEW * sum(not character.isascii() for character in text):
            return text, name
    return _decoded(payload, _name(fallback) or fallback), _name(fallback) or fallback


def _candidates(payload: bytes, content_type: str | None) -> Iterator[str]:
    yield from _declared(payload, content_type)
    detected = cchardet.detect(payload[:DETECT_BYTES])
    name = _name(detected["encoding"] or "")
    if name is not None and (detected["confidence"] or 0) >= SURE:
        yield name


def _declared(payload: bytes, content_type: str | None) -> Iterator[str]:
    """Yield the declared charsets: in the HTTP header, in XML, in `meta`."""
    header = (content_type or "").encode("ascii", "replace")
    for pattern, source in ((_IN_HEADER, header), (_IN_XML, payload[:META_BYTES]), (_IN_META, payload[:META_BYTES])):
        match = pattern.search(source)
        name = _name(match[1].decode("ascii", "replace")) if match else None
        # A label that is readable as single bytes is not in UTF-16.
        if name is not None:
            yield "utf-8" if name.startswith("utf-16") else name


def _name(label: str) -> str | None:
    """Return the name of a label in the Encoding standard; None for an unknown label or one without text."""
    encoding = webencodings.lookup(label)
    return None if encoding is None or encoding.name in ("x-user-defined", "replacement") else str(encoding.name)


def _decoded(payload: bytes, name: str) -> str:
    if name in ("windows-1252", "windows-1250", "windows-1251", "windows-1253", "windows-1254", "windows-1257"):
        # Their unused bytes are control characters in the standard; ftfy decodes them, Python does not.
        return payload.decode(f"sloppy-{name}", "replace")
    encoding = webencodings.lookup(name)
    return payload.decode(encoding.codec_info.name if encoding is not None else name, "replace")
