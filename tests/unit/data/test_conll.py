import pytest
from raised import check_logged, raises_code

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


def test_empty_tags_are_for_prediction(tmp_path):
    assert read(tmp_path, "EU\t\nrejects\t\n") == {"tokens": [["EU", "rejects"]], "tags": [["", ""]]}


def test_a_file_without_empty_lines_is_a_warning(tmp_path, caplog):
    assert len(read(tmp_path, "EU B-ORG\n" + "rejects O\n" * 1000)["tokens"]) == 1
    check_logged(caplog, "data.one_sentence", "1001")


def test_universal_dependencies(tmp_path):
    (tmp_path / "a.conllu").write_text(UD, encoding="utf-8")
    table = read_table(str(tmp_path / "a.conllu")).to_pydict()
    assert table == {"tokens": [["vamos", "nos"]], "tags": [["VERB", "PRON"]]}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.conll", "EU O\nrejects\n", 2),
        ("a.conllu", "1\tEU\tO\n", 1),
        ("a.conll", "EU\tO\n\trejects\n", 2),
        ("a.conll", "EU\tO\n\nrejects\t\n", 3),
    ],
)
def test_lines_of_another_width_or_without_a_word_or_a_tag_are_named(tmp_path, name, text, line):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with raises_code("data.unreadable", f"line {line}", line=line):
        read_table(str(tmp_path / name))


def read(tmp_path, text, name="a.conll"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_table(str(tmp_path / name)).to_pydict()


NUMBERED = {
    "from 1": "1\tAnna\tO\tB-PER\n2\tsings\tO\tO\n\n1\tNo\tO\tO\n",
    "with spaces": "1 Anna B-PER\n2 sings O\n",
    "from 0": "0\tAnna\tB-PER\n1\tsings\tO\n\n0\tNo\tO\n",
    "through the file": "1\tAnna\tB-PER\n2\tsings\tO\n\n3\tNo\tO\n",
    "empty nodes": "1\tAnna\tB-PER\n1.1\t_\tO\n2\tsings\tO\n",
}


@pytest.mark.parametrize("text", NUMBERED.values(), ids=NUMBERED)
def test_a_first_column_that_numbers_the_words_is_refused(tmp_path, text):
    with raises_code("data.unreadable", "a.conll", column=1):
        read(tmp_path, text)


@pytest.mark.parametrize("text", [UD, "# text = vamos\n" + UD])
def test_universal_dependencies_are_recognised_in_other_files(tmp_path, text):
    assert read(tmp_path, text) == {"tokens": [["vamos", "nos"]], "tags": [["VERB", "PRON"]]}


WORDS = {
    "numbers as words": ("12 NUM\nmen NOUN\n\n1 NUM\n2 NUM\n", [["12", "men"], ["1", "2"]]),
    "numbers not in order": ("1 A\n3 A\n\n2 A\n4 A\n", [["1", "3"], ["2", "4"]]),
    "one word in each": ("1 A\n\n2 B\n", [["1"], ["2"]]),
    "no tags": ("1\n2\n3\n", [["1", "2", "3"]]),
    "a word #": ("# O\ntag O\n\n#\tO\n# O\n", [["#", "tag"], ["#", "#"]]),
    "a word # later": ("A X O\n# = O\n", [["A", "#"]]),
    "hashtags": ("#nlp O\nrocks O\n\n#id O\n#id-card O\n", [["#nlp", "rocks"], ["#id", "#id-card"]]),
    "ids between spaces": ("# id 12ab domain=en\nAnna _ _ B-PER\n", [["Anna"]]),
    "no tags, hashtags": ("#nlp\n#\nrocks\n", [["#nlp", "#", "rocks"]]),
    "GermEval": ("#\thttp://a.b\t[2009]\nAnna\tB-PER\n\n#\thttp://c.d\t[2010]\nNo\tO\n", [["Anna"], ["No"]]),
    "MultiCoNER": ("# id 12ab\tdomain=en\nAnna _ _ B-PER\n# _ _ O\n", [["Anna", "#"]]),
    "OntoNotes": ("#begin document (a); part 000\nAnna B-PER\n\n#end document\n", [["Anna"]]),
    "keys": ("# newpar\n# newdoc id = a\n# sent_id = 3\nAnna\tX\tY\tB-PER\n", [["Anna"]]),
    "start of a document": ("-DOCSTART- -X- O O\n\nEU NNP O B-ORG\n", [["EU"]]),
    "start without an empty line": ("-DOCSTART-\nEU B-ORG\nrejects O\n", [["EU", "rejects"]]),
    "starts of AIDA": ("-DOCSTART- (1 EU)\nEU B\n\n-DOCSTART- (2 Rare)\nNo O\n", [["EU"], ["No"]]),
}


@pytest.mark.parametrize(("text", "words"), WORDS.values(), ids=WORDS)
def test_comments_are_left_out_and_words_are_not(tmp_path, text, words):
    assert read(tmp_path, text)["tokens"] == words


def test_each_line_of_conllu_that_begins_with_a_number_sign_is_a_comment(tmp_path):
    text = f"# newpar\n#sent_id=1\n# text = vámonos\n{UD}3.1\t_{chr(9) * 8}_\n"
    assert read(tmp_path, text, "a.conllu")["tokens"] == [["vamos", "nos"]]


def test_a_line_with_another_width_inside_a_sentence_is_no_comment(tmp_path):
    with raises_code("data.unreadable", line=2):
        read(tmp_path, "EU NNP O\n# O\n")
