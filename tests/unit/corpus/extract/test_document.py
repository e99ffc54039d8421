import pytest
from corpus_files import HEART, docx, odt, pdf, rtf, word_file

from paratune.corpus.extract.document import extract
from paratune.corpus.extract.process import ExtractedText, NoText
from paratune.corpus.settings import Extract

KEPT = Extract(min_characters=20, max_characters=100_000)
OTHER = "O segundo parágrafo não diz mais nada do que o primeiro, mas diz isso devagar e até ao fim."


def read(payload, mime="text/html", content_type=None, kept=KEPT):
    return extract(payload, content_type or mime, kept)


def page(body, head=""):
    return f"<html><head><title>Um\n título</title>{head}</head><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("payload", "extractor"),
    [
        (page(f"<p>{HEART}<p>{OTHER}").encode("iso-8859-1"), "trafilatura"),
        (f"<p>{HEART}</p>\n<p>{OTHER}</p>".encode(), "trafilatura"),
        (f"{HEART}\n\n{OTHER}".encode("cp1252"), "plain"),
        (pdf([HEART, "", OTHER]), "pypdfium2"),
        (pdf([HEART], [OTHER]), "pypdfium2"),
        (rtf(HEART, OTHER), "kreuzberg"),
        (docx(HEART, OTHER), "kreuzberg"),
        (odt(HEART, OTHER), "kreuzberg"),
        (word_file(f"{HEART}\r{OTHER}\r"), "kreuzberg"),
    ],
    ids=["html", "piece of html", "text", "pdf", "pdf of two pages", "rtf", "docx", "odt", "doc"],
)
def test_each_kind_gives_its_paragraphs(payload, extractor):
    result = read(payload, mime="text/plain")
    assert isinstance(result, ExtractedText)
    assert result.text.split("\n") == [HEART, OTHER]
    assert result.extractor == extractor


def test_html_gives_its_title():
    result = read(page(f"<p>{HEART}</p>").encode())
    assert (result.title, result.mime, result.charset) == ("Um título", "text/html", "utf-8")


def test_comments_of_readers_follow_the_text_on_request():
    comments = ["Gostei muito deste texto, obrigado por o ter escrito.", "Eu não concordo nada com isto."]
    body = "".join(f"<div class=comment><p>{text}</p></div>" for text in comments)
    blog = page(f"<article><p>{HEART}</p><p>{OTHER}</p></article><div id=comments>{body}</div>").encode()
    assert read(blog).text.split("\n") == [HEART, OTHER]
    asked = KEPT.model_copy(update={"comments": True})
    assert read(blog, kept=asked).text.split("\n") == [HEART, OTHER, *comments]


@pytest.mark.parametrize("before", [b" " * 5000, b"<!--" + b"x" * 5000 + b"-->\r\n"], ids=["spaces", "comment"])
@pytest.mark.parametrize("mime", ["text/html", "text/plain", ""])
def test_a_page_with_a_long_start_is_a_page(before, mime):
    assert read(before + page(f"<p>{HEART}").encode(), mime=mime).text == HEART


def test_a_pdf_behind_other_bytes_is_a_pdf():
    late = b"HTTP/1.1 200 OK\r\n" * 100 + pdf([HEART])
    assert read(late, mime="application/pdf").text == HEART
    assert read(pdf([HEART]).replace(b"/Kids [4 0 R]", b"/Kids [9 0 R]")).reason == "unreadable"


def test_tables_that_place_text_on_a_page_keep_its_paragraphs():
    # As pages were made before style sheets: a menu at the left, the text in one large cell.
    menu = "<td><a href=a>Início</a><br><a href=b>Contactos</a></td>"
    payload = page(f"<table><tr>{menu}<td>{HEART} {OTHER}<br><br>{OTHER} {HEART}</td></tr></table>").encode()
    lines = read(payload).text.split("\n")
    assert f"{HEART} {OTHER}" in lines
    assert f"{OTHER} {HEART}" in lines


def test_tables_of_data_are_rows_without_strokes():
    payload = page(
        f"<p>{HEART}</p><table><tr><td>Évora</td><td>53 | 591</td></tr><tr><td>Beja</td><td>33</td></tr></table>"
    )
    assert read(payload.encode()).text.split("\n") == [HEART, "Évora 53 | 591", "Beja 33"]


def test_line_ends_of_the_source_mean_nothing_but_in_pre():
    broken = OTHER.replace(" ", "\n", 5)
    payload = page(f"<p>{HEART} <b>Um\npedaço</b>\nmais.</p><p>{broken}</p><pre>Um verso\nOutro verso</pre>").encode()
    assert read(payload).text.split("\n") == [f"{HEART} Um pedaço mais.", OTHER, "Um verso", "Outro verso"]
    assert read(page(f"<p>{HEART}<br>{broken}</p>").encode()).text.split("\n") == [HEART, OTHER]


@pytest.mark.parametrize("charset", ["latin-1", "sloppy-windows-1252"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("mime", ["text/html", "text/plain"])
def test_mojibake_is_undone_with_all_letters_of_portuguese(charset, times, mime):
    # "í" and "Á" have a soft hyphen and a control character as second byte, which Trafilatura removes.
    for letter in "áàâãéêíóôõúçÁÀÂÃÉÊÍÓÔÕÚÇüÜñ":
        expected = wrong = f"Uma frase à beira de x{letter}y no meio do texto."
        for _ in range(times):
            wrong = wrong.encode().decode(charset)
        text = page(f"<p>{wrong}") if mime == "text/html" else wrong
        assert read(text.encode(), mime=mime).text == expected


def test_mojibake_in_attributes_and_entities_of_a_page():
    payload = page(f'<p>{HEART}</p><p title="<Ã­>">Um pa&Atilde;&shy;s <b>&Atilde;&nbsp;</b> beira do mar.</p>')
    assert read(payload.encode()).text.split("\n") == [HEART, "Um país à beira do mar."]


@pytest.mark.parametrize(
    "text",
    [
        "SÃO PAULO, A MANHÃ E AS IRMÃS DO CORAÇÃO",
        "A MANHÃ\u00a0DO CRISTÃ\u00a0E A «MANHû DA IRMÃ\u00adZINHA",
        "À\u00a0LA CARTE, DÉJÀ\u00a0VU, «L’ÂGE D’OR»: l’âge d’or, ça y est",
        "ÄRGER ÜBER «ÖL» UND ÄÖÜß, über\u00a0Öl",
        "ÂNGELA, ÉVORA E O ÂMBITO DA «CANÇÃO»",
    ],
)
@pytest.mark.parametrize("mime", ["text/html", "text/plain"])
def test_correct_capitals_are_no_mojibake(text, mime):
    line = f"Ontem, {text}, e nada mais."
    payload = page(f"<p>{line}") if mime == "text/html" else line
    assert read(payload.encode(), mime=mime).text == line.replace("\u00a0", " ").replace("\u00ad", "")


def test_pages_of_a_pdf_lose_head_and_foot():
    texts = [f"Uma frase da página {word}." for word in ("um", "dois", "três", "quatro", "cinco")]
    pages = [["Relatório de 2004", text, f"- {number} -"] for number, text in enumerate(texts, start=1)]
    assert read(pdf(*pages)).text.split("\n") == texts
    assert "Relatório de 2004" in read(pdf(*pages[:3])).text  # of three pages that is not known
    assert read(pdf([HEART])).title == "Título"


def test_a_paragraph_continues_on_the_next_page():
    assert read(pdf([OTHER], ["E aqui outro."])).text.split("\n") == [OTHER, "E aqui outro."]
    assert read(pdf([OTHER[:-1]], ["e aqui acaba."])).text.split("\n") == [f"{OTHER[:-1]} e aqui acaba."]


def test_a_title_of_rtf_is_decoded():
    titled = rtf(HEART).replace(b"\\f0 O", b"{\\info{\\title Rela\\'e7\\'e3o}}\\f0 O", 1)
    assert read(titled).title == "Relação"


@pytest.mark.parametrize(
    ("payload", "mime", "reason", "detail"),
    [
        (b"", "text/html", "empty", "0 bytes"),
        (b"<html><body></body></html>", "text/html", "empty", "0 characters"),
        (b" \r\n\t ", "text/plain", "empty", "0 characters"),
        (pdf([]), "application/pdf", "empty", "0 characters"),
        (b"Dezanove letras,  a", "text/plain", "short", "18 characters"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "image/png", "kind", "image/png"),
        (b"%PDF-1.4 and nothing else", "application/pdf", "unreadable", "PDFium"),
        (docx(HEART)[:600], None, "unreadable", "DOCX"),
        (word_file(HEART)[:2000], None, "unreadable", "DOC"),
    ],
)
def test_documents_without_text_are_dropped_with_the_reason(payload, mime, reason, detail):
    result = read(payload, mime=mime)
    assert isinstance(result, NoText)
    assert result.reason == reason
    assert detail in result.detail


def test_a_text_that_is_too_long_is_dropped():
    assert read(HEART.encode(), kept=KEPT.model_copy(update={"max_characters": len(HEART)})).text == HEART
    result = read(HEART.encode(), kept=KEPT.model_copy(update={"max_characters": len(HEART) - 1}))
    assert (result.reason, result.detail) == ("long", f"{len(HEART)} characters")


def test_a_locked_pdf_is_dropped_as_such():
    # Standard security handler, revision 2; the keys are not those of any password that PDFium tries.
    locked = pdf([HEART]).replace(
        b"/Info",
        b"/ID [<00> <00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <"
        + b"11" * 32
        + b"> /U <"
        + b"22" * 32
        + b"> >> /Info",
    )
    assert read(locked).reason == "encrypted"


@pytest.mark.parametrize(
    "body",
    [
        "<div>" * 5000,
        "<table><tr><td>" * 1000,
        "<b>" * 3000 + "</p>" * 3000,
        "<a href='http://[bad' rel=license>",
        "<p" + " a=1" * 2000 + ">",
        "&#x0;&#xD800;&#xFFFFFFFF;&nosuch;",
        "<!--" + "-" * 5000,
        "<script>document.write('<p>no</p>')</script><style>p{}</style>",
        "\x00\x01\x1b[31m\x1a\x0b",
        "<![CDATA[" * 50 + "<?php " * 50,
    ],
)
def test_hostile_pages_end_as_text_or_with_a_reason(body):
    result = read(page(f"<p>{HEART}</p>{body}<p>{OTHER}").encode())
    assert isinstance(result, NoText) or HEART in result.text
    if isinstance(result, ExtractedText):
        assert not {"\x00", "\x1b", "\ud800"} & set(result.text)
