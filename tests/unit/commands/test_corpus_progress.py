"""progress.html and report.html of a corpus that is made here."""

import json
import logging
import re
import threading

import pytest
from corpus_documents import extracted
from patience import wait_for
from raised import check_logged

from paratune.commands.corpus_progress import PAGE, ProgressPage
from paratune.commands.corpus_report import write_report
from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.store.run import run_store
from paratune.errors import DataError

STAGES = ["3_extract", "4_clean", "6_store"]
STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]


def rows_of(page):
    """Return the cells of the lines of a page's tables, by what stands first in them."""
    lines = re.findall(r"<tr>(<th scope=\"row\">.*?)</tr>", page, re.DOTALL)
    cells = [[re.sub("<.*?>", "", entry) for entry in re.findall(r"<t[hd].*?</t[hd]>", line)] for line in lines]
    return {entry[0]: entry[1:] for entry in reversed(cells)}


def test_the_progress_page_shows_the_counts_of_the_files(tmp_path):
    folder = extracted(tmp_path, ["Um texto."], ["Dois.", "Três."])
    done = (folder / "stage.json").read_text()
    (folder / "stage.json").unlink()
    page = ProgressPage(tmp_path, STAGES, update_s=0.02)
    with page:
        page.store_update("extract", 1, 4)
        page.store_update("extract", 2, 4)
        (folder / "counts-00002.json").write_text(json.dumps({"kept": 5, "dropped": {"empty": 2}, "sha256": []}))

        def followed():
            result = (tmp_path / PAGE).read_text() if (tmp_path / PAGE).exists() else ""
            return result if "empty" in result and "2 of 4 parts" in result else ""

        result = wait_for(followed)
        assert rows_of(result)["extract"][:3] == ["running", "8", "2"]
        assert rows_of(result)["clean"] == ["waiting", "n/a", "n/a", "n/a"]
        (folder / "counts-00002.json").unlink()
        (folder / "stage.json").write_text(done)
    result = (tmp_path / PAGE).read_text()
    assert "finished; " in result
    assert rows_of(result)["extract"][0].startswith("done")
    assert "refresh" not in result


def test_the_progress_page_shows_the_error(tmp_path):
    with pytest.raises(DataError), ProgressPage(tmp_path, STAGES):
        raise DataError("part-00000.parquet is damaged", code="data.empty")
    assert "stopped: part-00000.parquet is damaged" in (tmp_path / PAGE).read_text()


def test_an_unwritable_page_does_not_stop_the_corpus(tmp_path, caplog):
    (tmp_path / PAGE).mkdir()
    with caplog.at_level(logging.WARNING, "paratune"), ProgressPage(tmp_path, STAGES, update_s=0.01):
        threading.Event().wait(0.1)
    check_logged(caplog, "corpus.page_not_written", "progress.html")


def test_the_report_is_deterministic(tmp_path):
    extracted(tmp_path, [f"Um texto com o número {number}." for number in range(30)])
    run_store(Corpus.model_validate({"work": str(tmp_path), "clean": {"skip": STEPS}}), 1, Display(speaks=False))
    write_report(tmp_path)
    before = (tmp_path / "report.html").read_bytes()
    assert b"Um texto com o" in before
    assert b"30 documents, 180 words from 1 host." in before
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before
