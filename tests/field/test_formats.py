"""Famous formats are recognised by their content, whatever the name of the file is."""

import json
from pathlib import Path
from typing import Any

import pytest
from raised import check_logged, raises_code

from paratune.config.sections import Columns, FileReading
from paratune.config.task_sections import ClassificationTask, MultiLabelTask, TokenClassificationTask
from paratune.data.columns import TableReader
from paratune.data.guess import guess_options
from paratune.data.read import read_table
from paratune.data.selection import select, select_words
from paratune.errors import DataError

FOLDER = Path(__file__).parent
PER = {"start": 0, "end": 3, "label": "PER"}
TABLES: dict[str, dict[str, list[Any]]] = {
    "fasttext.train": {"text": ["a cup of mint", "cold and green"], "label": [["tea", "hot"], ["tea"]]},
    "fasttext_single.txt": {"text": ["the lift is fixed", "the lift is stuck"], "label": [["up"], ["down"]]},
    "conll2003.testa": {
        "tokens": [["Mara", "sails", "."], ["Lisbon", "waits"]],
        "tags": [["B-PER", "O", "O"], ["B-LOC", "O"]],
    },
    "words.txt": {"tokens": [["Ilhavo", "rests"], ["Pia", "Lund"]], "tags": [["B-LOC", "O"], ["B-PER", "I-PER"]]},
    "ontonotes.gold_conll": {
        "tokens": [["Nora", "Berg", "paid", "Tom"], ["Yes"]],
        "tags": [["B-PERSON", "I-PERSON", "O", "B-PERSON"], ["O"]],
        "pos": [["NNP", "NNP", "VBD", "NNP"], ["UH"]],
    },
    "germeval.tsv": {
        "tokens": [["Die", "Kieler", "Nachrichten"], ["Nein"]],
        "tags": [["O", "B-ORGpart", "I-ORG"], ["O"]],
        "nested_tags": [["O", "B-LOCderiv", "O"], ["O"]],
    },
    "tree.txt": {"tokens": [["de", "o", "mar"]], "tags": [["ADP", "DET", "NOUN"]]},
    "mrpc.tsv": {
        "Quality": ["1", "0"],
        "#1 ID": ["10", "12"],
        "#2 ID": ["11", "13"],
        "#1 String": ['He said " no .', '"A whole quotation ."'],
        "#2 String": ["No , he said .", "It rained ."],
    },
    "qnli.tsv": {
        "index": ["0", "1"],
        "question": ["Who wrote it?", "When?"],
        "sentence": ['"Ana wrote it"', 'In "May" or later'],
        "label": ["entailment", "not_entailment"],
    },
    "rte.tsv": {
        "index": ["0"],
        "sentence1": ["The sea is calm."],
        "sentence2": ["The sea rests."],
        "label": ["entailment"],
    },
    "cola.tsv": {
        "source": ["xx01", "xx01"],
        "label": ["1", "0"],
        "star": ["", "*"],
        "sentence": ["The boat sank.", 'The boat sinked "it.'],
    },
    "doccano_classes.jsonl": {
        "id": [4, 5, 6],
        "text": ["fine day", "storm", "?"],
        "label": [["calm"], ["rough"], []],
    },
    "prodigy.jsonl": {
        "text": ["Ana left", "No"],
        "spans": [[PER | {"token_start": 0}], None],
        "answer": ["accept", "reject"],
        "_input_hash": [1, 3],
        "_task_hash": [2, 4],
    },
    "prodigy_choice.jsonl": {
        "text": ["a", "b"],
        "answer": ["accept", "ignore"],
        "_input_hash": [1, 2],
        "label": [["x"], None],
    },
    "multiconer.conll": {
        "tokens": [["her", "song", "Lua"], ["#", "rock"]],
        "tags": [["O", "O", "B-CW"], ["O", "O"]],
    },
    "wikiann_train": {"tokens": [["Rua", "Nova", ":"], ["Rui"]], "tags": [["B-LOC", "I-LOC", "O"], ["B-PER"]]},
    "quora.tsv": {
        "id": ["0", "1"],
        "qid1": ["1", "3"],
        "qid2": ["2", "4"],
        "question1": ['What is "x"?', "A?"],
        "question2": ["Why\nso?", "B?"],
        "is_duplicate": ["0", "1"],
    },
    "race.txt": {
        "id": ["h1", "h2"],
        "article": ["The lake froze.", "It thawed."],
        "options": [["a", "b"], ["a", "b"]],
        "answer": ["B", "A"],
    },
    "squad.json": {
        "id": ["7", "8"],
        "title": ["Boats", "Boats"],
        "context": ["The ferry é late, the ferry waits."] * 2,
        "question": ["What waits?", "Who waits?"],
        "answers": [
            {"text": ["the ferry", "ferry"], "answer_start": [18, 22]},
            {"text": [], "answer_start": []},
        ],
        "is_impossible": [None, True],
    },
    "plain_tags.txt": {
        "tokens": [
            *(["Inês", "Prado", "rema", "."], ["O", "Tua", "sobe", "."], ["Choveu", "em", "Chaves", "."]),
            *(["Fica", "o", "cais", "."], ["Tomé", "pesca", "cedo", "."], ["A", "Lousã", "arde", "."]),
            *(["Nada", "muda", "aqui", "."], ["Zoé", "lê", "mapas", "."]),
        ],
        "tags": [
            *(["PESSOA", "PESSOA", "O", "O"], ["O", "LOCAL", "O", "O"], ["O", "O", "LOCAL", "O"]),
            *(["O", "O", "O", "O"], ["PESSOA", "O", "O", "O"], ["O", "LOCAL", "O", "O"]),
            *(["O", "O", "O", "O"], ["PESSOA", "O", "O", "O"]),
        ],
    },
    "cluener.jsonl": {
        "text": ["Rui e Ana em Faro", "Nada"],
        "label": [[PER, PER | {"start": 6, "end": 9}, {"start": 13, "end": 17, "label": "LOC"}], []],
    },
    "text_positions.json": {
        "id": ["3"],
        "title": ["Rio"],
        "context": ["O rio nasce aqui."],
        "question": ["Quem nasce?"],
        "answers": [{"text": ["rio"], "answer_start": [2]}],
        "is_impossible": [None],
    },
    "python_lists.csv": {
        "essay": [
            "A estrada sobe devagar, e de cada lado há muros de pedra solta que ninguém levantou em todos estes anos.\n"
            "Fim d'ano.",
            "Curto.",
            "Sem nada.\n",
        ],
        "genres": [["calm", "long"], [], None],
        "marks": [[160, 80], [40, 0], [0, 0]],
        "note": ["[sic] to be [sic]", "[none]", "[1]"],
    },
    "label_studio.json": {
        "id": [1, 2, 3],
        "num_annotations": [1, 0, 2],
        "body": ["Ana left", "Rui stayed", "Eva"],
        "ner": [[PER], None, None],
        "tone": [["flat"], None, ["sharp"]],
        "stars": [4, None, None],
    },
}
NER = TokenClassificationTask(kind="token_classification", labels=["O", "B-PER", "I-PER", "B-LOC"])


@pytest.mark.parametrize("name", TABLES)
def test_a_format_has_its_rows(name: str):
    assert read_table(str(FOLDER / name)).to_pydict() == TABLES[name]


def test_several_annotations_of_a_row_are_counted(caplog: pytest.LogCaptureFixture):
    read_table(str(FOLDER / "label_studio.json"))
    check_logged(caplog, "data.several_annotations", "1 of 3")


def test_the_pair_of_stsb_keeps_its_quotes():
    row = read_table(str(FOLDER / "stsb.tsv")).to_pylist()[0]
    assert (row["sentence1"], row["sentence2"], row["score"]) == ("A dog runs.", 'A "dog" is running.', "4.500")


def test_an_encoding_is_for_files_with_any_suffix():
    table = read_table(str(FOLDER / "cities.train"), FileReading(encoding="cp1252"))
    assert read_table(str(FOLDER / "cities.train")).equals(table)  # by a guess
    assert table["tokens"].to_pylist() == [["Belém", "("], ["Sá"]]


WORDS_AND_CLASSES = "boat\tO\nsea\tX\n" * 20
TABLES_OF_WORDS = {
    "no empty line": WORDS_AND_CLASSES,
    "a header": "word\ttag\n\n" + WORDS_AND_CLASSES,
    "a text": "a boat\tO\n\n" + WORDS_AND_CLASSES,
    "no O": "boat\tX\n\n" + WORDS_AND_CLASSES.replace("O", "Y"),
    "many classes": "boat\tO\n\n" + "".join(f"sea\tO\nboat\t{number}\n" for number in range(20)),
}


@pytest.mark.parametrize("text", TABLES_OF_WORDS.values(), ids=TABLES_OF_WORDS)
def test_a_table_of_words_and_classes_is_no_conll(tmp_path: Path, text: str):
    (tmp_path / "a.tsv").write_text(text)
    assert "tokens" not in read_table(str(tmp_path / "a.tsv")).column_names


def test_options_of_a_table_make_it_one():
    assert read_table(str(FOLDER / "cola.tsv"), FileReading(header=False)).column_names == ["1", "2", "3", "4"]
    table = read_table(str(FOLDER / "words.txt"), FileReading(separator=" ", header=False))
    assert table.to_pydict() == {"1": ["Ilhavo", "rests", "Pia", "Lund"], "2": ["B-LOC", "O", "B-PER", "I-PER"]}


@pytest.mark.parametrize(("name", "code"), [
    ("brat.ann", "data.format"), ("webanno.tsv", "data.format"), ("unknown.dat", "data.format"),
    ("splits.json", "data.unreadable"),
])  # fmt: skip
def test_other_files_are_refused_by_name(name: str, code: str):
    with raises_code(code, name):
        read_table(str(FOLDER / name))


@pytest.mark.parametrize(("name", "labels", "ids"), [
    ("doccano_classes.jsonl", ["calm", "rough"], [0, 1]),
    ("fasttext_single.txt", ["down", "up"], [1, 0]),
])  # fmt: skip
def test_lists_of_one_label_are_labels(name: str, labels: list[str], ids: list[int]):
    task = ClassificationTask(kind="classification", labels=labels)
    table = read_table(str(FOLDER / name))
    samples = select(TableReader(table, Columns(text="text", label="label"), "drop", name), task)
    assert samples.labels is not None
    assert samples.labels.tolist() == ids
    guess = guess_options(table, name, columns={})
    assert (guess.kind, guess.values["task.labels"]) == ("classification", labels)


def test_lists_as_python_prints_them_are_sets_of_labels():
    task = MultiLabelTask(kind="multi_label", labels=["calm", "long"])
    table = read_table(str(FOLDER / "python_lists.csv"))
    samples = select(TableReader(table, Columns(text="essay", label="genres"), "drop", "x"), task)
    assert samples.labels is not None
    assert (samples.rows.tolist(), samples.labels.tolist()) == ([0, 1], [[1, 1], [0, 0]])


def test_a_table_of_words_that_ends_in_an_empty_line_is_no_sentence(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("blood\tO\nplasma\tA\n" * 20 + "\n")
    assert read_table(str(tmp_path / "a.tsv"), FileReading(header=False)).num_rows == 40
    assert read_table(str(tmp_path / "a.tsv")).column_names == ["blood", "O"]


ADDRESS = "https://" + "x" * 100


@pytest.mark.parametrize(
    ("cells", "rows"),
    [
        ("['tea'\n 'hot' \"it's\"]", [["tea", "hot", "it's"]]),  # of numpy
        ('["a \' \' b","c"]', [["a ' ' b", "c"]]),
        (f"['see', '{ADDRESS}', 'now', 'or', 'late', 'on', 'it']", [["see", ADDRESS, "now", "or", "late", "on", "it"]]),
        ("[100000000000000000000000]", ["[100000000000000000000000]"]),
    ],
)
def test_lists_in_csv_keep_their_items(tmp_path: Path, cells: str, rows: list[Any]):
    doubled = cells.replace('"', '""')
    (tmp_path / "a.csv").write_text(f'words,id\n"{doubled}",1\n')
    assert read_table(str(tmp_path / "a.csv")).column("words").to_pylist() == rows


def test_the_text_of_a_span_has_its_end(tmp_path: Path):
    row = {"text": "Ana, Rui", "label": {"PER": {"Ana": [[0, 3]], "Rui": [[5, 8]]}}}  # the places behind the texts
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    reader = TableReader(read_table(str(tmp_path / "a.jsonl")), Columns(text="text", label="label"), "drop", "x")
    assert select_words(reader, NER).words == [["Ana", ",", "Rui"]]
    assert [tags.tolist() for tags in select_words(reader, NER).tags or ()] == [[1, 0, 1]]


SPANS = {
    "cluener.jsonl": ("text", "label", [["B-PER", "O", "B-PER", "O", "B-LOC"], ["O"]]),
    "doccano_spans.jsonl": ("text", "label", [["O"] * 7, ["B-PER", "O", "B-PER", "I-PER", "O", "B-LOC", "O"]]),
    "doccano_relations.jsonl": ("text", "entities", [["B-PER", "O"]]),
    "prodigy.jsonl": ("text", "spans", [["B-PER", "O"]]),
    "label_studio.json": ("body", "ner", [["B-PER", "O"]]),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans_of_characters_become_tags_of_words(name: str, caplog: pytest.LogCaptureFixture):
    text, label, tags = SPANS[name]
    reader = TableReader(read_table(str(FOLDER / name)), Columns(text=text, label=label), "drop", name)
    samples = select_words(reader, NER)
    assert samples.tags is not None
    assert [[NER.labels[tag] for tag in row] for row in samples.tags] == tags  # type: ignore[index]
    assert [len(words) for words in samples.words or ()] == [len(row) for row in tags]
    assert [record for record in caplog.records if "overlapping" in record.getMessage()] == []


def tags_of(tmp_path: Path, spans: str, task: TokenClassificationTask = NER) -> list[str]:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "São João, Faro-Norte", "spans": {spans}}}\n', encoding="utf-8")
    reader = TableReader(read_table(str(tmp_path / "a.jsonl")), Columns(text="text", label="spans"), "refuse", "x")
    samples = select_words(reader, task)
    assert samples.words == [["São", "João", ",", "Faro", "-", "Norte"]]
    assert samples.tags is not None
    return [list(task.labels)[tag] for tag in samples.tags[0]]


@pytest.mark.parametrize(
    ("spans", "tags", "counts"),
    [
        ('[[0, 8, "PER"], [10, 14, "LOC"]]', ["B-PER", "I-PER", "O", "B-LOC", "O", "O"], None),
        ('[[10, 14, "LOC"], [0, 9, "PER"]]', ["B-PER", "I-PER", "I-PER", "B-LOC", "O", "O"], None),
        ('[[0, 4, "PER"]]', ["B-PER", "O", "O", "O", "O", "O"], None),  # with the space behind it
        ('[[5, 7, "PER"]]', ["O", "B-PER", "O", "O", "O", "O"], [1, 1, 0, 0]),
        ('[[0, 3, "PER"], [0, 8, "PER"]]', ["B-PER", "O", "O", "O", "O", "O"], [2, 0, 1, 0]),
        ('[[0, 3, "PER"], [3, 4, "LOC"]]', ["B-PER", "O", "O", "O", "O", "O"], [2, 0, 0, 1]),
        ('[[0, 3, "PER"], [90, 95, "LOC"]]', ["B-PER", "O", "O", "O", "O", "O"], [2, 0, 0, 1]),
    ],
)
def test_spans_that_do_not_align_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spans: str, tags: list[str], counts: list[int] | None
):
    assert tags_of(tmp_path, spans) == tags
    facts = [list(record.facts["counts"].values()) for record in caplog.records if hasattr(record, "facts")]
    assert facts == ([] if counts is None else [counts])
    if counts is not None:
        check_logged(caplog, "data.spans_unaligned", "x")


def test_spans_of_plain_tags_and_values_that_are_no_spans(tmp_path: Path):
    task = TokenClassificationTask(kind="token_classification", labels=["O", "PER"], scheme="none")
    assert tags_of(tmp_path, '[[0, 8, "PER"]]', task) == ["PER", "PER", "O", "O", "O", "O"]
    with pytest.raises(DataError) as error:
        tags_of(tmp_path, '["PER"]')
    assert error.value.code == "data.wrong_type"


@pytest.mark.parametrize(
    ("name", "line"), [("germeval.tsv", "1\tNur\tO\n"), ("ontonotes.gold_conll", "a 0 0 Nur ADV\n")]
)
def test_a_short_line_behind_the_sample_is_an_error(tmp_path: Path, name: str, line: str):
    text = (FOLDER / name).read_text(encoding="utf-8") + "\n"
    (tmp_path / name).write_text(text * (100_000 // len(text) + 1) + line, encoding="utf-8")
    with raises_code("data.unreadable", name):
        read_table(str(tmp_path / name))


def test_texts_without_spans_have_words_for_predictions():
    columns = Columns(text="text", label="spans")
    reader = TableReader(read_table(str(FOLDER / "unknown.txt")), columns, "drop", "x", require_labels=False)
    samples = select_words(reader, NER)
    assert (samples.words, samples.tags) == ([["a", "line", "."], ["another", "line"]], None)
