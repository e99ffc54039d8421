"""Notes of a matrix: Markdown as parts of a report."""

from pathlib import Path

import pytest
from make_matrix import NPROC, Made, make_matrix

from paratune.reports.document import Listing, Remarks
from paratune.reports.matrix import make_sweep, notes_parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (
            "# Why **packed**\n\nIt is *fast*:\nsee [us](https://x.org).\n",
            ["Why packed", "It is fast: see us (https://x.org)."],
        ),
        ("- one\n- `two`\n  - three\n\n1. four\n", [Remarks(("• one", "• two three")), Remarks(("1. four",))]),
        ("> a\n> b\n\n---\n", ["a b"]),
        ("```sh\nls  -l\n```\n", [Listing("sh", "ls  -l\n")]),
        # Neither is interpreted.
        ("<script>x</script>\n\n![plot](http://x.org/p.png)\n", ["<script>x</script>", "plot"]),
    ],
)
def test_markdown_becomes_parts(text: str, parts: list):
    assert list(notes_parts(text)) == parts


def test_the_page_of_a_matrix_has_its_notes(tmp_path: Path):
    notes = "Two processes are <b>slower</b>.\n\n- by 10%\n"
    folder = make_matrix(tmp_path / "m", (NPROC,), lambda values: Made(), notes=notes)
    report = make_sweep(folder, tmp_path / "out")
    (section,) = (section for section in report.sections if section.key == "notes")
    assert section.parts == ("Two processes are <b>slower</b>.", Remarks(("• by 10%",)))
    assert "<p>Two processes are &lt;b&gt;slower&lt;/b&gt;.</p>" in (tmp_path / "out" / "index.html").read_text()
