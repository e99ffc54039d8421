import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raised import check_logged, raises_code
from sentence_documents import DISPLAY, make_corpus, name, sentence

from paratune.corpus.sentences.ngram import corpus_half, file_sentences
from paratune.corpus.sentences.run import run_sentences
from paratune.corpus.settings import CleanPart, SentenceSettings
from paratune.records import read_json

CERTAIN = (40, 43, 76, 79)


def learnt(tmp_path, work="work"):
    return read_json(tmp_path / work / "5_sentences/model/model.json")["models"]


def words_of_model(tmp_path, number, work="work"):
    text = (tmp_path / work / f"5_sentences/model/ngram-{number}.arpa").read_text()
    return {line.split("\t")[1] for line in text.split("\\1-grams:\n")[1].split("\n\n")[0].split("\n")}


def test_each_half_of_the_corpus_teaches_a_model(tmp_path):
    shards = [[f"A palavra{letter} dorme na cama." for letter in "abcdefgh"]]
    run_sentences(make_corpus(tmp_path, shards), 1, DISPLAY)
    words = [
        {f"palavra{letter}" for n, letter in enumerate("abcdefgh") if corpus_half(f"0-{n}") == half} for half in (0, 1)
    ]
    assert all(words)
    for half in (0, 1):
        assert {word for word in words_of_model(tmp_path, half) if word.startswith("palavra")} == words[half]


def test_the_best_documents_are_those_whose_language_is_most_certain(tmp_path):
    # 6 words a sentence; half of 72 is enough for 6 sentences of each half. Four documents are quite certain.
    texts = [(sentence(n), 0.99 if n in CERTAIN else 0.8 if n % 2 else 0.5) for n in range(80)]
    run_sentences(make_corpus(tmp_path, [texts[:50], texts[50:]], clean=CleanPart(max_words=72)), 1, DISPLAY)
    for half in (0, 1):
        numbers = [n for n in range(80) if corpus_half(f"{n // 50}-{n % 50}") == half]
        best = [n for n in numbers if n in CERTAIN]
        best += [n for n in numbers if n % 2 and n not in CERTAIN][: 6 - len(best)]
        words = words_of_model(tmp_path, half)
        assert [n for n in numbers if f"x{name(n)}" in words] == sorted(best), half


def test_a_repeated_sentence_is_used_once_in_training(tmp_path):
    run_sentences(make_corpus(tmp_path, [[sentence(n % 40) for n in range(80)]]), 1, DISPLAY)
    assert sum(item["num_sentences"] for item in learnt(tmp_path)) == 40


def test_files_teach_one_model(tmp_path):
    (tmp_path / "a.txt").write_text(f"{sentence(1)} {sentence(2)}\nsem fim\n{sentence(1)}\n")
    pq.write_table(pa.table({"text": [sentence(3), None], "other": [1, 2]}), tmp_path / "b.parquet")
    files = [str(tmp_path / "a.txt"), str(tmp_path / "*.parquet")]
    run_sentences(make_corpus(tmp_path, [[sentence(7)]], clean=CleanPart(files=files)), 1, DISPLAY)
    assert [item["num_sentences"] for item in learnt(tmp_path)] == [3]


@pytest.mark.parametrize("damage", [slice(-20, None), slice(4, 40)])
def test_a_damaged_file_of_the_user_is_named_and_not_to_be_deleted(tmp_path, damage):
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"text": [sentence(1)]}), path)
    content = bytearray(path.read_bytes())
    content[damage] = bytes(len(content[damage]))
    path.write_bytes(content)
    with raises_code("data.unreadable", path, path=path) as error:
        run_sentences(make_corpus(tmp_path, [[sentence(7)]], clean=CleanPart(files=[str(path)])), 1, DISPLAY)
    assert "delete" not in str(error.value)


def test_no_more_is_read_of_files_than_wanted(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(sentence(n) for n in range(50)))
    settings = SentenceSettings(clean=CleanPart(files=["unused"], max_words=20))
    result = list(file_sentences([tmp_path / "a.txt"], settings))
    assert [len(item) for item in result] == [7, 7, 7]


@pytest.mark.parametrize(
    ("name", "refused"),
    [("a.doc", ("data.format", "a.doc")), ("a.parquet", ("data.column_missing",)), ("b.txt", ("data.not_found",))],
)
def test_files_that_teach_nothing_are_named(tmp_path, name, refused):
    (tmp_path / "a.doc").touch()
    pq.write_table(pa.table({"texto": ["a"]}), tmp_path / "a.parquet")
    corpus = make_corpus(tmp_path, [[sentence(1)]], clean=CleanPart(files=[str(tmp_path / name)]))
    with raises_code(*refused):
        run_sentences(corpus, 1, DISPLAY)


def test_files_without_a_sentence_or_in_another_encoding_are_refused(tmp_path):
    for content, code in (
        ("só isto\n".encode(), "corpus.too_little_text"),
        ("Não é.\n".encode("latin-1"), "data.unreadable"),
    ):
        (tmp_path / "a.txt").write_bytes(content)
        corpus = make_corpus(tmp_path, [[sentence(1)]], clean=CleanPart(files=[str(tmp_path / "a.txt")]))
        with raises_code(code, "a.txt"):
            run_sentences(corpus, 1, DISPLAY)


def test_a_corpus_too_small_for_two_halves_has_no_perplexities(tmp_path, caplog):
    totals = run_sentences(make_corpus(tmp_path, [[sentence(1)]]), 1, DISPLAY)
    assert totals["kept"] == 1
    assert learnt(tmp_path) == []
    check_logged(caplog, "corpus.no_perplexity", "sentences.clean.files")
