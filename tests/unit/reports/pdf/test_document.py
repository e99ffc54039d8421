"""The PDF: texts print literally, tables are complete and inside the margins, and equal contents give equal bytes."""

import itertools
from dataclasses import replace

import pytest
from make_run import make_run

from paratune.reports.document import Listing, Notice, ReportDocument, ReportSection
from paratune.reports.figures.canvas import Drawing, drawing_files
from paratune.reports.pdf.document import MANY_RUNS, document_pdf, shorten_section
from paratune.reports.run.document import run_document
from paratune.reports.run.model import build_report
from paratune.reports.runs.read import read_runs
from paratune.reports.tables.table import Column, Table, TableCell, make_table

pytest.importorskip("typst")
pypdfium2 = pytest.importorskip("pypdfium2")
INCH = 72
MARGIN = (8.27 - 7.0) / 2 * INCH
MARKUP = ["#let x = 1", "$x^2$", "*bold* _it_ `raw`", "@ref <label>", "\\ // -- ~", "= Heading", "<b>&amp;"]


def table(num_columns, num_lines, *, text="figure", is_text=False, **fields):
    columns = (
        Column("Label", is_text=True),
        *(Column(f"Column {at}", is_text=is_text) for at in range(1, num_columns)),
    )
    lines = tuple(
        (TableCell(f"line {line}"), *(TableCell(text) for _ in range(1, num_columns))) for line in range(num_lines)
    )
    return Table("t", "A table", columns, lines, **fields)


def written(*sections, figures=None, num_runs=1, **fields):
    document = ReportDocument("Title", ("Lead.",), sections, "", **fields)
    return document_pdf(document, figures or {}, num_runs=num_runs)


def section(*parts, heading="Section"):
    return ReportSection("s", heading, parts)


def pages(pdf):
    """Return the text of each page without the zero-width spaces that allow line breaks."""
    return [page.get_textpage().get_text_bounded().replace("\u200b", "") for page in pypdfium2.PdfDocument(pdf)]


def boxes(pdf):
    """Return left and right edge of each letter on all pages, in points."""
    for page in pypdfium2.PdfDocument(pdf):
        text = page.get_textpage()
        for at in range(text.count_chars()):
            left, _, right, _ = text.get_charbox(at)
            if right > left:
                yield left, right


@pytest.mark.parametrize("text", MARKUP)
def test_markup_prints_as_text_everywhere(text):
    cells = Table("t", text, (Column(text, is_text=True), Column(text)), ((TableCell(text), TableCell(text)),), (text,))
    pdf = written(
        section(cells, text, Listing(text, text), Notice(text, (text,)), heading=text), notices=(Notice(text),)
    )
    # Notice of the document; heading; two column names, two cells and the note of the table (its title is the heading);
    # paragraph; title and text of the listing; text and item of the notice.
    shown = "".join("".join(pages(pdf)).split())
    assert shown.count("".join(text.split())) == 12


def test_control_characters_are_escaped():
    assert "\\x1b[31mred" in "".join(pages(written(section("\x1b[31mred"))))


@pytest.mark.parametrize("num_columns", [2, 9, 40])
@pytest.mark.parametrize("is_text", [True, False])
def test_no_column_is_lost_or_outside_of_the_margins(num_columns, is_text):
    long = "words that may be broken and an-unbelievably-long-single-word-without-any-space"
    whole = table(num_columns, 3, text=long if is_text else "1,234.5 ± 67.8", is_text=is_text, groups=((0, "G" * 200),))
    pdf = written(section(whole))
    shown = " ".join(" ".join(pages(pdf)).split())
    assert all(f"Column {at}" in shown for at in range(1, num_columns))
    edges = list(boxes(pdf))
    assert min(left for left, _ in edges) >= MARGIN - 1
    # 9 columns of texts fit into a landscape page: 9.9 inches in the middle of 297 mm.
    wide = (297 / 25.4 - 9.9) / 2 * INCH + 9.9 * INCH
    assert max(right for _, right in edges) <= (wide if is_text and num_columns == 9 else MARGIN + 7 * INCH) + 1


def test_a_wide_table_of_nine_lines_is_one_block_without_constant_columns():
    # 9 lines of names and 10 measures; the last column is 3 in all lines.
    cells = [
        [f"configuration number {line}", *(f"{line}{at}.5 (+10.5% ↑)" for at in range(9)), "3"] for line in range(9)
    ]
    header = ["Configuration", *(f"Measure {at} (unit)" for at in range(9)), "Runs"]
    pdf = written(section(make_table("t", "Many columns", header, cells, 1)))
    shown = " ".join(" ".join(pages(pdf)).split())
    assert "1 of 2" not in shown
    assert shown.count("configuration number 4") == 1
    assert "In all lines: Runs: 3." in shown


@pytest.mark.parametrize("height", [100, 700])
def test_parts_after_a_landscape_table_share_its_page_if_they_fit(height):
    cells = [[f"configuration number {line}", *(f"{line}{at}.5 (+10.5% ↑)" for at in range(9))] for line in range(9)]
    wide = make_table("t", "Many", ["Configuration", *(f"Measure {at} (unit)" for at in range(9))], cells, 1)
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="700" height="HEIGHT"><path d="M0 0h700"/></svg>'
    figures = {"figures/f.svg": svg.replace("HEIGHT", str(height))}
    drawing = Drawing("f", "Figure", "Caption.", lambda axes, hovers: None, 1.0)
    parts = (wide, drawing, "A text after it.", *("word " * 900 for _ in range(2)))
    pdf = written(section(*parts), figures=figures)
    first, second, *rest = pypdfium2.PdfDocument(pdf)
    assert [round(page.get_width() / 72 * 25.4) for page in (first, second)] == [210, 297]
    shown = second.get_textpage().get_text_bounded()
    # A figure of 7 inches becomes smaller and fills the page; one of 1 inch leaves room for the text.
    assert "Caption." in shown
    assert ("A text after it." in shown) == (height == 100)
    assert "word word" not in shown
    assert [round(page.get_width() / 72 * 25.4) for page in rest] == [210] * len(rest)


@pytest.mark.parametrize(("seconds", "num_names"), [(("1", "1", "1"), 1), (("1", "2", "1"), 2)])
def test_each_block_of_a_wide_table_has_the_columns_that_identify_the_lines(seconds, num_names):
    first = ("alpha", "beta", "gamma") if num_names == 1 else ("alpha", "alpha", "beta")
    columns = (Column("Of", is_text=True), Column("Devices", is_text=True), *(Column(f"F{at}") for at in range(30)))
    lines = (
        tuple(
            (TableCell(name), TableCell(number), *(TableCell("1,234.5 ± 67.8") for _ in range(30)))
            for name, number in itertools.islice(itertools.cycle(zip(first, seconds, strict=True)), 3)
        )
        * 5
    )  # more lines than are transposed
    lines = tuple((replace(line[0], text=f"{line[0].text}{at}"), *line[1:]) for at, line in enumerate(lines))
    if num_names == 2:
        lines = tuple((line[0], replace(line[1], text=f"{at}"), *line[2:]) for at, line in enumerate(lines))
        lines = tuple((replace(line[0], text="same"), *line[1:]) for line in lines)
    wide = Table("t", "A table", columns, lines)
    assert wide.num_names == num_names
    shown = " ".join(pages(written(section(wide))))
    num_blocks = shown.count("A table (")
    assert num_blocks > 1
    assert shown.count("Of") == num_blocks
    assert shown.count("Devices") == (num_blocks if num_names == 2 else 1)


def test_few_lines_of_a_wide_table_are_transposed():
    header = ("configuration", *(f"figure number {at}" for at in range(20)))
    rows = [(f"way-{line}", *("1,234.5 ± 0.1" for _ in header[1:])) for line in range(5)]
    (page,) = pages(written(section(make_table("a", "A", header, rows, 1))))
    assert "A (1 of" not in page
    lines = page.splitlines()
    assert "configuration way-0 way-1 way-2 way-3 way-4" in lines
    assert sum(line.startswith("figure number") for line in lines) == 20


def test_a_long_table_repeats_its_headings_and_names_the_file_with_all_lines():
    long = table(4, 1000)
    texts = pages(written(section(long)))
    with_lines = [text for text in texts if "line " in text]
    assert len(with_lines) >= 4  # 200 lines of about 0.2 inches on pages of 10 inches
    assert all("Column 3" in text for text in with_lines)
    joined = " ".join(texts)
    assert "line 199" in joined
    assert "line 200" not in joined
    assert "200 of 1,000 lines; index.html and tables/t.csv have all of them." in " ".join(joined.split())


def test_a_heading_stays_with_the_table_below_it():
    first, second = pages(
        written(section(table(4, 24), table(4, 5), heading="First"), section(table(4, 24), heading="Second"))
    )
    assert "First" in first
    assert "Second" not in first
    assert "Second" in second
    assert "line 0" in second


def test_a_listing_keeps_its_lines_and_is_cut():
    texts = pages(written(section(Listing("Commands", "\n".join(f"  command {at} --x" for at in range(400))))))
    joined = " ".join("\n".join(texts).split())
    assert "command 299 --x" in joined
    assert "command 300" not in joined
    assert "The first 300 of 400 lines; index.html has all." in joined


def test_a_report_of_runs_is_the_same_each_time_and_its_figures_are_vectors(tmp_path):
    pytest.importorskip("matplotlib")
    report = build_report(read_runs([make_run(tmp_path / "a"), make_run(tmp_path / "b")]))
    document = run_document(report)
    figures = drawing_files(document.drawings)
    pdf = document_pdf(document, figures, num_runs=2)
    assert pdf == document_pdf(document, figures, num_runs=2)
    opened = pypdfium2.PdfDocument(pdf)
    assert opened.get_metadata_dict()["Title"] == "2 runs compared"
    assert opened.get_page_size(0) == pytest.approx((8.27 * INCH, 11.69 * INCH), abs=1)
    assert "CreationDate" not in {key for key, value in opened.get_metadata_dict().items() if value}
    kinds = {item.type for page in opened for item in page.get_objects(max_depth=8)}
    assert 3 not in kinds, "a figure is an image"  # FPDF_PAGEOBJ_IMAGE
    assert 2 in kinds  # paths
    shown = " ".join(" ".join(pages(pdf)).split())
    assert all(drawing.title in shown for drawing in document.drawings)


def test_many_runs_shorten_tables_and_texts_and_keep_all_figures():
    marked = make_table("runs", "All runs", ("run",), [[f"{at}"] for at in range(1000)], 1, ("a note",), (0, 999))
    few = make_table("few", "Few", ("run",), [["a"]], 1)
    drawing = Drawing("x", "X", "", lambda axes, hovers: None, 1.0)
    long, short, figure = shorten_section(section(marked, few, drawing)).parts
    assert [line[0].text for line in long.lines] == [f"{at}" for at in range(12)]
    assert long.marked == (0,)
    assert long.notes == ("12 of 1,000 lines; index.html and tables/runs.csv have all of them.", "a note")
    assert (short, figure) == (few, drawing)

    parts = (*[few] * 14, drawing, *(f"command {at}" for at in range(300)))
    shortened = shorten_section(section(*parts)).parts
    assert shortened[:13] == (*[few] * 12, drawing)
    assert shortened[13:25] == tuple(f"command {at}" for at in range(12))
    assert [text.partition(";")[0] for text in shortened[25:]] == ["12 of 14 tables", "12 of 300 paragraphs"]


@pytest.mark.parametrize(("num_runs", "is_cut"), [(MANY_RUNS - 1, False), (MANY_RUNS, True)])
def test_a_report_of_many_runs_is_cut(num_runs, is_cut):
    joined = " ".join(pages(written(section(table(3, 20)), num_runs=num_runs)))
    assert ("line 19" not in joined) is is_cut
