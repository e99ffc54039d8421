"""Tables of a submission: what is written, and what is found in each kind of bad one."""

import pytest
from raised import raises_code

from paratune.config.glue import GLUE
from paratune.submission.tables import TABLES, TablePredictions, check_table, table_text


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
    assert [result for result in check_table(name, text, any_size=True) if result.is_error] == []


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


def wnli(*rows: str, header: str = "index\tprediction") -> str:
    return "\n".join([header, *rows]) + "\n"


WHOLE = [f"{row}\t{row % 2}" for row in range(146)]


def test_a_good_table_has_no_findings():
    assert check_table("WNLI.tsv", wnli(*WHOLE), any_size=False) == []
    assert check_table("WNLI.tsv", "\ufeff" + wnli(*WHOLE).replace("\n", "\r\n"), any_size=False) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (wnli(*WHOLE[:7], *WHOLE[8:]), ["1 indices are missing: 7", "145 rows, and the official test has 146"]),
        (wnli(*WHOLE, WHOLE[3]), ["1 indices occur more than once: 3", "by index: 3", "147 rows"]),
        (wnli(*WHOLE[:5], WHOLE[6], WHOLE[5], *WHOLE[7:]), ["by index: 5"]),
        (wnli(*WHOLE, header="id,label"), ["line 1 is 'id,label'"]),
        ("\n".join(WHOLE), ["line 1 is '0\\t0'"]),
        (wnli(*WHOLE[:-1], "145\tentailment"), ["1 predictions are 'entailment'; allowed: 0, 1"]),
        (wnli(*WHOLE[:-1], "145\t1.0"), ["1 predictions are '1.0'; allowed: 0, 1"]),
        (wnli(*WHOLE[:-1], "145 1"), ["1 rows do not have two columns: 145"]),
        (wnli(*WHOLE[:-1], "last\t1"), ["1 indices are not whole numbers, such as 'last'"]),
        (wnli(*WHOLE[:-1], "²\t1"), ["1 indices are not whole numbers, such as '²'"]),
        (wnli(*WHOLE[:-1], "9999999\t1"), ["1 indices are beyond the last row, 145: 9999999", "are missing: 145"]),
        (wnli(*WHOLE[:-1], "1" + "0" * 4999 + "\t1"), ["1 indices are too large, such as 1000"]),
        ("", ["line 1 is ''", "146 indices are missing", "0 rows"]),
    ],
)
def test_each_kind_of_bad_table_is_named(text, expected):
    messages = [str(item) for item in check_table("WNLI.tsv", text, any_size=False)]
    assert len(messages) == len(expected), messages
    for part, message in zip(expected, messages, strict=True):
        assert message.startswith("WNLI.tsv: ")
        assert part in message


def test_similarities_are_between_0_and_5():
    rows = ["0\t5.001", "1\tnan", "2\t0.000", "3\tx"]
    (result,) = [item for item in check_table("STS-B.tsv", wnli(*rows), any_size=True) if item.is_error]
    assert "3 predictions are not numbers from 0 to 5, such as '5.001'" in str(result)


def test_another_size_may_be_meant():
    (result,) = check_table("WNLI.tsv", wnli(*WHOLE[:100]), any_size=True)
    assert not result.is_error
    assert "100 rows, and the official test has 146" in str(result)
    assert all(item.is_error for item in check_table("WNLI.tsv", wnli(*WHOLE[:100]), any_size=False))
