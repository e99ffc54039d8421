"""Extracts the text of a document: finds its MIME type and charset, calls a library, and normalises the text.

Trafilatura reads HTML, PDFium the pages of a PDF, kreuzberg office files. Wrapped lines are joined to paragraphs. Each
reader repairs mojibake before any step that removes its characters: soft hyphens, fixed spaces, control characters.

Pages declare a charset in the HTTP header, in a `meta` element, in both or in neither, and often wrongly. Valid UTF-8
is almost never in another charset, so it is decoded as UTF-8 despite the declaration. Otherwise the order is that of
browsers: byte order mark, header, meta, detection. Labels have the meaning of the Encoding standard: ISO-8859-1 and
ASCII are windows-1252.

Sources: https://mimesniff.spec.whatwg.org, sections 6 and 7 (signatures); https://encoding.spec.whatwg.org and
https://html.spec.whatwg.org, "Determining the character encoding".
"""

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import cchardet
import ftfy
import ftfy.bad_codecs  # registers the sloppy-* codecs
import kreuzberg
import pypdfium2
import trafilatura
import webencodings
from ftfy.badness import is_bad
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

from paratune.corpus.extract.process import ExtractedText, NoText
from paratune.corpus.settings import Extract

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
    # Columns of each line, including indentation.
    lengths = sorted(len(line.rstrip().expandtabs()) for line in lines if line.strip())
    width = lengths[min(len(lengths) - 1, int(LONG * len(lengths)))] if lengths else 0
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return [" ".join(line.split()) for line in lines if line.strip()]
    known = set(re.findall(r"\w+(?:-\w+)+|\w+", "\n".join(lines).lower()))
    paragraphs: list[list[str]] = []
    before = ""
    for raw_line in lines:
        line = " ".join(raw_line.split())
        # Whether the first word did not fit on the line before.
        full = line and before and len(before.expandtabs()) + 1 + len(line.split(maxsplit=1)[0]) > slack * width
        if line and before and not _ITEM.match(line) and (full or before.endswith(HYPHEN)):
            last = paragraphs[-1][-1]
            left, right = _BROKEN.search(last), _WORD.match(line)
            if left is None or right is None or not right[0][0].islower():
                joined = f"{last[:-1]}-" if last.endswith(HYPHEN) else f"{last} "
            else:
                # A hyphen is kept if the text contains the word with a hyphen and not without one.
                whole, parted = (left[1] + right[0]).lower(), f"{left[1]}-{right[0]}".lower()
                joined = f"{last[:-1]}-" if parted in known and whole not in known else last[:-1]
            paragraphs[-1][-1:] = [joined, line]
        elif line:
            paragraphs.append([line])
        before = raw_line.rstrip()
    return ["".join(parts) for parts in paragraphs]


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
    fixed = []
    for line in _ENDS.sub("\n", _HONEST.sub("Ã\u200b", text)).split("\n"):
        normal = unicodedata.normalize("NFC", line)
        # ftfy is only called if it does more than NFC. Mojibake may appear only in NFC: ftfy goes on after it.
        is_wrong = is_bad(normal) or (normal != line and is_bad(line)) or _OTHERWISE.search(line)
        fixed.append(str(ftfy.fix_text(line, CONFIG)) if is_wrong else normal)
    return "\n".join(fixed)


LAYOUT_CHARACTERS = 200
"""Minimum number of characters of a cell that makes its table a layout table, not a data table."""
_PARTS = ("table", "thead", "tbody", "tfoot", "tr", "td", "th")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_LINES = "//text()[contains(., '\n') and not(ancestor::pre)]"
_LINES_OF_PRE = "//pre//text()[contains(., '\n')]"


def read_html(page: str, *, comments: bool = False) -> dict[str, str | None]:
    """Return text and title of a page, and `comments` of readers; the text is empty if Trafilatura finds none."""
    tree = trafilatura.load_html(page)
    if tree is None:  # Trafilatura refuses a fragment of a page
        tree = trafilatura.load_html(f"<html><body>{page}</body></html>")
    if tree is None:
        return {"text": ""}
    # Repair mojibake, whose second characters Trafilatura removes.
    for node in tree.xpath("//text()"):
        if not node.isascii() and is_bad(node):
            _set_text(node, without_mojibake(node))
    title = tree.findtext(".//title")
    # Turn layout tables into blocks, so that their paragraphs are kept.
    layouts = []
    for table in tree.iter("table"):
        cells = [part for part in _own_parts(table) if part.tag in ("td", "th")]
        is_layout = any(len(cell.text_content()) >= LAYOUT_CHARACTERS for cell in cells)
        if is_layout or table.find(".//table") is not None:
            layouts.append(table)
    for table in layouts:
        for part in [table, *_own_parts(table)]:
            part.tag = "div"
    # Remove line ends, which have a meaning only in `pre`; in `pre`, join wrapped lines.
    for node in tree.xpath(_LINES):
        _set_text(node, " ".join(node.splitlines()) + (" " if node.endswith("\n") else ""))
    for node in tree.xpath(_LINES_OF_PRE):
        _set_text(node, "\n".join(unwrap(node.splitlines())))
    extracted = trafilatura.bare_extraction(tree, fast=True, include_comments=comments)
    texts = [] if extracted is None else [extracted.text or "", extracted.comments or ""]
    lines = "\n".join(filter(None, texts)).split("\n")
    return {"text": "\n".join(part for line in lines for part in _cells(line)), "title": title}


def _set_text(node: Any, text: str) -> None:
    if node.is_tail:
        node.getparent().tail = text
    else:
        node.getparent().text = text


def _own_parts(table: Any) -> Iterator[Any]:
    """Yield rows and cells of a table, without those of nested tables."""
    waiting = list(table)
    while waiting:
        part = waiting.pop()
        if part.tag in _PARTS and part.tag != "table":
            yield part
            waiting += list(part) if part.tag not in ("td", "th") else []


def _cells(line: str) -> Iterator[str]:
    """Yield a line without the separators of cells from Trafilatura."""
    if not line.startswith("|"):
        yield line
        return
    cells = [cell.replace("\\|", "|").strip() for cell in _BETWEEN_CELLS.split(line)]
    if any(cell.strip("-") for cell in cells):
        yield " ".join(cell for cell in cells if cell)


SLACK = 0.85
"""Share of the maximum width from which a line counts as full, since letters differ in width."""
NUM_PAGES = 4
"""Minimum number of pages for the removal of headers and footers."""
_PAGE_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
_SHOWN = re.compile("(?<=[a-zß-ÿ])Ã(?:ƒÂ)?-")
_PASSWORD = 4
"""Code of FPDF_GetLastError: a password is required."""


def read_pdf(payload: bytes) -> dict[str, str | None] | NoText:
    """Return text and title of a PDF, or the reason why there is no text.

    Headers and footers, lines at the top or bottom of more than half of the pages, are removed; numbers may differ.
    """
    try:
        document = pypdfium2.PdfDocument(payload[max(0, payload.find(b"%PDF-", 0, START_BYTES)) :])
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD:
            return NoText("encrypted", "a password is required")
        return NoText("unreadable", str(error))
    with closing(document):
        title = document.get_metadata_value("Title")
        read = [_lines(document, number) for number in range(len(document))]
    pages = [page for page in read if page is not None]
    if read and not pages:
        return NoText("unreadable", f"none of {len(read)} pages can be read")
    ends = [{_PAGE_NUMBER.sub("0", line) for line in (*page[:1], *page[-1:])} for page in pages if page]
    counts = Counter(line for page_ends in ends for line in page_ends)
    repeated = {line for line, count in counts.items() if len(ends) >= NUM_PAGES and count > len(ends) / 2}
    lines: list[str] = []
    for page in pages:
        first = 1 if page and _PAGE_NUMBER.sub("0", page[0]) in repeated else 0
        last = len(page) - 1 if len(page) > first and _PAGE_NUMBER.sub("0", page[-1]) in repeated else len(page)
        kept = page[first:last]
        # An empty line separates pages, unless a paragraph continues.
        lines += ["", *kept] if kept and not kept[0][:1].islower() else kept
    return {"text": "\n".join(unwrap(lines, slack=SLACK)), "title": title}


def _lines(document: pypdfium2.PdfDocument, number: int) -> list[str] | None:
    """Return the lines of a page, without mojibake; None for an unreadable page."""
    try:
        with closing(document[number]) as page, closing(page.get_textpage()) as text:
            # PDFium replaces a hyphen and the end of the line by a marker.
            page_text = str(text.get_text_range()).replace(HYPHEN, f"{HYPHEN}\n")
    except pypdfium2.PdfiumError:
        return None
    # PDFium returns the second character of "Ã\xad", a soft hyphen, as a hyphen for most fonts.
    return [line.strip() for line in without_mojibake(_SHOWN.sub("Ã\xad", page_text)).split("\n")]


META_BYTES = 4096
"""Bytes at the start of a page that are searched for a charset; 1024 in the standard, too few for old pages."""
DETECT_BYTES = 1 << 16
"""Bytes that are read to detect a charset."""
SURE = 0.65
"""Minimum confidence of the detection; below, it confuses Portuguese with Cyrillic."""
FALLBACK = "windows-1252"
"""Charset of texts without a declared or detected one."""
FEW = 0.1
"""Maximum share of undecodable characters among those outside ASCII, in a declared charset."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LABEL = rb"""charset\s*=\s*["']?\s*([\w.:+-]+)"""
_IN_META = re.compile(rb"<meta\b[^>]{0,400}?" + _LABEL, re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml\b[^>]{0,200}?encoding\s*=\s*["']([\w.:+-]+)""")
_IN_HEADER = re.compile(_LABEL, re.IGNORECASE)


def decode(payload: bytes, content_type: str | None) -> tuple[str, str]:
    """Return the text of some bytes, and the name of their charset.

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
    return _decoded(payload, FALLBACK), FALLBACK


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


HTML, XHTML, TEXT, PDF = "text/html", "application/xhtml+xml", "text/plain", "application/pdf"
RTF, DOC = "application/rtf", "application/msword"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ODT = "application/vnd.oasis.opendocument.text"
OCTETS = "application/octet-stream"

HEAD_BYTES = 1445
"""Bytes that the standard searches for binary data."""
START_BYTES = 1 << 16
"""Bytes that are searched for the start of HTML behind white space and comments, and for that of a declared PDF."""
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_UTF16 = (b"\xfe\xff", b"\xff\xfe")
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_PROLOGUE = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s+|<!--.*?-->)*", re.DOTALL)
_HTML_TAGS = re.compile(
    rb"<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p|meta)[\s>/]", re.IGNORECASE
)
_XHTML = re.compile(rb"<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
_ALSO = {"text/rtf": RTF, "application/x-rtf": RTF, "application/x-pdf": PDF}


def mime_type(payload: bytes, declared: str | None) -> str:
    """Return the MIME type of a document; without a signature it is text, unless it contains binary data."""
    head = payload[: 2 * HEAD_BYTES]
    start = _PROLOGUE.sub(b"", payload[:START_BYTES], count=1)[: 2 * HEAD_BYTES]
    named = re.split(r"[;,\s]", (declared or "").strip().lower(), maxsplit=1)[0]
    named = _ALSO.get(named, named)
    is_binary = not head.startswith(_UTF16) and bool(_BINARY.search(head[:HEAD_BYTES]))
    if b"%PDF-" in payload[: START_BYTES if named == PDF and not _HTML_TAGS.match(start) else 1024]:
        return PDF
    if head.lstrip().startswith(b"{\\rtf"):
        return RTF
    if head.startswith(_OLE):
        if "WordDocument".encode("utf-16-le") in payload:
            return DOC
    elif _HTML_TAGS.match(start):  # before the check for binary data: pages may contain control characters by mistake
        return HTML
    elif is_binary:
        with suppress(Exception):  # kreuzberg raises many types for unknown bytes
            if not (mime := str(kreuzberg.detect_mime_type_from_bytes(payload))).startswith("text/"):
                return mime  # of a container or image
    elif start.startswith(b"<?xml"):
        return XHTML if _XHTML.search(start) else "text/xml"
    if is_binary:
        return named if named and not named.startswith("text/") and named != XHTML else OCTETS
    # Text that is declared as a PDF is usually an error message of the server.
    return TEXT if named in ("", PDF, RTF, DOC, DOCX, ODT, OCTETS) else named


_ESCAPED = re.compile(r"\\'([0-9a-fA-F]{2})")


def extract(payload: bytes, declared: str | None, settings: Extract) -> ExtractedText | NoText:
    """Return the text of a document, or the reason why there is none.

    Args:
        declared: MIME type of the HTTP header, or else of the index.
        settings: Limits of the length of a text.
    """
    if not payload:
        return NoText("empty", "0 bytes")
    mime, charset = mime_type(payload, declared), None
    fields: dict[str, str | None] | NoText
    if mime in (HTML, XHTML, TEXT):
        page, charset = decode(payload, declared)
        if mime == TEXT:
            # Mojibake makes lines longer, so that unwrapping would fail.
            extractor, fields = "plain", {"text": "\n".join(unwrap(without_mojibake(page).split("\n")))}
        else:
            extractor, fields = "trafilatura", read_html(page, comments=settings.comments)
    elif mime == PDF:
        extractor, fields = "pypdfium2", read_pdf(payload)
    elif mime in (RTF, DOC, DOCX, ODT):
        extractor, fields = "kreuzberg", read_office(payload, mime)
    else:
        return NoText("kind", mime)
    if isinstance(fields, NoText):
        return fields
    text = repair(fields["text"] or "")
    if len(text) < settings.min_characters:
        return NoText("short" if text else "empty", f"{len(text)} characters")
    if len(text) > settings.max_characters:
        return NoText("long", f"{len(text)} characters")
    title = " ".join(repair(fields.get("title") or "").split()) or None
    return ExtractedText(mime, text, extractor, title=title, charset=charset)


def read_office(payload: bytes, mime: str) -> dict[str, str | None] | NoText:
    """Return text and title of a file, or the reason why there is no text."""
    try:
        config = kreuzberg.ExtractionConfig(use_cache=False, output_format="plain", disable_ocr=True)
        extracted = kreuzberg.extract_bytes_sync(payload, mime, config=config)
    except MemoryError:
        raise
    except Exception as error:  # exceptions of kreuzberg and of its parsers
        return NoText("unreadable", " ".join(str(error).split()))
    metadata: Any = extracted.metadata
    title = metadata.get("title") or (metadata.get("core_properties") or {}).get("title")
    if isinstance(title, str):  # in RTF with escapes, which kreuzberg does not decode
        title = _ESCAPED.sub(lambda match: bytes.fromhex(match[1]).decode("windows-1252", "replace"), title)
    return {"text": extracted.content, "title": title if isinstance(title, str) else None}
