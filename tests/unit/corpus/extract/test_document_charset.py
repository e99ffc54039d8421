import cchardet
import pytest
from corpus_files import HEART

from paratune.corpus.extract.document import decode

LATIN = HEART.encode("iso-8859-1")
UTF8 = HEART.encode()
META = '<meta http-equiv="Content-Type" content="text/html; charset={}">'


@pytest.mark.parametrize(
    ("payload", "header", "text", "charset"),
    [
        (LATIN, "text/html; charset=iso-8859-1", HEART, "windows-1252"),
        (LATIN, "text/html; charset=utf-8", HEART, "windows-1252"),  # wrongly declared
        (LATIN, None, HEART, "windows-1252"),
        (LATIN, "text/html; charset=no-such-thing", HEART, "windows-1252"),
        (LATIN, "text/html; charset=us-ascii", HEART, "windows-1252"),
        (UTF8, "text/html; charset=iso-8859-1", HEART, "utf-8"),  # wrongly declared
        (UTF8, None, HEART, "utf-8"),
        (b"\xef\xbb\xbf" + UTF8, "text/html; charset=iso-8859-1", HEART, "utf-8"),
        (HEART.encode("utf-16"), "text/plain; charset=utf-8", HEART, "utf-16-le"),
        (b"\xfe\xff" + HEART.encode("utf-16-be"), None, HEART, "utf-16-be"),
        (b"plain", "text/plain; charset=iso-8859-15", "plain", "iso-8859-15"),
        (b"plain", None, "plain", "utf-8"),
    ],
)
def test_text_is_read_in_its_charset_whatever_is_declared(payload, header, text, charset):
    assert decode(payload, header) == (text, charset)


def test_iso_8859_1_means_windows_1252():
    # Bytes 0x80 to 0x9f are control characters in ISO-8859-1; every browser shows those of windows-1252.
    assert decode(b"\x93Pre\xe7o\x94: 5 \x80 \x96 ok", "text/html; charset=ISO-8859-1") == (
        "“Preço”: 5 € – ok",
        "windows-1252",
    )
    # And its five unused bytes are control characters, not errors.
    assert decode(b"a\x81\xe7", "text/html; charset=latin1")[0] == "a\x81ç"


def test_meta_counts_after_the_header():
    page = META.format("iso-8859-2").encode() + "žluťoučký kůň".encode("iso-8859-2")
    assert decode(page, None)[1] == "iso-8859-2"
    assert decode(page, "text/html")[0].endswith("žluťoučký kůň")
    assert decode(page, "text/html; charset=windows-1251")[1] == "windows-1251"


@pytest.mark.parametrize("label", ["iso-2022-kr", "hz-gb-2312", "x-user-defined", "none-at-all"])
def test_a_charset_that_no_browser_reads_counts_for_none(label):
    # The Encoding standard has the first two replaced by a single U+FFFD, for they hid attacks.
    payload = "O coração de Évora".encode("windows-1252")
    assert decode(payload, f"text/html; charset={label}")[0] == "O coração de Évora"


def test_meta_cannot_be_utf_16():
    for text in ("olá".encode(), LATIN):
        page = META.format("utf-16").encode() + text
        assert decode(page, None)[0].endswith(("olá", HEART))


def test_an_xml_declaration_counts():
    page = '<?xml version="1.0" encoding="iso-8859-2"?><html>žluťoučký kůň</html>'.encode("iso-8859-2")
    text, charset = decode(page, None)
    assert "žluťoučký kůň" in text
    assert charset == "iso-8859-2"


def test_undetected_charsets_use_the_fallback():
    assert decode(b"\xe3\xe3\xf5\xf5", None)[1] in ("windows-1252", "iso-8859-1")
    assert decode(b"caf\x82", None) == ("caf\u201a", "windows-1252")


def test_a_detection_that_is_not_sure_is_not_believed():
    # cchardet detects KOI8-R with a confidence of 61% in Portuguese text in the charset of old Macintoshes.
    payload = "Situação em Évora: não há informação disponível sobre a avaliação das crianças.".encode("mac_roman")
    assert cchardet.detect(payload)["encoding"] == "KOI8-R"
    assert decode(payload, None)[1] == "windows-1252"


def test_a_torn_page_in_utf8_loses_one_letter():
    torn = ("ção " * 20).encode()[:-3]
    text, charset = decode(torn, "text/html; charset=utf-8")
    assert charset == "utf-8"
    assert text.startswith("ção ção")
    assert text.count("\ufffd") == 1
