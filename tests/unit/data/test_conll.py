import pytest
from raised import raises_code

from paratune.data.read import read_table

TEXT = """\
-DOCSTART- -X- -X- O

# text = EU rejects German call
EU NNP B-NP B-ORG
rejects VBZ B-VP O

# NN B-NP O
German JJ B-NP B-MISC
"""
UD = """\
1-2 vámonos _ _ _ _ _ _ _ _
1 vamos ir VERB _ _ 0 root _ _
2 nos nosotros PRON _ _ 1 obj _ _
""".replace(" ", "\t")


def test_sentences_of_words_and_their_last_column(tmp_path):
    (tmp_path / "a.conll").write_text(TEXT, encoding="utf-8")
    table = read_table(str(tmp_path / "a.conll")).to_pydict()
    assert table == {
        "tokens": [["EU", "rejects"], ["#", "German"]],  # a line of the word # is no comment
        "tags": [["B-ORG", "O"], ["O", "B-MISC"]],
    }


def test_a_file_without_tags_is_for_prediction(tmp_path):
    (tmp_path / "a.conll").write_text("EU\nrejects\n\n\nGerman\n", encoding="utf-8")
    assert read_table(str(tmp_path / "a.conll")).to_pydict() == {"tokens": [["EU", "rejects"], ["German"]]}


def test_universal_dependencies(tmp_path):
    (tmp_path / "a.conllu").write_text(UD, encoding="utf-8")
    table = read_table(str(tmp_path / "a.conllu")).to_pydict()
    assert table == {"tokens": [["vamos", "nos"]], "tags": [["VERB", "PRON"]]}


@pytest.mark.parametrize(("name", "text", "line"), [("a.conll", "EU O\nrejects\n", 2), ("a.conllu", "1\tEU\tO\n", 1)])
def test_lines_of_another_width_are_named(tmp_path, name, text, line):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with raises_code("data.conll", f"line {line}", line=line):
        read_table(str(tmp_path / name))
