"""The PDF of a matrix of many runs."""

from paratune.report.canvas import Drawing
from paratune.report.sweep.paper import MAX_LINES, _cut
from paratune.report.tabular import Table, table_of_texts


def test_a_long_table_is_cut_and_says_where_all_of_it_is():
    table = table_of_texts("runs", "Every run", ("run",), [[f"{at}"] for at in range(1000)], 1, ("a note",), (0, 999))
    cut = _cut(table)
    assert isinstance(cut, Table)
    assert (len(cut.lines), cut.marked) == (MAX_LINES, (0,))
    assert cut.notes == (f"{MAX_LINES} of 1,000 lines; index.html and tables/runs.csv have all of them.", "a note")


def test_short_tables_and_figures_stay_whole():
    table = table_of_texts("few", "Few", ("run",), [["a"]], 1)
    drawing = Drawing("x", "X", "", lambda axes, hovers: None, 1.0)
    assert (_cut(table), _cut(drawing)) == (table, drawing)
