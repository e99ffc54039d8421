"""Notes of a matrix in its report."""

from pathlib import Path

from make_matrix import NPROC, Made, make_matrix

from paratune.reports.document import Listing
from paratune.reports.matrix import make_sweep


def test_the_page_of_a_matrix_has_its_notes_as_they_are_written(tmp_path: Path):
    notes = "Two processes are <b>slower</b>.\n\n- by 10%\n"
    folder = make_matrix(tmp_path / "m", (NPROC,), lambda values: Made(), notes=notes)
    report = make_sweep(folder, tmp_path / "out")
    (section,) = (section for section in report.sections if section.key == "notes")
    assert section.parts == (Listing("As written", notes),)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Two processes are &lt;b&gt;slower&lt;/b&gt;.\n\n- by 10%</pre>" in page
