import os
from pathlib import Path

import pytest
from corpus_files import HEART, docx_of
from patience import PATIENCE_S
from raised import raises_code

from paratune.corpus.extract import process
from paratune.corpus.extract.process import DocumentReader, ExtractedText, NoText
from paratune.corpus.settings import Extract

CHILD = Path(__file__).parents[3] / "hostile_child.py"
LIMITS = Extract(min_characters=1, time_s=1, memory_mib=128)
MIB = 2**20


@pytest.fixture
def hostile(monkeypatch):
    """Read documents in a process in which some do harm; the clock leaves it all the time that a machine may need."""
    monkeypatch.setattr(process, "COMMAND", (str(CHILD),))
    monkeypatch.setattr(process, "CLOCK_FACTOR", PATIENCE_S)
    monkeypatch.setattr(process, "KILLED_WAIT_S", 0.0)
    monkeypatch.setattr(process, "KILLED_TRIES", 3)
    with DocumentReader(LIMITS) as reader:
        yield reader


@pytest.mark.parametrize(
    ("url", "reason", "detail"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("exit", "crashed", "exit code 1: the library gave up"),
        ("garbage", "crashed", "cannot be read"),
        ("lie", "crashed", "cannot be read"),
        ("surrogate", "crashed", "cannot be read"),
    ],
)
def test_a_document_that_ends_its_process_is_dropped_and_the_next_is_read(hostile, url, reason, detail):
    result = hostile.read(b"ok", url)
    assert isinstance(result, NoText)
    assert result.reason == reason
    assert detail in result.detail
    assert hostile.read(b"ok", "good").text == "ok"


@pytest.mark.parametrize("url", ["sleep", "half"])  # no answer; the first byte of an answer
def test_a_document_that_takes_too_long_by_the_clock_is_dropped(hostile, monkeypatch, url):
    with monkeypatch.context() as hurried:
        hurried.setattr(process, "CLOCK_FACTOR", 2)
        result = hostile.read(b"ok", url)
    assert result.reason == "time"
    assert "2 s" in result.detail
    assert hostile.read(b"ok", "good").text == "ok"


def test_messages_of_libraries_are_sanitised(hostile):
    result = hostile.read(b"ok", "say")
    assert result.detail == "\\ud800\\x1b[31m" + "a" * 486  # 500 characters: 6 and 8 before
    assert result.reason == "unreadable"


def test_a_process_is_used_for_many_documents(hostile, monkeypatch):
    started = []
    start = process._Process.__init__
    monkeypatch.setattr(process._Process, "__init__", lambda self, *more: (started.append(1), start(self, *more))[1])
    assert {hostile.read(b"ok", "good").text for _ in range(50)} == {"ok"}
    assert len(started) == 1


def test_a_document_whose_process_others_kill_is_read_again(hostile, tmp_path):
    assert hostile.read(b"ok", f"once {tmp_path / 'once'}").text == "ok"
    result = hostile.read(b"ok", f"killed {tmp_path / 'killed'}")
    assert (result.reason, result.detail) == ("killed", "SIGKILL")
    assert (tmp_path / "killed").read_text() == "xxx"


@pytest.mark.parametrize(("num_kills", "how"), [(2, "SIGKILL"), (2, "SIGTERM"), (3, "SIGKILL"), (3, "SIGTERM")])
def test_a_process_that_others_kill_at_its_start_is_started_again(hostile, monkeypatch, tmp_path, num_kills, how):
    starts = tmp_path / "starts"
    count = f"open({str(starts)!r}, 'a').write('x')"
    kill = f"len(open({str(starts)!r}).read()) > {num_kills} or os.kill(os.getpid(), signal.{how})"
    run = f"import os, runpy, signal; {count}; {kill}; runpy.run_path({str(CHILD)!r}, run_name='__main__')"
    monkeypatch.setattr(process, "COMMAND", ("-c", run))
    result = hostile.read(b"ok", "good")
    if num_kills == 2:  # of three tries
        assert result.text == "ok"
    else:
        assert (result.reason, result.detail) == ("killed", how)
    assert starts.read_text() == "xxx"
    assert hostile.read(b"ok", "good").text == "ok"


def test_memory_is_limited_by_the_settings(hostile):
    # The limit is 128 MiB beyond what the process has; an allocation needs a few pages more than its size.
    for mib, fits in ((1, True), (120, True), (140, False), (1 << 20, False)):
        result = hostile.read(str(mib * MIB).encode(), "hoard")
        assert isinstance(result, ExtractedText) == fits
        if not fits:
            assert result.reason == "memory"
    assert hostile.read(b"ok", "good").text == "ok"


def test_memory_of_a_document_does_not_count_for_the_next(hostile, monkeypatch):
    # One that takes more than half of the memory is read by a new process, and so is the one after it.
    ends = []
    end = process._Process.end
    monkeypatch.setattr(process._Process, "end", lambda self: (ends.append(1), end(self))[1])
    hostile.read(b"ok", "good")
    assert hostile.read(str(100 * MIB).encode(), "hoard").text == str(100 * MIB)
    assert len(ends) == 2
    hostile.read(b"ok", "good")
    assert len(ends) == 2


def test_no_process_is_left_behind(hostile):
    hostile.read(b"ok", "good")
    pid = hostile._process._process.pid
    hostile.__exit__()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(process, "COMMAND", ("-c", "raise SystemExit('no library')"))
    with DocumentReader(LIMITS) as reader, raises_code("launch.not_started", "library"):
        reader.read(b"ok", "good")


def test_a_limit_of_the_machine_below_that_of_documents_is_an_error(monkeypatch):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2)"
    run = f"{limited}; from paratune.corpus.extract.child import main; main()"
    monkeypatch.setattr(process, "COMMAND", ("-P", "-c", run))
    with (
        DocumentReader(Extract(memory_mib=601)) as reader,
        raises_code("launch.not_started", "601", key="extract.memory_mib") as raised,
    ):
        reader.read(b"ok", "good")
    facts = raised.value.facts
    assert facts["start_mib"] + facts["left_mib"] in (599, 600)  # both are rounded down


def test_an_answer_that_is_too_long_is_no_answer(hostile):
    hostile._max_answer_bytes = 1000
    assert "cannot be read" in hostile.read(b"a" * 1000, "good").detail


# Against the real libraries.


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(process, "CLOCK_FACTOR", PATIENCE_S)
    with DocumentReader(Extract(min_characters=1, time_s=1, memory_mib=128)) as result:
        yield result


@pytest.mark.slow
def test_pages_that_take_forever_end_by_time(reader):
    # libxml2 compares each attribute with all before it: 200,000 of them are 2 * 10^10 comparisons.
    attributes = " ".join(f"a{number}" for number in range(200_000))
    result = reader.read(f"<html><body {attributes}><p>{HEART}".encode(), "page")
    assert result.reason == "time"
    assert "1 s" in result.detail
    assert reader.read(f"<html><body><p>{HEART}".encode(), "next").text == HEART


def test_a_bomb_of_a_word_file_ends_by_memory():
    # 90 MB of text in 90 kB: below what kreuzberg itself refuses, and above the limit.
    bomb = docx_of(b"<w:p><w:r><w:t>" + b"a " * 500_000 + b"</w:t></w:r></w:p>" for _ in range(90))
    assert len(bomb) < 100_000
    with DocumentReader(Extract(min_characters=1, time_s=100, memory_mib=128)) as reader:
        assert reader.read(bomb, "bomb").reason == "memory"
        assert reader.read(f"<html><body><p>{HEART}".encode(), "next").text == HEART
