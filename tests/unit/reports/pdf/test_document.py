"""The PDF: texts print literally, tables are complete and inside the margins, and equal contents give equal bytes."""

import itertools
from dataclasses import replace

import pytest
from make_run import make_run

from paratune.reports.document import Listing, Notice, ReportDocument, ReportSection
from paratune.reports.figures.canvas import Drawing
from paratune.reports.pdf.document import document_pdf
from paratune.reports.run import build_report, run_document
from paratune.reports.runs.read import read_runs
from paratune.reports.tables.table import Column, Table, TableCell

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


def written(*sections, **fields):
    return document_pdf(ReportDocument("Title", ("Lead.",), sections, "", **fields))


def section(*parts, heading="Section"):
    return ReportSection("s", heading, parts)


def pages(pdf):
    return [page.get_textpage().get_text_bounded() for page in pypdfium2.PdfDocument(pdf)]


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
    pdf = written(section(cells, text, Listing(text, text), Notice(text), heading=text), notices=(Notice(text),))
    # Notice of the document; heading; two column names, two cells and the note of the table (its title is the heading);
    # paragraph; title and text of the listing; text of the notice.
    shown = "".join("".join(pages(pdf)).split())
    assert shown.count("".join(text.split())) == 11


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
    assert max(right for _, right in edges) <= MARGIN + 7 * INCH + 1


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


def test_a_long_table_repeats_its_headings_and_names_the_file_with_all_lines():
    long = table(4, 1000)
    texts = pages(written(section(long)))
    with_lines = [text for text in texts if "line " in text]
    assert all("Column 3" in " ".join(text.split()) for text in with_lines)
    joined = " ".join(texts)
    assert "line 39" in joined
    assert "line 40" not in joined
    assert "40 of 1,000 lines; index.html and report.json have all of them." in " ".join(joined.split())


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
    pdf = document_pdf(document)
    assert pdf == document_pdf(run_document(report))
    opened = pypdfium2.PdfDocument(pdf)
    assert opened.get_metadata_dict()["Title"] == "2 runs compared"
    assert opened.get_page_size(0) == pytest.approx((8.27 * INCH, 11.69 * INCH), abs=1)
    assert "CreationDate" not in {key for key, value in opened.get_metadata_dict().items() if value}
    kinds = {item.type for page in opened for item in page.get_objects(max_depth=8)}
    assert 3 not in kinds, "a figure is an image"  # FPDF_PAGEOBJ_IMAGE
    assert 2 in kinds  # paths
    shown = " ".join(" ".join(pages(pdf)).split())
    assert all(drawing.title in shown for drawing in document.parts if isinstance(drawing, Drawing))


LONG_NAME = "configs/sweeps/learning_rates.yaml"
COMMAND = f"paratune train REPORT/{LONG_NAME} --set train.learning_rate=5e-05 --nproc 2"


def test_commands_can_be_copied_and_searched():
    """A word of over 12 letters may be broken, and no letter is inserted for that."""
    columns = (Column("Run", is_text=True), Column("Command", is_text=True))
    table = Table("t", "T", columns, ((TableCell("ddp-learning-rate-0.0002"), TableCell(LONG_NAME)),))
    pdf = written(section(Listing("Commands", COMMAND), COMMAND, table))
    for text in pages(pdf):
        assert not set(text) - set(map(chr, range(32, 127))) - {"\r", "\n"}
    page = pypdfium2.PdfDocument(pdf)[0].get_textpage()
    for text, count in ((COMMAND, 2), (LONG_NAME, 3), ("ddp-learning-rate-0.0002", 1)):
        found = page.search(text, match_case=True)
        assert [found.get_next() is not None for _ in range(count + 1)] == [True] * count + [False], text


@pytest.mark.parametrize("word", ["a" * 400, "runs/" * 80, "ab_" * 100, "ä" * 200])
def test_a_word_longer_than_the_line_is_broken_and_complete(word):
    pdf = written(section(word))
    assert max(right for _, right in boxes(pdf)) <= MARGIN + 7 * INCH + 1
    assert word in "".join("".join(pages(pdf)).split())
