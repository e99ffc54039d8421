import textwrap

from paratune.corpus.extract.document import HYPHEN, unwrap

LONG = (
    "A cidade acordou com chuva e as escolas ficaram fechadas durante a manhã de ontem, enquanto os bombeiros "
    "retiravam árvores das ruas do centro e a câmara pedia que ninguém saísse de casa antes do meio-dia."
)


def test_wrapped_paragraphs_are_joined_as_they_were():
    # textwrap breaks where the next word would not have fitted: what it did is undone, and nothing else.
    for width in range(45, 130, 7):
        parts = [LONG, "Um título", LONG.upper(), "- um ponto", "- outro ponto"]
        lines = [line for part in parts for line in [*textwrap.wrap(part, width, break_on_hyphens=False), ""]]
        assert unwrap(lines) == parts


def test_indentation_counts_in_the_width():
    lines = textwrap.wrap(LONG, 60, initial_indent="        ", subsequent_indent="        ")
    assert unwrap([*lines, "", *textwrap.wrap(LONG, 60)]) == [LONG, LONG]


def test_a_list_and_a_short_line_stay():
    lines = textwrap.wrap(LONG, 60)
    items = ["1. " + "Primeira linha de uma lista que é tão longa como a página"[:57], "2. Segunda", "3) Terceira"]
    assert unwrap([*lines, *items]) == [" ".join(lines), *items]


def test_text_that_is_not_wrapped_stays():
    assert unwrap([LONG, LONG]) == [LONG, LONG]  # longer than any width
    assert unwrap(["Um verso", "outro verso"]) == ["Um verso", "outro verso"]  # shorter than any
    assert unwrap(["", " "]) == []


def test_hyphens_of_the_line_go_and_those_of_the_word_stay():
    line = "Esta linha enche a página e por isso acaba com um hífen, por-"
    assert unwrap([line, "tanto continua."])[0].endswith("hífen, portanto continua.")
    # The text contains "tornar-se" with its hyphen in another place, and not "tornarse".
    line = "Esta linha enche a página e acaba no meio de um verbo: tornar-"
    result = unwrap([line, "se grande. Quis tornar-se rei."])
    assert result == ["Esta linha enche a página e acaba no meio de um verbo: tornar-se grande. Quis tornar-se rei."]


def test_a_paragraph_of_any_length_is_joined_in_time():
    # Twenty thousand lines: each is looked at once, whatever is before it.
    line = "Uma linha que tem a largura de uma página de um livro qualquer"
    assert unwrap([line] * 20_000) == [" ".join([line] * 20_000)]


def test_the_mark_of_pdfium_joins_without_a_width():
    filler = "Uma linha que tem a largura de uma página de um livro qualquer"
    assert unwrap([filler, "", f"Soft{HYPHEN}", "ware livre"]) == [filler, "Software livre"]
    assert unwrap([filler, "", f"ver Anglo{HYPHEN}", "Saxónia"])[1] == "ver Anglo-Saxónia"
