import random

import pytest
from corpus_documents import dropped, extracted, kept, runner

from paratune.corpus.clean.quality import MeasuredText, failed_rule, quality_rules, repeated_ngrams, run_quality
from paratune.corpus.settings import Clean, Corpus, Quality

PROSE = """A cidade acordou com chuva, e as escolas ficaram fechadas durante toda a manhã de ontem.
O presidente da câmara disse que os serviços de limpeza trabalham desde a madrugada para abrir as estradas principais.
Nas aldeias do norte, porém, muitas famílias continuam sem luz, e não se sabe quando é que a avaria será reparada.
Os bombeiros pedem a todos que não saiam de casa sem necessidade, pelo menos até ao fim da tarde."""


def value(reason, text):
    (measure,) = (rule[3] for rule in quality_rules(Quality()) if rule[0] == reason)
    return measure(MeasuredText(text, Quality()))


def found(text, **options):
    return failed_rule(text, Quality(**options), quality_rules(Quality(**options)))


@pytest.mark.parametrize(
    ("reason", "text", "expected"),
    [
        # "—" is no word: 3 remain, of 1, 4 and 5 characters with their marks.
        ("words", "A casa — azul.", 3),
        ("word length", "A casa — azul.", 10 / 3),
        ("hash signs", "# um ##dois três", 3 / 4),
        ("ellipses", "um... dois… três", 2 / 3),
        ("bullet lines", "• um\n\n  - dois\ntrês – 3", 2 / 3),
        ("ellipsis lines", "um...\ndois… \ntrês.\nquatro", 2 / 4),
        ("alphabetic words", "1,50 € no dia 3.º", 3 / 5),
        # o, ã, o of 6 characters.
        ("letters", "o 12 ão.", 3 / 6),
        # De, «o e que of 5 words.
        ("stop word share", "De manhã «o rapaz» que", 3 / 5),
        ("punctuated lines", "Sim.\nNão »\nTalvez", 2 / 3),
        # 30 characters, and 31.
        ("short lines", "x" * 30 + "\n" + "x" * 31, 1 / 2),
        ("lines per word", "um dois\ntrês\nquatro", 2 / 4),
        ("repeated lines", "a\nb\na\na", 2 / 4),
        # "sim" again, of 3 + 1 + 4 + 1 + 3 characters.
        ("repeated line characters", "sim\nnada\nsim", 3 / 12),
    ],
)
def test_measures(reason, text, expected):
    assert value(reason, text) == pytest.approx(expected)


def test_sequences_of_words():
    text = "um dois um dois três um dois"
    # "um dois" thrice, 7 characters each, of 28.
    assert value("top 2-gram", text) == pytest.approx(21 / 28)
    # "um dois" at the second and the third time, without the space between: 12 of 28.
    assert repeated_ngrams(MeasuredText(text, Quality()), n=2) == pytest.approx(12 / 28)
    assert value("top 2-gram", "um") == value("repeated 5-grams", "um") == 0


def vocabulary_texts():
    """Texts of few words, so that they repeat themselves, some more than others."""
    draw = random.Random(7)
    words = [
        "#",
        "de",
        "a",
        "que",
        "12",
        "casa",
        "cidade.",
        "não",
        "chuva",
        "—",
        "anticonstitucional",
        "verde...",
        "rua,",
    ]
    for size in (3, 6, 10, 13) * 30:
        chosen = draw.sample(words, size)
        lines = [" ".join(draw.choices(chosen, k=draw.randint(2, 14))) for _ in range(draw.randint(4, 20))]
        yield "\n".join([*lines, *draw.choices(lines, k=draw.randint(0, 4))])


def test_repetitions_are_those_of_datatrove():
    from datatrove.pipeline.filters import gopher_repetition_filter as theirs

    for text in vocabulary_texts():
        words, lines = text.split(), text.split("\n")
        for n in (2, 3, 4):
            ngrams = theirs.get_n_grams(words, n)
            expected = theirs.find_top_duplicate(ngrams) / len(text) if len(set(ngrams)) < len(ngrams) else 0
            assert value(f"top {n}-gram", text) == pytest.approx(expected)
        for n in range(5, 11):
            expected = theirs.find_all_duplicate(words, n) / len(text)
            assert value(f"repeated {n}-grams", text) == pytest.approx(expected)
        num_lines, num_characters = theirs.find_duplicates(lines)
        assert value("repeated lines", text) == pytest.approx(num_lines / len(lines))
        assert value("repeated line characters", text) == pytest.approx(num_characters / len(text))


REASONS = {
    "gopher_short_doc": "words",
    "gopher_below_avg_threshold": "word length",
    "gopher_above_avg_threshold": "word length",
    "gopher_too_many_hashes": "hash signs",
    "gopher_too_many_ellipsis": "ellipses",
    "gopher_too_many_end_ellipsis": "ellipsis lines",
    "gopher_below_alpha_threshold": "alphabetic words",
    "gopher_enough_stop_words": "stop words",
}


def test_the_same_documents_as_in_datatrove_are_dropped(monkeypatch):
    from datatrove.data import Document
    from datatrove.pipeline.filters import gopher_quality_filter as theirs

    # datatrove splits words with a model of the language, which this test does not compare.
    monkeypatch.setattr(theirs, "split_into_words", lambda text, _: text.split())
    stop_words = ["de", "a", "que", "não"]
    their_filter = theirs.GopherQualityFilter(stop_words=stop_words)
    only_gopher = {name: None for name in Quality.model_fields if name.startswith(("min_", "max_"))}
    only_gopher |= dict.fromkeys(("max_top_ngrams", "max_repeated_ngrams"))
    only_gopher["max_top_ngrams"], only_gopher["max_repeated_ngrams"] = [None] * 3, [None] * 6
    names = ("words", "word_length", "symbols", "ellipsis_lines", "alphabetic_words", "stop_words", "bullet_lines")
    defaults = Quality()
    for name in Quality.model_fields:
        if name.startswith(("min_", "max_")) and name[4:] in names:
            only_gopher[name] = getattr(defaults, name)
    seen = set()
    for text in vocabulary_texts():
        answer = their_filter.filter(Document(text=text, id="0"))
        expected = None if answer is True else REASONS[answer[1]]
        reason = found(text, **only_gopher, stop_words=stop_words)
        assert (reason and reason[0]) == expected
        seen.add(expected)
    assert len(seen) >= 6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("empty", "no word")),
        ("— ... !", ("empty", "no word")),
        ("Nada a dizer.", ("words", "3, at least 50")),
        (f"{PROSE} Lorem Ipsum dolor.", ("forbidden text", "lorem ipsum")),
        ("O presidente não volta. " * 20, ("top 2-gram", "0.5, at most 0.2")),
        (f"{PROSE}\n" * 2, ("repeated lines", "0.5, at most 0.3")),
        (
            "\n".join(f"Não sei como a receita número {n} se faz na casa dela" for n in range(8)),
            ("punctuated lines", "0, at least 0.12"),
        ),
    ],
)
def test_a_failed_rule_has_its_value_and_its_limit(text, expected):
    assert found(text) == expected


def test_running_text_passes_all_rules():
    assert found(PROSE) is None


def test_a_limit_that_is_null_is_not_checked():
    assert found("Nada a dizer de novo sobre a escola.", min_words=None) is None
    assert found(f"{PROSE}\n" * 2, max_repeated_lines=None)[0] == "repeated line characters"


def test_documents_are_dropped_with_reason_and_value(tmp_path):
    corpus = Corpus(work=str(tmp_path), clean=Clean())
    folder = tmp_path / "4_clean" / "4_quality"
    totals = run_quality(corpus, extracted(tmp_path, [PROSE, "Nada a dizer."]), folder, runner())
    assert (totals["kept"], totals["dropped"]) == (1, {"words": 1})
    assert [row["text"] for row in kept(folder)[0]] == [PROSE]
    assert dropped(folder) == [{"id": "d1", "url": "http://a.pt/1", "reason": "words", "detail": "3, at least 50"}]
