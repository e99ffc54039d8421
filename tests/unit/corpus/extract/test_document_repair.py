import unicodedata

import ftfy
import pytest
from corpus_files import HEART
from hypothesis import example, given
from hypothesis import strategies as st

from paratune.corpus.extract.document import _ENDS, CONFIG, extract, repair, without_mojibake
from paratune.corpus.extract.process import ExtractedText
from paratune.corpus.settings import Extract


def test_mojibake_is_undone():
    once = HEART.encode().decode("cp1252", "replace")
    assert "Ã" in once
    assert repair(once) == HEART
    assert repair("coraÃƒÂ§ÃƒÂ£o") == "coração"  # twice
    assert repair("cora\u00c3\u00a7\u00c3\u00a3o") == "coração"
    assert repair("\u00c3\u0085ngstr\u00c3\u00b6m") == "Ångström"  # U+0085 is no line end here
    assert repair("COMUNICA\u00c3\u00a7\u00c3\u00a3O") == "COMUNICAçãO"  # capitals of ASCII only


def test_correct_text_is_not_changed():
    for text in (HEART, "São João à mesa: “pão”, ‘vinho’ – 5 €…", "IRÁ À ÁREA", "ﬁ".replace("ﬁ", "fi")):
        assert repair(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h", "a\nb\nc\nd\ne\nf\ng\nh"),
        ("a\n\n \t\n b ", "a\nb"),
        ("a\tb\u00a0 c", "a b c"),
        ("a\x00b\x07c\x1b[31md", "abcd"),
        ("pa\u00adla\u200bvra\ufeff", "palavra"),
        ("a\u202eb\u2066c", "abc"),
        ("c\u00ad\u0327a", "ça"),
        ("c\u0327a\u0303o", "ção"),
        ("a\ufffe\uffffb", "ab"),
        ("\ud83d\ude00 \ud83d", "😀 \ufffd"),
        ("", ""),
    ],
)
def test_control_characters_are_removed(text, expected):
    assert repair(text) == expected


@given(st.text(st.characters(), max_size=60))
def test_any_text_is_normalised(text):
    result = repair(text)
    assert unicodedata.is_normalized("NFC", result)
    assert not any(unicodedata.category(item) in ("Cc", "Cs") for item in result.replace("\n", ""))
    assert result.encode().decode() == result
    # Every way to split lines finds the same ones, and none is empty.
    assert result.splitlines() == [line for line in result.split("\n") if line]


PIECES = st.sampled_from(
    ["ç", "Ã§", "Â ", "â€œ", "\x93", "ﬁ", "Ａ", "\u3000", "a\u0303", "\x1b[31m", "\ud83d", "é", "Ì€", " à", "\ufff9"]
)


@example(["a\u0303", "Â "])
@given(st.lists(PIECES | st.text(st.characters(), max_size=5), max_size=8))
def test_lines_that_ftfy_is_not_asked_for_are_those_of_which_it_makes_nothing(pieces):
    line = "".join(pieces)
    assert without_mojibake(line) == "\n".join(ftfy.fix_text(item, CONFIG) for item in _ENDS.split(line))


def test_a_title_is_one_line():
    page = "<title>{}</title><p>Um parágrafo com palavras que chegam.</p>"
    for title, expected in ((" Um\n\ttítulo ", "Um título"), (" \n", None)):
        read = extract(page.format(title).encode(), "text/html", Extract(min_characters=1))
        assert isinstance(read, ExtractedText)
        assert read.title == expected
