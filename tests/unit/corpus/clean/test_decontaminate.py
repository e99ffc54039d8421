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
