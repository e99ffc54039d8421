"""Tables of a submission, and the zip that has them."""

import zipfile

import pytest
from raised import raises_code

from paratune.config.glue import GLUE
from paratune.hub.submission import TABLES, TablePredictions, table_text, write_tables


def test_names_and_sizes_are_those_of_the_benchmark():
    # The file names on gluebenchmark.com/faq; num_examples of the test splits on the data card of nyu-mll/glue.
    assert {name: table.num_rows for name, table in TABLES.items()} == {
        "CoLA.tsv": 1063,
        "SST-2.tsv": 1821,
        "MRPC.tsv": 1725,
        "STS-B.tsv": 1379,
        "QQP.tsv": 390965,
        "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847,
        "QNLI.tsv": 5463,
        "RTE.tsv": 3000,
        "WNLI.tsv": 146,
        "AX.tsv": 1104,
    }
    assert {table.task for table in TABLES.values()} == set(GLUE)


@pytest.mark.parametrize(
    ("name", "values", "written"),
    [
        ("RTE.tsv", ["not_entailment", "entailment"], ["not_entailment", "entailment"]),
        ("WNLI.tsv", ["entailment", "not_entailment"], ["1", "0"]),
        ("MRPC.tsv", ["not_equivalent", "equivalent"], ["0", "1"]),
        ("CoLA.tsv", ["acceptable", "0"], ["1", "0"]),
        ("QQP.tsv", ["duplicate", "not_duplicate"], ["1", "0"]),
        ("SST-2.tsv", ["positive", "negative"], ["1", "0"]),
        ("QNLI.tsv", ["entailment"], ["entailment"]),
        ("MNLI-mm.tsv", ["neutral", "contradiction"], ["neutral", "contradiction"]),
        ("AX.tsv", ["entailment"], ["entailment"]),
        ("STS-B.tsv", [3.14159, -0.2, "5.2", 5], ["3.142", "0.000", "5.000", "5.000"]),
    ],
)
def test_predictions_are_written_with_the_words_of_the_benchmark(name, values, written):
    text = table_text(name, TablePredictions("here", range(len(values)), values))
    assert text.splitlines() == ["index\tprediction", *(f"{row}\t{word}" for row, word in enumerate(written))]


@pytest.mark.parametrize(
    ("predicted", "refused"),
    [
        (TablePredictions("p", [0, 2], ["entailment"] * 2), ("submission.rows", "1 of 3")),
        (TablePredictions("p", [0, 1], ["entailment"] * 2, 4), ("submission.rows", "2 of 4", "3")),
        (TablePredictions("p", [0, 1], ["entailment", None]), ("submission.rows", "1 of 2")),
        (TablePredictions("p", [0, 0], ["entailment"] * 2), ("submission.rows", "1 rows")),
        (TablePredictions("p", [0], ["LABEL_1"]), ("submission.value", "row 0", "LABEL_1", "RTE", "ent")),
    ],
)
def test_predictions_that_make_no_table_are_refused(predicted, refused):
    with raises_code(*refused):
        table_text("RTE.tsv", predicted)


@pytest.mark.parametrize("value", ["good", float("nan"), None])
def test_numbers_are_numbers(value):
    code = "submission.rows" if value is None else "submission.value"
    with raises_code(code, "STS-B.tsv"):
        table_text("STS-B.tsv", TablePredictions("p", [0], [value]))


def test_the_archive_is_reproducible(tmp_path):
    texts = {"WNLI.tsv": "index\tprediction\n0\t1\n", "RTE.tsv": "index\tprediction\n0\tentailment\n"}
    for name in ("a.zip", "b.zip"):
        write_tables(tmp_path / name, texts)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == texts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]
    with raises_code("output.not_writable"):
        write_tables(tmp_path / "no" / "a.zip", texts)
