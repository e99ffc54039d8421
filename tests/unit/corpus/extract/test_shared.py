"""Real documents: pages of a web archive, and Portuguese manuals as PDF, HTML and text."""

import os
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from warcio.archiveiterator import ArchiveIterator

from paratune.corpus.extract.document import extract
from paratune.corpus.extract.process import ExtractedText
from paratune.corpus.settings import Extract

SHARED = Path(os.environ.get("PARATUNE_SHARED_DATA", "no such folder"))
DOCS, ARCHIVE = SHARED / "pt_docs", SHARED / "webarchive"
KEPT = Extract(min_characters=1, max_characters=10**7)
pytestmark = [pytest.mark.shared, pytest.mark.skipif(not DOCS.exists(), reason="the data sets are not here")]


def read(payload, mime):
    result = extract(payload, mime, KEPT)
    assert isinstance(result, ExtractedText), result
    return result


def pages(name):
    with (ARCHIVE / name).open("rb") as file:
        for record in ArchiveIterator(file):
            if record.rec_type == "response":
                yield record.content_stream().read(), record.http_headers.get_header("Content-Type")


def words(text):
    return Counter(re.findall(r"\w+", text.lower()))


def share_found(expected, result):
    """Return the share of the words of one text that the other has, each as often as it occurs there."""
    wanted = words(expected)
    return (wanted & words(result)).total() / wanted.total()


def test_a_wrong_charset_in_meta_is_ignored():
    ((payload, declared),) = pages("arquivo/problematic_encoding_record.warc.gz")
    assert b"charset=iso-8859-1" in payload
    result = extract(payload, declared, KEPT)
    assert result.charset == "utf-8"
    assert result.title == "Dicionário Priberam da Língua Portuguesa"
    assert "perde o acento com o novo Acordo Ortográfico?" in result.text
    assert "Ã" not in result.text
    # The same page as windows-1252, as which it is declared in its `meta`.
    again = extract(payload.decode().encode("cp1252", "ignore"), "text/html; charset=utf-8", KEPT)
    assert (again.charset, again.title) == ("windows-1252", result.title)
    assert share_found(result.text, again.text) > 0.99


@pytest.mark.parametrize(
    ("name", "title", "sentence"),
    [
        (
            "arquivo/inlinks.1.warc.gz.warc.gz",
            "Prémio Arquivo.pt 2020 – sobre.arquivo.pt",
            "O Arquivo.pt preserva milhões de páginas recolhidas da web desde 1996 e disponibiliza um serviço público",
        ),
        (
            "arquivo/inlinks.2.warc.gz.warc.gz",
            "Abrem já em Janeiro as candidaturas para o Prémio Arquivo.pt 2020 | Prémio Arquivo.pt 2020 | PÚBLICO",
            "Na edição deste ano, há uma menção honrosa para os trabalhos realizados com base nos conteúdos do PÚBLICO",
        ),
    ],
)
def test_pages_of_the_archive(name, title, sentence):
    (page,) = pages(name)
    result = extract(*page, KEPT)
    assert result.title == title
    assert sentence in result.text


def test_every_page_of_an_archive_is_read_or_dropped_with_a_reason():
    result = [extract(*page, KEPT) for page in pages("pywb/warcs/iana.warc.gz")]
    texts = [entry for entry in result if isinstance(entry, ExtractedText)]
    assert sum(entry.mime == "text/html" for entry in texts) == 18
    assert {entry.reason for entry in result if not isinstance(entry, ExtractedText)} == {"kind", "empty"}


def test_a_pdf_has_the_words_of_its_text():
    # The same manual, set by LaTeX and written as text by Docbook: what differs is numbers of pages and headings.
    text = (DOCS / "debian-faq.pt.txt").read_text(encoding="utf-8")
    result = read((DOCS / "debian-faq.pt.pdf").read_bytes(), "application/pdf")
    assert result.title == "The Debian GNU/Linux FAQ"
    assert share_found(text, result.text) > 0.97
    lines = result.text.split("\n")
    assert sum(len(line) > 300 for line in lines) > 100  # paragraphs, not lines of a page
    assert not any("\ufffe" in line or line.endswith("-") for line in lines if len(line) > 100)


def test_a_wrapped_text_keeps_its_words_in_paragraphs():
    payload = (DOCS / "debian-faq.pt.txt").read_bytes()
    result = read(payload, "text/plain")
    assert share_found(payload.decode(), result.text) > 0.999
    assert sum(len(line) > 300 for line in result.text.split("\n")) > 100
    latin = read(payload.decode().encode("cp1252", "replace"), "text/plain")
    assert latin.charset == "windows-1252"
    assert share_found(result.text, latin.text) > 0.999


def test_pages_of_a_manual_have_the_words_of_its_text():
    text = read((DOCS / "debian-faq.pt.txt").read_bytes(), "text/plain").text
    # Trafilatura leaves out the tables of contents, which are short lines; only the text has addresses.
    long = "\n".join(line for line in text.split("\n") if len(line) > 200)
    assert len(long) > len(text) / 3
    with tarfile.open(DOCS / "debian-faq.pt.html.tar.gz") as archive:
        payloads = [archive.extractfile(member).read() for member in archive if member.name.endswith(".html")]
    result = "\n".join(read(payload, "text/html").text for payload in payloads)
    assert share_found(long, result) > 0.97


def test_a_pdf_and_a_page_of_the_same_manual_agree():
    page = read((DOCS / "audacity-manual.html").read_bytes(), "text/html")
    document = read((DOCS / "audacity-manual.pdf").read_bytes(), "application/pdf")
    assert share_found(page.text, document.text) > 0.97
