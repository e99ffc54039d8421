"""report.html of a corpus that is made here."""

from corpus_documents import extracted

from paratune.commands.corpus_run import write_report
from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.store import run_store

STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]


def test_the_report_is_deterministic(tmp_path):
    extracted(tmp_path, [f"Um texto com o número {number}." for number in range(30)])
    run_store(Corpus.model_validate({"work": str(tmp_path), "clean": {"skip": STEPS}}), 1, Display(speaks=False))
    write_report(tmp_path)
    before = (tmp_path / "report.html").read_bytes()
    assert b"Um texto com o" in before
    assert b"30 documents, 180 words from 1 host." in before
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before
