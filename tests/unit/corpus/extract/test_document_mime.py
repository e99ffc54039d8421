import pytest
from corpus_files import HEART, docx, odt, pdf, rtf, word_file

from paratune.corpus.extract.document import DOC, DOCX, HTML, OCTETS, ODT, PDF, RTF, TEXT, XHTML, mime_type

PAGE = b"<html><body><p>Ol\xe1</p></body></html>"
CASES = {
    "pdf": (pdf([HEART]), "text/html", PDF),
    "pdf after junk": (b"\r\n\r\n" + pdf([HEART]), None, PDF),
    "rtf": (rtf(HEART), "application/msword", RTF),
    "doc": (word_file(HEART), "application/octet-stream", DOC),
    "docx": (docx(HEART), "application/zip", DOCX),
    "odt": (odt(HEART), None, ODT),
    "page": (PAGE, "application/pdf", HTML),
    "page in capitals": (b"<HTML><BODY>x", None, HTML),
    "page after lines": (b"\r\n\r\n<!DOCTYPE html>", "text/plain", HTML),
    "page after a comment": (b"<!-- made by hand --><html>", None, HTML),
    "page after a mark": (b"\xef\xbb\xbf<html>", None, HTML),
    "page of XML": (b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">\n<html>', "text/xml", XHTML),
    "page with control characters": (b"<html><title>a\x00b\x1b[31m\x1a</title>", "text/html", HTML),
    "feed": (b'<?xml version="1.0"?><rss></rss>', "text/html", "text/xml"),
    "declared page": (b"Ol\xe1, mundo", "text/html; charset=iso-8859-1", HTML),
    "text": (b"Ol\xe1, mundo", "text/plain", TEXT),
    "text without a type": (b"Ol\xe1, mundo", None, TEXT),
    "text sent as a PDF": (b"404: not here", "application/pdf", TEXT),
    "script": (b"var a = 1;", "application/javascript", "application/javascript"),
    "text in UTF-16": ("Olá, mundo".encode("utf-16"), "text/plain", TEXT),
    "picture": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "text/html", "image/png"),
    "bytes": (b"\x00\x01\x02\x03" * 9, "text/html", OCTETS),
    "slides": (b"\x00\x01\x02\x03" * 9, "application/vnd.ms-powerpoint", "application/vnd.ms-powerpoint"),
    "other compound file": (word_file("x").replace(b"W\0o\0r\0d\0", b"B\0o\0o\0k\0"), None, OCTETS),
    "nothing": (b"", "text/html", HTML),
}


@pytest.mark.parametrize("name", CASES)
def test_first_bytes_have_priority_over_the_declared_type(name):
    payload, declared, expected = CASES[name]
    assert mime_type(payload, declared) == expected


@pytest.mark.parametrize("payload", [b"PK\x03\x04", b"%PDF-", b"{\\rtf", b"<?xml", b"<!--", b"\xff\xfe", b"\xff"])
def test_a_torn_document_has_some_kind(payload):
    assert "/" in mime_type(payload, None)


def test_a_declared_type_loses_its_parameters():
    assert mime_type(b"words", " Text/CSV;charset=x ") == "text/csv"
    assert mime_type(b"\x00", "text/rtf") == RTF
    assert mime_type(b"words", "") == mime_type(b"words", None) == TEXT
