"""The PDF: what breaks where, that nothing is cut, and how many sheets there are."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from make_run import make_run

from paratune.report import paper_tables
from paratune.report.canvas import Drawing
from paratune.report.contents import contents
from paratune.report.letters import broken, width
from paratune.report.model import build_report
from paratune.report.paper import HEIGHT, LEFT, ROOM, WIDTH, PaperSection, _Sheets, shortened, to_pdf
from paratune.report.paper_tables import grids, note_of_rest
from paratune.report.read import read_runs
from paratune.report.run_paper import run_pdf
from paratune.report.tabular import Column, Table, TableCell, table_of_texts

pytest.importorskip("matplotlib")
HOSTILE = "$\\frac{(Tj) <b> \x1b[31m 日本 %"


def table(num_columns, num_lines, *, text="figure", is_text=False, **more):
    columns = (
        Column("Label", is_text=True),
        *(Column(f"Column {at}", is_text=is_text) for at in range(1, num_columns)),
    )
    lines = tuple(
        (TableCell(f"line {line}"), *(TableCell(text) for _ in range(1, num_columns))) for line in range(num_lines)
    )
    return Table("t", "A table", columns, lines, **more)


def num_sheets(pdf):
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")
    return len(re.findall(rb"/Type /Page\b", pdf))


def placed(grid):
    """Return all texts of a grid with where they begin and end, and how far down the last is."""
    letters = [*grid.head(LEFT, 1.0)]
    y = 1.0 + grid.height_of_head
    for line, height in enumerate(grid.heights):
        letters += grid.letters(line, LEFT, y)
        y += height
    return letters, y


def test_a_width_is_that_of_matplotlib_s_own_layout():
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    words, properties = "Training 0123", FontProperties(family="DejaVu Sans", size=10)
    inches = TextToPath().get_text_width_height_descent(words, properties, ismath=False)[0] / 72
    assert width(words, 10) == pytest.approx(inches, rel=0.03)  # theirs is of the ink and knows pairs of letters


def test_lines_break_between_words_and_inside_those_that_are_wider():
    lines = broken("two words and unbelievably-long-single-word", width("two words", 9) + 0.02, 9)
    assert lines[0] == "two words"
    assert "".join(lines).replace(" ", "") == "twowordsandunbelievably-long-single-word"
    assert all(width(line, 9) <= width("two words", 9) + 0.02 for line in lines)


@pytest.mark.parametrize("num_columns", [2, 9, 40])
@pytest.mark.parametrize("is_text", [True, False])
def test_no_table_is_cut(num_columns, is_text):
    one = table(num_columns, 3, text="words that may be broken", is_text=is_text, groups=((0, "Group " * 40),))
    found = grids(one, ROOM)
    for grid in found:
        letters, bottom = placed(grid)
        assert grid.width <= ROOM + 1e-6
        ends = [each.x + width(each.text, each.size, is_bold=each.is_bold) for each in letters]
        assert min(each.x for each in letters) >= LEFT - 0.01
        assert max(ends) <= LEFT + ROOM + 0.02
        assert max(each.y for each in letters) <= bottom
    shown = {at for grid in found for at in grid.columns}
    assert shown == set(range(num_columns)) or "columns; tables/t.csv has all" in next(note_of_rest(one, found))


@pytest.mark.parametrize(("seconds", "names"), [(("1", "1", "1"), 1), (("1", "2", "1"), 2)])
def test_what_tells_lines_apart_stands_in_each_block(seconds, names, monkeypatch):
    monkeypatch.setattr(paper_tables, "_MAX_TURNED", 1)
    # Names of configurations do it alone; of a family and its devices both are needed.
    first = ("a", "b", "c") if names == 1 else ("a", "a", "b")
    columns = (Column("Of", is_text=True), Column("Devices", is_text=True), Column("Batch", is_text=True),
               *(Column(f"Figure {at}") for at in range(20)))  # fmt: skip
    lines = tuple(
        (TableCell(one), TableCell(two), TableCell("32"), *(TableCell("1,234.5 ± 67.8") for _ in range(20)))
        for one, two in zip(first, seconds, strict=True)
    )
    one = Table("t", "A table", columns, lines)
    found = grids(one, ROOM)
    assert one.num_names == names
    assert len(found) > 1
    assert all(grid.columns[:names] == tuple(range(names)) for grid in found)
    shown = [at for grid in found for at in grid.columns[names:]]
    assert shown == list(range(names, len(columns)))


def test_texts_of_a_line_do_not_run_into_each_other():
    one = table(6, 4, text="words that may be broken or not")
    for grid in grids(one, ROOM):
        letters, _ = placed(grid)
        for y in {each.y for each in letters}:
            row = sorted((each for each in letters if each.y == y), key=lambda each: each.x)
            for left, right in pairwise(row):
                assert left.x + width(left.text, left.size, is_bold=left.is_bold) < right.x


def test_a_long_table_goes_on_over_sheets_and_says_what_is_left_out():
    assert num_sheets(to_pdf("T", [], [PaperSection("A table", [table(4, 20)])])) == 1
    # A line is 8 points * 1.28 / 72 + 0.077 = 0.22 inches; some 45 fit on a sheet of 10 inches: 200 on five.
    long = table(4, 1000)
    assert num_sheets(to_pdf("T", [], [PaperSection("A table", [long])])) in (5, 6)
    assert list(note_of_rest(long, grids(long, ROOM))) == ["The first 200 of 1,000 lines; tables/t.csv has all."]


def test_a_heading_stays_with_the_table_below_it():
    # 20 lines of 0.22 inches and what stands above them, twice, are more than the 10 inches of a sheet.
    sheets = _Sheets()
    for name in ("First", "Second"):
        sheets.section(PaperSection(name, [table(4, 20)]))
    pages = [{each.text for each in letters} for letters in sheets._letters]
    assert [name for page in pages for name in ("First", "Second") if name in page] == ["First", "Second"]
    assert "Second" not in pages[0]
    assert "line 0" in pages[1]


def test_a_heading_stays_with_a_figure_that_is_as_high_as_a_sheet():
    sheets = _Sheets()
    sheets.section(PaperSection("First", [table(4, 20)]))
    sheets.section(PaperSection("Second", [Drawing("x", "Bars", "One bar.", lambda axes, hovers: None, 30.0)]))
    texts = [[each.text for each in letters] for letters in sheets._letters]
    assert len(texts) == 2
    assert texts[1] == ["Second", "Bars", "One bar."]


def test_a_report_of_runs_is_a_pdf_that_is_the_same_each_time(tmp_path):
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes={"run_id": HOSTILE})]
    report = build_report(read_runs(folders))
    pdf = run_pdf(report, contents(report))
    assert num_sheets(pdf) >= 3
    assert b"/Title (2 runs compared)" in pdf
    assert b"/Subtype /Image" not in pdf, "a figure is not in vectors"
    assert pdf == run_pdf(report, contents(report))
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    assert [float(each) / 72 for each in box.groups()] == pytest.approx([WIDTH, HEIGHT], abs=0.01)


def test_of_many_runs_the_first_tables_and_lines_are_on_paper_and_all_figures():
    marked = table_of_texts("runs", "Every run", ("run",), [[f"{at}"] for at in range(1000)], 1, ("a note",), (0, 999))
    few = table_of_texts("few", "Few", ("run",), [["a"]], 1)
    drawing = Drawing("x", "X", "", lambda axes, hovers: None, 1.0)
    long, short, figure = shortened(PaperSection("All", [marked, few, drawing])).parts
    assert isinstance(long, Table)
    assert [line[0].text for line in long.lines] == [f"{at}" for at in range(12)]
    assert long.marked == (0,)
    assert long.notes == ("12 of 1,000 lines; index.html and tables/runs.csv have all of them.", "a note")
    assert (short, figure) == (few, drawing)

    parts = [*[few] * 14, drawing, *(f"command {at}" for at in range(300))]
    found = shortened(PaperSection("All", parts)).parts
    assert found[:13] == [*[few] * 12, drawing]
    assert found[13:25] == [f"command {at}" for at in range(12)]
    assert found[25:] == [
        "12 of 14 tables; index.html has all of them.",
        "12 of 300 paragraphs; index.html has all of them.",
    ]


@pytest.mark.parametrize(("num_runs", "is_cut"), [(199, False), (200, True)])
def test_a_report_of_200_runs_is_cut(tmp_path, monkeypatch, num_runs, is_cut):
    report = build_report(read_runs([make_run(tmp_path / "a")]))
    found = contents(report)
    sections = []
    monkeypatch.setattr("paratune.report.run_paper.to_pdf", lambda title, lead, parts: sections.extend(parts) or b"")
    run_pdf(replace(report, runs=report.runs * num_runs), found)
    notes = [note for each in sections for part in each.parts if isinstance(part, Table) for note in part.notes]
    assert any("index.html and tables/" in note for note in notes) is is_cut
