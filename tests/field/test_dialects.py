"""Tables as spreadsheets and scripts write them: what is found in the file, and what an option sets."""

import logging
from pathlib import Path
from typing import Any

import pytest
from raised import check_logged, raises_code

from paratune.config.sections import Columns, FileReading
from paratune.config.task_sections import RegressionTask
from paratune.data.columns import TableReader
from paratune.data.read import read_table
from paratune.data.selection import select
from paratune.data.tables import ENCODING
from paratune.errors import DataError

FOLDER = Path(__file__).parent
CP1252 = FileReading(encoding="cp1252")
GERMAN = ["Der Kaffee war gut; der Kuchen nicht", "Zu laut für mich", "Wir kommen im März wieder – „gern“"]
FILES: dict[str, tuple[str, FileReading, dict[str, list[str]]]] = {
    "semicolons, cp1252, CRLF": (
        "german_spreadsheet.csv",
        CP1252,
        {"Rezension": GERMAN, "Note": ["7,5", "3,0", "1.009,25"], "Ort": ["Köln", "Düren", "Görlitz"]},
    ),
    "a line sep=; behind a byte order mark": (
        "sep_line.csv",
        FileReading(),
        {"texto": ["Muito bom, recomendo", "Não volto"], "nota": ["9,5", "2"]},
    ),
    "UTF-16 with tabs in .txt": (
        "excel_unicode.txt",
        FileReading(),
        {"body": ["the boat left early", "ça va, merci"], "mood": ["calm", "glad"]},
    ),
    "no header": (
        "no_header.tsv",
        FileReading(header=False),
        {
            "1": ["r-17", "r-18", "r-19"],
            "2": ["The bus was late, again", "Seats were clean", 'A "quiet" trip'],
            "3": ["0", "1", "1"],
        },
    ),
    "other quotes": (
        "single_quotes.csv",
        FileReading(quote="'"),
        {"line": ["two, with a comma", "it's late"], "tone": ["low", "high"]},
    ),
    "bars": ("pipes.csv", FileReading(), {"text": ["nine, ten; eleven", "twelve"], "label": ["count", "count"]}),
    "a given separator": (
        "pipes.csv",
        FileReading(separator="|", header=False),
        {"1": ["text", "nine, ten; eleven", "twelve"], "2": ["label", "count", "count"]},
    ),
}


@pytest.mark.parametrize(("name", "reading", "columns"), FILES.values(), ids=FILES)
def test_a_table_in_a_dialect_has_its_columns(name: str, reading: FileReading, columns: dict[str, list[str]]):
    assert read_table(str(FOLDER / name), reading).to_pydict() == columns


def test_what_was_found_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "paratune"):
        read_table(str(FOLDER / "excel_unicode.txt"))
        read_table(str(FOLDER / "pipes.csv"))
    assert [record.args[1] for record in caplog.records] == ["utf-16", "|"]


def test_columns_by_number_and_decimal_commas_become_samples():
    table = read_table(str(FOLDER / "german_spreadsheet.csv"), CP1252)
    columns = Columns(text="Rezension", label="Note")
    samples = select(TableReader(table, columns, "refuse", "x"), RegressionTask(kind="regression"))
    assert samples.labels is not None
    assert (samples.texts, samples.labels.tolist()) == (GERMAN, [7.5, 3.0, 1009.25])
    table = read_table(str(FOLDER / "no_header.tsv"), FileReading(header=False))
    samples = select(
        TableReader(table, Columns(text=2, label=3, id=1), "refuse", "x"), RegressionTask(kind="regression")
    )  # type: ignore[arg-type]
    assert samples.labels is not None
    assert (samples.ids, samples.labels.tolist()) == (["r-17", "r-18", "r-19"], [0, 1, 1])


@pytest.mark.parametrize("text", ["label;text\n1,5;a\n1.500;b\n", 'label,text\n"1,500",a\n'])
def test_commas_that_may_be_thousands_are_not_read_as_decimals(tmp_path: Path, text: str):
    (tmp_path / "a.csv").write_text(text)
    table = read_table(str(tmp_path / "a.csv"))
    with raises_code("data.target_not_number"):
        select(
            TableReader(table, Columns(text="text", label="label"), "refuse", "x"), RegressionTask(kind="regression")
        )


def test_cp1252_is_guessed_with_one_warning(caplog: pytest.LogCaptureFixture):
    name, _, columns = FILES["semicolons, cp1252, CRLF"]
    table = read_table(str(FOLDER / name))
    assert (table.to_pydict(), table.schema.metadata[ENCODING]) == (columns, b"cp1252")
    check_logged(caplog, "data.encoding", "line 2", "Köln")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Привет, мир", "cp1251"),
        ("Привет, мир", "koi8-r"),
        ("Καλημέρα κόσμε", "cp1253"),
        ("これはテストです", "shift-jis"),
        ("这是一个测试", "gbk"),
        ("안녕하세요", "euc-kr"),
        ("Człowiek był miły i łaskawy", "cp1250"),
        ("El niño pidió más café", "cp850"),
        ("a \x81 b", "latin-1"),
        ("não são então \udce9", "utf-8"),  # one damaged byte
    ],
)
def test_what_is_not_likely_cp1252_is_not_guessed(tmp_path: Path, text: str, encoding: str):
    errors = "surrogateescape" if encoding == "utf-8" else "strict"
    (tmp_path / "a.csv").write_bytes(f"text,label\n{text},positive\n".encode(encoding, errors))
    with raises_code("data.encoding", "line 2", "0x"):
        read_table(str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("name", "content", "reading"),
    [
        ("a.csv", f"{'word ' * 50_000},1\n{'word ' * 50_000},1,2\n", FileReading()),
        ("a.csv", f"{'word ' * 50_000}\t1\n{'word ' * 50_000},1,2\n", FileReading(separator=",")),
        ("a.tsv", "\t".join(["long name " * 5000] * 2) + "\nx\ty\n", FileReading()),
        ("a.jsonl", '{"a": "x"}\n["' + "x" * 200_000 + '"]\n', FileReading()),
        ("a.conll", "word " * 50_000 + "\n" + "word " * 3 + "\n", FileReading()),
    ],
)
def test_an_error_has_no_whole_row(tmp_path: Path, name: str, content: str, reading: Any):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        read_table(str(tmp_path / name), reading)
    assert len(str(error.value)) < 600 + len(str(tmp_path))


def test_an_error_of_columns_and_labels_has_no_whole_row(tmp_path: Path):
    long = "word " * 50_000
    (tmp_path / "a.tsv").write_text(f"{long}\tb\n{long}\t0\n")
    table = read_table(str(tmp_path / "a.tsv"))
    for columns in (Columns(text="text", label="b"), Columns(text="b", label=table.column_names[0])):
        with pytest.raises(DataError) as error:
            select(TableReader(table, columns, "refuse", "x"), RegressionTask(kind="regression"))
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize(("row", "is_warning"), [('"Sim."\t1\n', True), ('"Sim" e não\t1\n', False)])
def test_quotes_that_are_plain_because_of_one_field_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: str, is_warning: bool
):
    (tmp_path / "a.tsv").write_text("text\tn\n" + row * 20 + '"Diz "não"."\t2\n', encoding="utf-8")
    assert read_table(str(tmp_path / "a.tsv")).to_pylist()[-1] == {"text": '"Diz "não"."', "n": "2"}
    assert [record.code for record in caplog.records if hasattr(record, "code")] == ["data.quotes_plain"] * is_warning
    assert is_warning == ("line 22" in caplog.text)


def test_a_row_with_too_many_fields_is_named_with_the_separator_of_the_header(tmp_path: Path):
    (tmp_path / "a.csv").write_text("a;b\n1;2;3\n")
    with raises_code("data.unreadable", "line 2", "3 fields", "';'"):
        read_table(str(tmp_path / "a.csv"))
