"""Document files and tables of fetched files, written byte by byte, for tests of the extraction."""

import io
import struct
import zipfile

from paratune.console import Display
from paratune.corpus.shard import FETCHED_SCHEMA
from paratune.corpus.stage import Stage, run_stage

HEART = "O coração bate sempre, e a cidade de Évora acorda cedo com o sol de Março."
"""A sentence with letters outside ASCII, all of them in windows-1252."""
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = (
    f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/'
    'vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" Target="word/document.xml" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/></Relationships>'
)


def zipped(members):
    """Return a ZIP of files, by name and content; the first file is uncompressed, as OpenDocument requires."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, (name, content) in enumerate(members.items()):
            archive.compression = zipfile.ZIP_STORED if number == 0 else zipfile.ZIP_DEFLATED
            info = zipfile.ZipInfo(name)
            info.compress_type = archive.compression
            with archive.open(info, "w") as member:
                for piece in [content] if isinstance(content, bytes) else content:
                    member.write(piece)
    return file.getvalue()


def docx(*paragraphs):
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    return docx_of([body.encode()])


def docx_of(pieces):
    head, foot = f'<w:document xmlns:w="{WORD}"><w:body>'.encode(), b"</w:body></w:document>"
    members = {"[Content_Types].xml": _TYPES.encode(), "_rels/.rels": _RELATIONS.encode()}
    return zipped({**members, "word/document.xml": (piece for part in ([head], pieces, [foot]) for piece in part)})


def odt(*paragraphs):
    body = "".join(f"<text:p>{text}</text:p>" for text in paragraphs)
    names = "urn:oasis:names:tc:opendocument:xmlns"
    content = (
        f'<office:document-content xmlns:office="{names}:office:1.0" xmlns:text="{names}:text:1.0">'
        f"<office:body><office:text>{body}</office:text></office:body></office:document-content>"
    )
    return zipped({"mimetype": b"application/vnd.oasis.opendocument.text", "content.xml": content.encode()})


def rtf(*paragraphs):
    escaped = (
        "".join(chr(b) if b < 128 else f"\\'{b:02x}" for b in text.encode("windows-1252")) for text in paragraphs
    )
    return ("{\\rtf1\\ansi\\ansicpg1252\\deff0{\\fonttbl{\\f0 Arial;}}\\f0 " + "\\par ".join(escaped) + "}").encode()


def pdf(*pages, title="Título", is_latin_1=False):
    """Return a PDF of pages, each a list of lines, in Helvetica and WinAnsi, with 14 points between lines.

    With `is_latin_1` the font maps each byte to the character of the same number, also to control characters.
    """
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", None, "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica "]
    kids = []
    if is_latin_1:
        ranges = "1 beginbfrange\n<20> <ff> <0020>\nendbfrange"
        cmap = f"begincmap\n1 begincodespacerange\n<00> <ff>\nendcodespacerange\n{ranges}\nendcmap"
        objects.append(f"<< /Length {len(cmap)} >>\nstream\n{cmap}\nendstream")
        objects[2] += "/ToUnicode 4 0 R "
    objects[2] += "/Encoding /WinAnsiEncoding >>"
    for lines in pages:
        text = "T*\n".join(f"({line}) Tj\n" for line in lines)
        stream = f"BT /F1 11 Tf 14 TL 50 780 Td\n{text}ET"
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {len(objects) + 2} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    objects.append(f"<< /Title <FEFF{title.encode('utf-16-be').hex()}> >>")
    return _pdf_file(objects, "latin-1" if is_latin_1 else "windows-1252")


def _pdf_file(objects, encoding):
    content, offsets = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{item}\nendobj\n".encode(encoding)
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size, start = len(objects) + 1, len(content)
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return content + f"xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()


def fetched_row(number, payload, **known):
    """Return the row of a fetched file; `known` replaces its columns."""
    row = dict.fromkeys(FETCHED_SCHEMA.names)
    row |= {"url": f"http://a.pt/{number}", "timestamp": "20050102030405", "digest": f"D{number}", "mime": "text/html"}
    return row | {"status": 200, "source": "a.warc.gz", "sha1": f"S{number}", "how": "file", "payload": payload} | known


def fetched(work, *shards):
    """Write a finished stage `fetch` whose shards hold these rows."""
    stage = Stage("fetch", work / "2_fetch", FETCHED_SCHEMA, iter, 1, [1])
    return run_stage(stage, [(shard,) for shard in shards], workers=1, display=Display(speaks=False))


def word_file(text):
    """Return a Word 97 file: a compound file whose stream WordDocument holds an information block and the text.

    Source: [MS-DOC] 2.5 (Fib), 2.8.35 (PlcPcd); [MS-CFB] 2.2 to 2.6. Streams are padded past 4096 bytes, so that no
    mini stream is needed.
    """
    encoded = text.encode("utf-16-le")
    start = 1024
    fib = bytearray(start)
    struct.pack_into("<HHHHHHH", fib, 0, 0xA5EC, 0x00C1, 0, 0x0816, 0, 0x0200, 0x00BF)  # table stream: 1Table
    struct.pack_into("<II", fib, 24, start, start + len(encoded))  # fcMin and fcMac, which Word still writes
    struct.pack_into("<H", fib, 32, 14)  # csw
    struct.pack_into("<H", fib, 62, 22)  # cslw
    struct.pack_into("<I", fib, 64 + 12, len(text))  # ccpText
    struct.pack_into("<H", fib, 152, 0x5D)  # cbRgFcLcb of Word 97
    pieces = struct.pack("<II", 0, len(text)) + struct.pack("<HIH", 0, start, 0)
    clx = b"\x02" + struct.pack("<I", len(pieces)) + pieces
    struct.pack_into("<II", fib, 154 + 33 * 8, 0, len(clx))  # fcClx, lcbClx
    return _compound({"WordDocument": bytes(fib) + encoded, "1Table": clx})


def _compound(streams):
    sector, end, free, no = 512, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF
    bodies = {name: body.ljust(max(4096, -(-len(body) // sector) * sector), b"\0") for name, body in streams.items()}
    table, body, starts = [0xFFFFFFFD, end], b"", {}  # sector 0 is the table itself, sector 1 the directory
    for name, content in bodies.items():
        starts[name] = len(table)
        count = len(content) // sector
        table += [*range(len(table) + 1, len(table) + count), end]
        body += content
    names = sorted(bodies, key=lambda name: (len(name), name))  # a tree of two: the root's child and its right sibling
    entries = [_entry("Root Entry", 5, child=2 if len(names) == 2 else 1, start=end, size=0)]
    for number, name in enumerate(names, start=1):
        left = 1 if number == 2 else no
        entries.append(_entry(name, 2, left=left, start=starts[name], size=len(bodies[name])))
    directory = b"".join(entries).ljust(sector, b"\0")
    assert len(table) <= sector // 4
    fat = struct.pack(f"<{sector // 4}I", *table, *[free] * (sector // 4 - len(table)))
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    header += struct.pack("<HHHHH6xIIIIIIIII", 0x3E, 3, 0xFFFE, 9, 6, 0, 1, 1, 0, 4096, end, 0, end, 0)
    header += struct.pack("<109I", 0, *[free] * 108)
    return header + fat + directory + body


def _entry(name, kind, *, left=0xFFFFFFFF, child=0xFFFFFFFF, start, size):
    encoded = (name + "\0").encode("utf-16-le")
    entry = encoded.ljust(64, b"\0") + struct.pack("<HBBIII", len(encoded), kind, 1, left, 0xFFFFFFFF, child)
    return entry + bytes(16 + 4 + 16) + struct.pack("<IQ", start, size)
