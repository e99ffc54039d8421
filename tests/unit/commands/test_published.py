"""`paratune published`: figures of a table, by a mapping of its columns."""

import json
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.published import published
from paratune.sweeps.matrix import read_matrix

TABLE = """\
Setup;Time (min);Memory;F1 (ours);F1 (theirs)
1 GPU;1.234,5;12 340;91,2%;-
8 GPUs;0,912;;90;n/a
Average;3;4;5;6
"""
MAPPING = """\
source: Somebody, 2026
where: table 2
decimal: ","
rows:
  nproc: {column: Setup, values: {1 GPU: 1, 8 GPUs: 8, Average: null}}
measures:
  time: {column: Time (min), unit: min}
  memory: {column: Memory, unit: MB}
  f1:
    - {column: F1 (ours), unit: "%", of: {method: ours}}
    - {column: F1 (theirs), unit: "%", of: {method: theirs}}
"""
ZERO = Path(__file__).parents[3] / "configs" / "published" / "zero"


@pytest.fixture
def mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("table2.csv").write_text(TABLE)
    path = Path("mapping.yaml")
    path.write_text(MAPPING)
    return path


def test_figures_have_the_values_and_units_of_the_mapping(mapping: Path, capsys: pytest.CaptureFixture[str]):
    published("table2.csv", as_=mapping, json=True)

    place = {"where": "table 2"}
    assert json.loads(capsys.readouterr().out) == {
        "matrix": "table2",
        "source": "Somebody, 2026",
        "figures": [
            {"values": {"nproc": 1}, "time": "1234.5 min", "memory": "12340 MB", **place},
            {"values": {"nproc": 1, "method": "ours"}, "f1": "91.2%", **place},
            {"values": {"nproc": 8}, "time": "0.912 min", **place},
            {"values": {"nproc": 8, "method": "ours"}, "f1": "90%", **place},
        ],
        "left_out": {"rows": 1, "empty_cells": 3},
    }


def test_the_printed_text_is_a_file_of_published_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Table 1 of ZeRO gives the figures that configs/published/zero/published.yaml has."""
    tables = ZERO / "tables"
    published(str(tables / "table1.csv"), as_=tables / "table1.yaml", matrix="zero_table1")

    shown = capsys.readouterr()
    (tmp_path / "published.yaml").write_text(shown.out)
    for name in ("table1.yaml", "base.yaml"):
        (tmp_path / name).write_text((ZERO / name).read_text())
    ours, theirs = (read_matrix(folder / "table1.yaml").record.published for folder in (tmp_path, ZERO))
    assert ours is not None
    assert len(ours.figures) == 15
    assert ours == theirs
    assert "15" in shown.err


@pytest.mark.parametrize(
    ("decimal", "cell", "figure"),
    [
        (None, "1234.5", "1234.5 min"),
        (None, "90 min", "90 min"),
        (None, "1,234.5", None),
        (None, "1,5", None),
        (None, "12 340", None),
        (".", "1,234,567.5", "1234567.5 min"),
        (".", "1'234", "1234 min"),
        (".", "1,5", None),
        (".", "0,912", None),
        (".", "1,234 567", None),
        (",", "12\N{NARROW NO-BREAK SPACE}340,5 min", "12340.5 min"),
        (",", "1.234", "1234 min"),
        (",", "0.912", None),
        (",", "1.5", None),
        (None, "5 h", None),
        (None, "ca. 5", None),
    ],
)
def test_separators_are_those_of_the_mapping(
    mapping: Path, capsys: pytest.CaptureFixture[str], decimal: str | None, cell: str, figure: str | None
):
    Path("t.csv").write_text(f"n;t\n4;{cell}\n")
    line = "" if decimal is None else f'decimal: "{decimal}"\n'
    mapping.write_text(f"source: s\n{line}rows: {{nproc: n}}\nmeasures: {{time: {{column: t, unit: min}}}}\n")
    if figure is None:
        with raises_code("published.invalid", cell, row=1, column="t"):
            published("t.csv", as_=mapping)
        return
    published("t.csv", as_=mapping, json=True)
    assert json.loads(capsys.readouterr().out)["figures"] == [{"values": {"nproc": "4"}, "time": figure}]


@pytest.mark.parametrize(
    ("old", "new", "code", "values", "line"),
    [
        ("column: Setup", "column: Setpu", "published.invalid", ("Setpu", "Setup"), 5),
        ("column: Memory", "column: Memry", "published.invalid", ("Memry", "Memory"), 8),
        ("(ours), unit", "(our), unit", "published.invalid", ("F1 (our)", "F1 (ours)"), 10),
        ("  time:", "  tme:", "published.invalid", ("tme", "time"), 7),
        ("unit: MB", "unit: mb", "published.invalid", ("mb", "MB"), 8),
        ("unit: MB", "unit: s", "published.invalid", ("GiB",), 8),
        ("{method: theirs}", "{nproc: 3}", "published.invalid", ("nproc",), 11),
        ("unit: min}", "units: min}", "config.unknown_key", ("units", "unit"), 7),
        ("{column: Memory, unit: MB}", "Memory", "config.invalid_value", ("Memory",), 8),
        ('decimal: ","', "decimal: 3", "config.invalid_value", ("decimal",), 3),
        ("source: Somebody, 2026\n", "", "config.required", ("source",), 1),
    ],
)
def test_a_wrong_mapping_is_refused_with_its_line(
    mapping: Path, old: str, new: str, code: str, values: tuple[str, ...], line: int
):
    assert old in MAPPING
    mapping.write_text(MAPPING.replace(old, new))
    with raises_code(code, *values, file="mapping.yaml", line=line):
        published("table2.csv", as_=mapping)


@pytest.mark.parametrize(
    ("old", "new", "row", "column", "values"),
    [
        ("8 GPUs;", "8 GPU;", 2, "Setup", ("8 GPU", "8 GPUs")),
        ("8 GPUs;", ";", 2, "Setup", ("nproc",)),
        ("12 340", "12 34O", 1, "Memory", ("12 34O",)),
        ("91,2%", "91,2 s", 1, "F1 (ours)", ("91,2 s", "%")),
        ("8 GPUs;", "1 GPU;", 2, "Time (min)", ("row 1, column Time (min)",)),
    ],
)
def test_a_wrong_cell_is_refused_with_its_row_and_column(
    mapping: Path, old: str, new: str, row: int, column: str, values: tuple[str, ...]
):
    assert old in TABLE
    Path("table2.csv").write_text(TABLE.replace(old, new))
    with raises_code("published.invalid", *values) as raised:
        published("table2.csv", as_=mapping)
    assert (row, column) in [(fault.facts["row"], fault.facts["column"]) for fault in raised.value.faults]


def test_a_table_without_figures_is_refused(mapping: Path):
    Path("table2.csv").write_text(TABLE.partition("1 GPU")[0] + "Average;1;2;3;4\n")
    with raises_code("published.invalid", "table2.csv"):
        published("table2.csv", as_=mapping)


def test_a_row_that_is_left_out_may_have_any_cells(mapping: Path, capsys: pytest.CaptureFixture[str]):
    mapping.write_text(MAPPING.replace("rows:\n", "rows:\n  memory: {column: Memory, values: {12 340: a, '': b}}\n"))
    published("table2.csv", as_=mapping, json=True)  # the average has 4 there
    assert json.loads(capsys.readouterr().out)["left_out"]["rows"] == 1
