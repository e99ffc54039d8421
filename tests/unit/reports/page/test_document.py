"""The page: what is shown at once, what opens on request, and which parts are side by side."""

import re

import pytest

from paratune.reports.document import Listing, Part, ReportDocument, ReportSection, Statement, StatementBox
from paratune.reports.figures.canvas import Drawing
from paratune.reports.page.document import document_html
from paratune.reports.tables.table import make_table

SHOWN = Statement("Speed", "10% faster", True, "verdicts")
PROBLEM = Statement("Drift", "the machine drifts", False)
UNKNOWN = Statement("Load", "not recorded", None)


def page_of(*parts: Part) -> str:
    """Return the page of a report with these parts and a section of verdicts, from its contents on."""
    sections = (ReportSection("s", "S", parts), ReportSection("verdicts", "Verdicts", ()))
    html = document_html(ReportDocument("T", (), sections, ""))
    return html[html.index("<main") :]


@pytest.mark.parametrize(
    ("statements", "is_open"),
    [
        ((SHOWN, PROBLEM), True),
        ((SHOWN, UNKNOWN), False),
    ],
)
def test_a_box_with_a_title_is_open_if_a_statement_is_a_problem(statements, is_open):
    html = page_of(StatementBox("Can this be trusted?", statements))
    assert ("<details" in html, " open>" in html) == (True, is_open)


def test_statements_without_a_title_are_always_shown_with_their_signs_and_links():
    html = page_of(StatementBox("", (SHOWN, PROBLEM, UNKNOWN)))
    assert "<details" not in html
    assert re.findall(r'<span class="sign" role="img" aria-label="([^"]*)">(.)', html) == [
        ("shown", "\u2713"), ("a problem", "!"), ("cannot tell", "?"),
    ]  # fmt: skip
    assert '<a href="#verdicts">Verdicts</a>' in html


def test_a_heading_has_room_for_its_letters():
    # A narrow column of short numbers would break it into a line for each word.
    heads = ["Name", "Noise scale under AdamW (samples)"]
    html = page_of(make_table("t", "Table", heads, [["x", "1"]], 1))
    assert re.findall(r'<th scope="col"[^>]* style="--letters: (\d+)">([^<]*)<', html) == [
        (str(len(head)), head) for head in heads
    ]


def test_the_first_section_is_before_the_list_of_sections():
    sections = (
        ReportSection("a", "A", ("one",)),
        ReportSection("b", "B", ("two",)),
        ReportSection("c", "C", ("x",), False),
    )
    html = document_html(ReportDocument("T", ("Lead",), sections, "Footer"))
    assert html.index(">one<") < html.index("<nav") < html.index(">two<") < html.index(">x<")
    # A section that is not short is inside an element that a link to its contents opens.
    assert '<details class="section"><summary><h2>C</h2></summary><div class="parts" id="c">' in html
    assert "<nav" not in document_html(ReportDocument("T", (), sections[:2], ""))


def test_figures_that_follow_each_other_share_a_place():
    drawings = [Drawing(key, key.upper(), "", lambda axes, hovers: None, 0.0, note="No data.") for key in "abc"]
    table = make_table("t", "Table", ["Name", "Value"], [["x", "1"]], 1)
    html = page_of(table, *drawings[:2], "text", drawings[2])
    places = [part.count('class="figure"') for part in html.split('class="drawings"')[1:]]
    assert places == [2, 1]


def test_a_listing_is_closed_and_keeps_its_lines():
    html = page_of(Listing("Commands", "a <b>\n  c"))
    assert "<details><summary>Commands</summary><pre" in html
    assert ">a &lt;b&gt;\n  c</pre>" in html
