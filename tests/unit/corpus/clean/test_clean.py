import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_documents import STOP_AFTER_TWO_SHARDS, content, extracted, kept
from patience import wait_for
from raised import raises_code

from paratune.console import Display
from paratune.corpus.clean.run import output_folder, run_clean
from paratune.corpus.settings import Clean, Corpus, Language

DISPLAY = Display(speaks=False)
PORTUGUESE = "A cidade acordou com chuva e as escolas ficaram fechadas durante a manhã de ontem, dia {}."
ENGLISH = "The schools of the city stayed closed on the morning of yesterday because of the rain, day {}."


def texts(num_shards=3, num_texts=4):
    return [
        [(ENGLISH if number % 4 == 3 else PORTUGUESE).format(10 * shard + number) for number in range(num_texts)]
        for shard in range(num_shards)
    ]


OFF = ["lines", "variety", "quality", "duplicates", "decontaminate"]


def make_corpus(work, **options):
    """Return settings with two steps, language and personal, unless others are given."""
    return Corpus(work=str(work), clean=Clean(**{"skip": OFF} | options))


def test_the_chain_keeps_the_rows_of_its_last_step(tmp_path):
    extracted(tmp_path, *texts())
    corpus = make_corpus(tmp_path)
    totals = run_clean(corpus, 1, DISPLAY)
    assert (totals["shards"], totals["kept"], totals["dropped"]["language"]) == (3, 9, 3)
    assert totals["folder"] == output_folder(corpus).relative_to(tmp_path).as_posix()
    assert totals["output"] == json.loads((output_folder(corpus) / "stage.json").read_text())["output"]
    assert [len(shard) for shard in kept(output_folder(corpus))] == [3, 3, 3]


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_files(tmp_path):
    for workers in (1, 2):
        extracted(tmp_path / str(workers), *texts())
        run_clean(make_corpus(tmp_path / str(workers)), workers, DISPLAY)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_a_step_that_is_skipped_takes_no_part(tmp_path):
    extracted(tmp_path, *texts())
    run_clean(make_corpus(tmp_path), 1, DISPLAY)
    (language,) = (tmp_path / "4_clean").glob("*_language")
    without = make_corpus(tmp_path, skip=[*OFF, "language"])
    totals = run_clean(without, 1, DISPLAY)
    assert "language" not in totals["steps"]
    assert totals["kept"] == 12
    assert not language.exists()


def test_without_any_step_the_documents_are_those_of_the_extraction(tmp_path):
    extracted(tmp_path, *texts())
    corpus = make_corpus(tmp_path, skip=[*OFF, "language", "personal"])
    assert output_folder(corpus) == tmp_path / "3_extract"
    assert run_clean(corpus, 1, DISPLAY)["kept"] == 12


def test_a_changed_setting_repeats_its_step_and_later_ones(tmp_path):
    extracted(tmp_path, *texts())
    run_clean(make_corpus(tmp_path), 1, DISPLAY)
    first = content(tmp_path)
    run_clean(make_corpus(tmp_path), 1, DISPLAY)
    assert content(tmp_path) == first
    totals = run_clean(make_corpus(tmp_path, language=Language(keep=["pt", "en"])), 1, DISPLAY)
    assert totals["kept"] == 12


def test_documents_must_have_been_extracted(tmp_path):
    with raises_code("corpus.not_finished", name="extract"):
        run_clean(make_corpus(tmp_path), 1, DISPLAY)


def test_a_folder_with_other_files_is_not_changed(tmp_path):
    extracted(tmp_path, *texts())
    (tmp_path / "4_clean").mkdir()
    (tmp_path / "4_clean" / "thesis.txt").write_text("x")
    with raises_code("output.foreign"):
        run_clean(make_corpus(tmp_path), 1, DISPLAY)


KILLED = """
import sys
from pathlib import Path
from paratune.console import Display
from paratune.corpus.clean.run import run_clean
from paratune.corpus.settings import Clean
from paratune.corpus.settings import Corpus
if __name__ == "__main__":
    run_clean(Corpus(work=sys.argv[1], clean=Clean(skip=sys.argv[2:])), 2, Display(speaks=False))
"""


def test_a_killed_chain_resumes_with_the_same_result(tmp_path):
    shards = texts(12, 30)
    for name in ("whole", "killed"):
        extracted(tmp_path / name, *shards)
    run_clean(make_corpus(tmp_path / "whole"), 1, DISPLAY)
    script = tmp_path / "killed.py"
    script.write_text(STOP_AFTER_TWO_SHARDS + KILLED)
    process = subprocess.Popen([sys.executable, script, tmp_path / "killed", *OFF], start_new_session=True)
    wait_for(lambda: list((tmp_path / "killed" / "4_clean").glob("*/counts-*")))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "4_clean" / "stage.json").exists()
    run_clean(make_corpus(tmp_path / "killed"), 1, DISPLAY)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_the_settings_of_the_cleaning_are_checked(tmp_path):
    from paratune.corpus.settings import read_settings

    path = Path(tmp_path, "c.yaml")
    path.write_text("work: w\nindex:\n  files: [a]\nclean:\n  skip: [langage]\n  language: {min_score: 2}\n")
    with raises_code("config.invalid_value", "line 5: clean.skip", "langage", "line 6: clean.language.min_score is 2"):
        read_settings(path)
