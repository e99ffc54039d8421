import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_documents import content, document, dropped, extracted, kept, runner
from raised import raises_code

from paratune.console import Display
from paratune.corpus.clean.duplicates import run_decontaminate
from paratune.corpus.clean.run import run_clean
from paratune.corpus.settings import Clean, Corpus, Decontaminate, EvaluationSet

DISPLAY = Display(speaks=False)
FOLDER = "4_clean/5_decontaminate"
LONG = " ".join(f"longa{n}" for n in range(30))
SHORT = "O rato roeu a rolha da garrafa."
OTHER = "\n".join(f"Esta linha {n} fala de outra coisa, sem nada do que se procura." for n in range(4))


def settings_of(tmp_path, **options):
    """Write two sets, of which the first has a text that is too short, and return the section that names them."""
    pq.write_table(pa.table({"q": [SHORT, "Sim, claro."], "a": [LONG, "Não."]}), tmp_path / "qa.parquet")
    (tmp_path / "lines.txt").write_text("Esta frase de sete palavras é rara.\n" + SHORT + "\n")
    sets = [
        EvaluationSet(name="qa", files=[str(tmp_path / "qa.parquet")], columns=["q", "a"]),
        EvaluationSet(name="lines", files=[str(tmp_path / "*.txt")]),
    ]
    return Decontaminate(sets=sets, **options)


def run(tmp_path, work, section, workers=1):
    corpus = Corpus(work=str(work), clean=Clean(decontaminate=section))
    return run_decontaminate(corpus, work / "3_extract", work / FOLDER, runner(workers))


def longs(first, last):
    return " ".join(f"LONGA{n}," for n in range(first, last))


def test_documents_that_hold_a_text_are_dropped_and_counted_for_each_set(tmp_path):
    texts = [
        OTHER,
        f"{OTHER}\nAntes {longs(5, 18)} depois",  # 13 words of the long text
        f"{OTHER}\nAntes {longs(5, 17)} depois",  # 12
        "Conta-se que o RATO roeu a\nrolha, da garrafa, e fugiu",
        "O rato roeu a rolha do frasco. Sim, claro. Não.",
        "esta frase de sete palavras é rara",
    ]
    extracted(tmp_path, texts[:2], texts[2:])
    totals = run(tmp_path, tmp_path, settings_of(tmp_path))
    assert [(item["id"], item["reason"], item["detail"]) for item in dropped(tmp_path / FOLDER)] == [
        ("d1", "text of qa", " ".join(f"longa{n}" for n in range(5, 18))),
        ("d3", "text of qa", "o rato roeu a rolha da garrafa"),
        ("d5", "text of lines", "esta frase de sete palavras é rara"),
    ]
    assert [row["id"] for shard in kept(tmp_path / FOLDER) for row in shard] == ["d0", "d2", "d4"]
    assert totals["dropped"] == {"text of qa": 2, "text of lines": 1}


def test_the_length_of_sequences_is_a_setting(tmp_path):
    extracted(tmp_path, [longs(5, 17), "Sim, claro."])
    assert run(tmp_path, tmp_path, settings_of(tmp_path))["kept"] == 2
    assert run(tmp_path, tmp_path, settings_of(tmp_path, words=12))["dropped"] == {"text of qa": 1}
    assert run(tmp_path, tmp_path, settings_of(tmp_path, min_words=2))["dropped"] == {"text of qa": 1}


CHANGED = [  # words of a text, the one that is changed in the document, whether the text is found
    (26, 12, True),  # 13 words are left behind it
    (26, 13, True),  # and before it
    (25, 12, True),  # 8 of the 12 words on each side
    (17, 8, True),
    (16, 8, True),  # 8 before it
    (15, 7, False),  # 7 on each side
    (9, 0, True),
]


def test_texts_with_one_changed_word_are_found(tmp_path):
    texts = [[f"palavra{case}_{n}" for n in range(num_words)] for case, (num_words, _, _) in enumerate(CHANGED)]
    (tmp_path / "set.txt").write_text("\n".join(map(" ".join, texts)))
    for words, (_, changed, _) in zip(texts, CHANGED, strict=True):
        words[changed] = "outra"
    extracted(tmp_path, [f"{OTHER} {' '.join(words)}" for words in texts])
    sets = [EvaluationSet(name="set", files=[str(tmp_path / "set.txt")])]
    run(tmp_path, tmp_path, Decontaminate(sets=sets))
    found = [f"d{case}" for case, (*_, is_found) in enumerate(CHANGED) if is_found]
    assert [row["id"] for row in dropped(tmp_path / FOLDER)] == found
    run(tmp_path, tmp_path, Decontaminate(sets=sets, words=13))
    assert [row["id"] for row in dropped(tmp_path / FOLDER)] == ["d0", "d1"]


def test_texts_are_counted_by_the_words_that_find_them(tmp_path):
    extracted(tmp_path, [OTHER])
    expected = [
        # LONG has 30 words, SHORT 7; two texts have fewer than 5.
        {"name": "qa", "num_texts": 4, "by_words": {"all": 1, "13": 1}, "num_ignored": 2},
        {"name": "lines", "num_texts": 2, "by_words": {"all": 2}, "num_ignored": 0},
    ]
    assert run(tmp_path, tmp_path, settings_of(tmp_path))["sets"] == expected
    assert run(tmp_path, tmp_path, settings_of(tmp_path))["sets"] == expected  # of the finished step
    assert run(tmp_path, tmp_path, settings_of(tmp_path, words=7))["sets"][0]["by_words"] == {"7": 2}


def test_a_set_without_a_text_that_is_long_enough_is_refused(tmp_path):
    extracted(tmp_path, [OTHER])
    with raises_code("corpus.too_little_text", "9"):
        run(tmp_path, tmp_path, settings_of(tmp_path, min_words=9))


def test_two_sets_of_one_name_are_refused(tmp_path):
    extracted(tmp_path, [OTHER])
    section = settings_of(tmp_path)
    with raises_code("config.conflict", key="clean.decontaminate.sets"):
        run(tmp_path, tmp_path, section.model_copy(update={"sets": section.sets[:1] * 2}))


def test_a_changed_file_is_read_again(tmp_path):
    extracted(tmp_path, [OTHER])
    section = settings_of(tmp_path)
    assert run(tmp_path, tmp_path, section)["kept"] == 1
    (tmp_path / "lines.txt").write_text(OTHER)
    assert run(tmp_path, tmp_path, section)["kept"] == 0


def test_the_step_takes_part_where_there_are_sets(tmp_path):
    extracted(tmp_path, [OTHER])
    skip = ["lines", "language", "variety", "quality", "duplicates", "personal"]
    assert run_clean(Corpus(work=str(tmp_path), clean=Clean(skip=skip)), 1, DISPLAY)["steps"] == {}
    with_sets = Clean(skip=skip, decontaminate=settings_of(tmp_path))
    assert list(run_clean(Corpus(work=str(tmp_path), clean=with_sets), 1, DISPLAY)["steps"]) == ["decontaminate"]


@pytest.mark.slow
def test_workers_change_no_file(tmp_path):
    rows = [document(f"{OTHER} {longs(n, n + 9 + n % 6)}", n) for n in range(20)]
    section = settings_of(tmp_path)
    for workers in (1, 2):
        extracted(tmp_path / str(workers), rows[:10], rows[10:])
        # 9 to 14 words, of which 13 and 14 are enough: 4, 5, 10, 11, 16 and 17.
        assert run(tmp_path, tmp_path / str(workers), section, workers)["kept"] == 14
    assert content(tmp_path / "1" / FOLDER) == content(tmp_path / "2" / FOLDER)
