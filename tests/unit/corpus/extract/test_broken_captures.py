"""Captures as archives have them: encoded twice, declared wrongly, with hidden characters; each has its text."""

import ftfy.bad_codecs  # noqa: F401 - registers sloppy-windows-1252, in which each byte is a character
import pytest
from corpus_files import HEART, docx, odt, pdf, rtf, word_file

from paratune.corpus.extract.document import extract
from paratune.corpus.settings import Extract

LATIN, WINDOWS = "latin-1", "sloppy-windows-1252"
SAID = "Às vezes o país é “nosso”: à beira-mar, em Águeda, na Índia, no Ártico – e em Évora."
CODE = "text/html; charset="


def twice(text, codec=LATIN, times=1):
    """Return `text` as if its UTF-8 was read in `codec`, so many times."""
    for _ in range(times):
        text = text.encode().decode(codec)
    return text


def page(text, title="Um título"):
    return f"<html><head><title>{title}</title></head><body><p>{text}</p><p>{HEART}</p></body></html>"


def entities(text):
    return "".join(c if c.isascii() else f"&#{ord(c)};" for c in text)


NAMED = "Rela&Atilde;&sect;&Atilde;&micro;es, cora&Atilde;&sect;&Atilde;&pound;o, pa&Atilde;&shy;s, l&Atilde;&iexcl;"
BROKEN = {
    "html, latin-1": (page(twice(SAID)).encode(), CODE + "utf-8", SAID),
    "html, windows-1252": (page(twice(SAID, WINDOWS)).encode(), CODE + "utf-8", SAID),
    "html, three times": (page(twice(SAID, WINDOWS, 2)).encode(), CODE + "utf-8", SAID),
    "html, three times latin-1": (page(twice(SAID, LATIN, 2)).encode(), "text/html", SAID),
    "html, as numbers": (page(entities(twice(SAID))).encode(), "text/html", SAID),
    "html, as windows numbers": (page(entities(twice(SAID, WINDOWS))).encode(), "text/html", SAID),
    "html, as names": (page(NAMED).encode(), "text/html", "Relações, coração, país, lá"),
    "html, part in italics": (page(f"Foi <i>{twice('à praia')}</i> ontem.").encode(), None, "Foi à praia ontem."),
    "html, in a list": (
        page(f"<ul><li>{twice('Águas')}<li>{twice('país')}</ul>").encode(),
        None,
        "Águas\npaís",
    ),
    "html, half of it": (page(f"{twice('país é')}<br>{SAID}").encode(), None, f"país é\n{SAID}"),
    "html, header says latin-1": (page(SAID).encode(), CODE + "iso-8859-1", SAID),
    "html, header says utf-8": (page(SAID).encode("cp1252"), CODE + "utf-8", SAID),
    "html, latin-1 with a mark of utf-8": (b"\xef\xbb\xbf" + page(SAID).encode(), CODE + "iso-8859-1", SAID),
    "html, a byte of latin-1 in utf-8": (
        page(SAID).encode().replace(b"beira", b"be\xefra"),
        CODE + "utf-8",
        SAID.replace("beira", "be\ufffdra"),
    ),
    "html, declared latin-1 with a broken byte": (
        page(SAID).encode().replace(b"beira", b"beir\xe3"),
        CODE + "iso-8859-1",
        SAID.replace("beira", "beirã"),
    ),
    "html, utf-16": (b"\xff\xfe" + page(SAID).encode("utf-16-le"), CODE + "iso-8859-1", SAID),
    "html, quotes of windows as numbers": (
        page("Disse &#147;sim&#148; &#150; &#128;5.").encode(),
        None,
        "Disse “sim” – €5.",
    ),
    "html, soft hyphens": (page("ca&shy;rac&shy;te&shy;rís&shy;ti&shy;ca").encode(), None, "característica"),
    "html, fixed spaces": (page("10&nbsp;€&nbsp; e&nbsp;meio").encode(), None, "10 € e meio"),
    "html, hidden characters": (page("pala&#8203;vra&#8206; &#65279;e<wbr>mais").encode(), None, "palavra emais"),
    "html, ligatures": (page("o ﬁm é diﬀícil de ﬂorir").encode(), None, "o fim é diffícil de florir"),
    "html, NULs": (page("pala\x00vra e \x07fim").encode(), None, "palavra e fim"),
    "html, capitals that are right": (page("IRMÃ E MANHÃ: «AMANHÃ»").encode(), None, "IRMÃ E MANHÃ: «AMANHÃ»"),
    "text, latin-1": ((twice(SAID) + "\n\n" + HEART).encode(), "text/plain", SAID),
    "text, wrapped": (
        "\n".join(
            twice(f"{word} continua na linha que aqui está e só acaba ali") for word in ("Ílhavo", "país")
        ).encode(),
        "text/plain",
        "Ílhavo continua na linha que aqui está e só acaba ali país continua na linha que aqui está e só acaba ali",
    ),
    "text, utf-16 without a declaration": (b"\xfe\xff" + f"{SAID}\r\r{HEART}".encode("utf-16-be"), "text/plain", SAID),
    "text, a control character and a mark": (
        f"pala\x7fvra e \ufefffim\r\n\r\n{HEART}".encode(),
        "text/plain",
        "palavra e fim",
    ),
    "text, macintosh": (
        f"Às vezes é “não”\r\r{HEART}".encode("mac-roman"),
        "text/plain; charset=macintosh",
        "Às vezes é “não”",
    ),
    "pdf, latin-1": (pdf([twice("O país é à beira"), "", HEART], is_latin_1=True), None, "O país é à beira"),
    "pdf, windows-1252": (pdf([twice("O país é à beira", WINDOWS), "", HEART]), None, "O país é à beira"),
    "pdf, three times": (pdf([twice("O país é", WINDOWS, 2), "", HEART]), None, "O país é"),
    "pdf, a line of Á": (pdf([twice("Águeda é à direita"), "", HEART], is_latin_1=True), None, "Águeda é à direita"),
    "docx": (docx(twice(SAID), HEART), None, SAID),
    "docx, letters and marks apart": (docx("O corac\u0327a\u0303o e\u0301 nosso", HEART), None, "O coração é nosso"),
    "odt": (odt(twice(SAID), HEART), None, SAID),
    "rtf": (rtf(twice("O país é à beira", WINDOWS), HEART), None, "O país é à beira"),
    "doc": (word_file(f"{twice(SAID)}\r{HEART}\r"), None, SAID),
}
"""Name -> bytes, declared type, and the expected text before HEART."""


@pytest.mark.parametrize(("payload", "declared", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_capture_gives_its_text(payload, declared, expected):
    result = extract(payload, declared, Extract(min_characters=1))
    assert result.text.removesuffix(HEART).rstrip("\n") == expected


@pytest.mark.parametrize(
    ("payload", "declared"),
    [
        (page("Texto", twice("Índia é país")).encode(), CODE + "utf-8"),
        (pdf([HEART], title=twice("Índia é país")), None),
    ],
)
def test_a_broken_title_is_repaired(payload, declared):
    assert extract(payload, declared, Extract(min_characters=1)).title == "Índia é país"
