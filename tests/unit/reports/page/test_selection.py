"""What a page can hide: lines and columns of tables and parts of figures know which configurations they belong to."""

import re

import pytest
from make_matrix import NPROC, SEED, STRATEGY, Made, make_matrix
from make_run import make_run

from paratune.reports import make
from paratune.reports.document import ReportDocument, ReportSection, Selectable, Selection
from paratune.reports.figures.canvas import Drawing, Hovers, Key, label_rows
from paratune.reports.matrix import make_sweep
from paratune.reports.matrix.document import matrix_document
from paratune.reports.page.document import document_html
from paratune.reports.run.document import run_document
from paratune.reports.tables.table import Column, Table, TableCell

ABC = Selection(
    "configurations", tuple(Selectable(name, (f"{name}-1", f"{name}-2")) for name in "abc"), "Not the rest."
)


def page(*parts: Table | Drawing) -> str:
    return document_html(ReportDocument("t", (), (ReportSection("s", "S", parts),), "", selection=ABC))


def test_a_line_belongs_to_the_configurations_of_its_first_cell_with_a_name_or_runs():
    columns = (Column("Name", is_text=True), Column("Score"))
    lines = (
        (TableCell("b"), TableCell("1", 1, ("a-1",))),  # by its name
        (TableCell("lr 1"), TableCell("2", 2, ("c-2", "a-1", "c-1"))),  # by its runs
        (TableCell("all"), TableCell("3", 3)),
    )
    made = page(Table("t", "T", columns, lines))
    assert re.findall(r"<tr( data-of=\"[^\"]*\")?><th[^>]*>([^<]+)", made)[1:] == [
        (' data-of="1"', "b"),
        (' data-of="2 0"', "lr 1"),
        ("", "all"),
    ]


def test_a_number_in_the_name_of_a_line_is_not_broken_at_its_hyphen():
    columns = (Column("Name", is_text=True), Column("Score"))
    made = page(Table("t", "T", columns, ((TableCell("<x>, lr 1.5e-5, low-rank"), TableCell("1", 1)),)))
    assert '&lt;x&gt;, lr <span class="unbroken">1.5e-5</span>, low-rank</th>' in made


def test_a_column_belongs_to_the_configuration_of_its_heading():
    columns = (Column("Measure", is_text=True), Column("c"), Column("unit"))
    made = page(Table("t", "T", columns, ((TableCell("time"), TableCell("1", 1, ("c-1",)), TableCell("s")),)))
    assert made.count('data-of="2"') == 2  # heading and cell
    assert "<tr data-of" not in made


def test_parts_and_rows_of_a_figure_belong_to_their_configurations():
    pytest.importorskip("matplotlib")

    def draw(axes, hovers: Hovers) -> None:
        label_rows(axes, hovers, ["heading", "b", "c"], [(), ("b", "b-1"), ("c",)])
        axes.plot([1], [1], "o", gid=hovers.part_of("b", row=1))
        axes.plot([0, 1], [1, 2], gid=hovers.part_of("b", "c", "unknown"))
        axes.set_ylim(2.6, -0.6)

    made = page(Drawing("f", "F", "", draw, 2.0, legend=(Key("a", "#000000"), Key("x", "#000000", owners=("b", "c")))))
    figure = made[made.index("<figure") : made.index("</figure")]
    parts = re.findall(r"<g((?: data-of=\"[\d ]+\")?(?: data-row=\"\d\")?)", figure)
    assert [part for part in parts if part] == [
        *(' data-row="0"', ' data-of="1" data-row="1"', ' data-of="2" data-row="2"'),  # names
        *(' data-of="1" data-row="1"', ' data-of="1 2"'),
    ]
    assert re.findall(r"<li( data-of=\"[\d ]+\")?>", figure) == [' data-of="0"', ' data-of="1 2"']
    # 3.2 rows are as high as the axes: less than the 2 inches of the figure, and over half of them; 72 points each.
    assert 72 / 3.2 < float(re.search(r'data-row-height="([\d.]+)"', figure)[1]) < 2 * 72 / 3.2


def test_a_page_of_a_matrix_has_its_configurations_and_one_of_runs_the_runs(tmp_path):
    def tell(values):
        return Made(step_ms=100.0 if values["strategy"] == "ddp" else 120.0, kind=values["strategy"])

    matrix = make_sweep(make_matrix(tmp_path / "m", (STRATEGY, NPROC, SEED), tell), None)
    runs = [make_run(tmp_path / name) for name in ("x", "y", "z")]
    of_matrix, of_runs = matrix_document(matrix).selection, run_document(make(runs, None)).selection
    assert of_matrix is not None
    assert of_runs is not None
    assert [entry.label for entry in of_matrix.entries] == [
        f"{kind}, nproc {size}" for kind in ("ddp", "zero3") for size in (1, 2, 4)
    ]
    assert of_matrix.entries[1].runs == ("ddp_nproc-2_seed-1", "ddp_nproc-2_seed-2")
    assert [(entry.label, entry.runs) for entry in of_runs.entries] == [(name, (name,)) for name in "xyz"]
    assert run_document(make(runs[:2], None)).selection is None  # two are in view
