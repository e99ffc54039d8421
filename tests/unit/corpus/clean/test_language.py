import pytest
from corpus_documents import dropped, extracted, kept, runner
from raised import raises_code

from paratune.corpus.clean.language import check_languages, identify_language, run_language
from paratune.corpus.settings import Clean, Corpus, Language

PORTUGUESE = "A cidade acordou com chuva e as escolas ficaram fechadas durante a manhã de ontem."
# Articles 1 of the Universal Declaration of Human Rights, as published by the United Nations.
GALICIAN = (
    "Tódolos seres humanos nacen libres e iguais en dignidade e dereitos e, dotados como están de razón e conciencia."
)
SPANISH = (
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y conciencia."
)
ENGLISH = "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience."


def run(tmp_path, *shards, workers=1, **options):
    corpus = Corpus(work=str(tmp_path), clean=Clean(language=Language(**options)))
    folder = tmp_path / "4_clean" / "1_language"
    return run_language(corpus, extracted(tmp_path, *shards), folder, runner(workers)), folder


@pytest.mark.parametrize(("text", "language"), [(PORTUGUESE, "pt"), (GALICIAN, "gl"), (SPANISH, "es"), (ENGLISH, "en")])
def test_the_language_is_identified(text, language):
    assert identify_language(text)[0] == language


def test_documents_in_other_languages_are_dropped_with_theirs(tmp_path):
    totals, folder = run(tmp_path, [PORTUGUESE, GALICIAN], [ENGLISH, SPANISH])
    assert (totals["kept"], totals["dropped"]) == (1, {"language": 3})
    (row,), second = kept(folder)
    assert (row["language"], row["text"], second) == ("pt", PORTUGUESE, [])
    assert row["language_score"] == pytest.approx(identify_language(PORTUGUESE)[1])
    assert [(item["id"], item["detail"].split()[0]) for item in dropped(folder)] == [
        ("d1", "gl"),
        ("d2", "en"),
        ("d3", "es"),
    ]


def test_more_languages_may_be_kept(tmp_path):
    totals, folder = run(tmp_path, [PORTUGUESE, GALICIAN, ENGLISH], keep=["pt", "gl"])
    assert [row["language"] for row in kept(folder)[0]] == ["pt", "gl"]
    assert totals["dropped"] == {"language": 1}


def test_short_documents_are_dropped_as_unsure(tmp_path):
    _, folder = run(tmp_path, ["Preço 12€", "", PORTUGUESE])
    assert [(item["id"], item["reason"]) for item in dropped(folder)] == [("d0", "language unsure"), ("d1", "language")]
    _, folder = run(tmp_path / "b", ["Preço 12€"], min_score=0.1)
    assert len(kept(folder)[0]) == 1


def test_a_language_that_is_not_known_is_refused_by_name():
    with raises_code("config.invalid_value", "clean.language.keep: por"):
        check_languages(Language(keep=["por"]))


def test_a_text_without_letters_has_one_of_all_probabilities():
    # 128 columns of py3langid, of which some are the same language in two scripts: at most 1/71 or so each.
    assert identify_language("")[1] < 0.02
