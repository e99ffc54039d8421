"""Who speaks, where, and what a bar shows without a terminal."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from paratune import console
from paratune.console import Display, log_to_file, print_json, print_result, set_up_logging
from paratune.errors import coded

log = logging.getLogger("paratune.somewhere")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("paratune")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        if handler not in handlers:
            handler.close()
    logger.handlers[:] = handlers
    logger.level, logger.propagate = level, propagate
    logging.Logger.manager._clear_cache()


def test_rank_0_logs_to_stderr_and_stdout_stays_empty(capsys: pytest.CaptureFixture[str]):
    set_up_logging(speaks=True)
    log.info("<script> [bold]kept as it is[/bold] %s", 5)
    spoken = capsys.readouterr()
    assert spoken.out == ""
    assert "<script> [bold]kept as it is[/bold] 5" in spoken.err


def test_other_ranks_only_say_errors_with_their_rank(capsys: pytest.CaptureFixture[str]):
    set_up_logging(speaks=False, rank=3)
    log.info("not this")
    log.warning("nor this")
    log.error("but this")
    assert capsys.readouterr().err == "rank 3: but this\n"


def test_the_log_file_of_a_rank_has_messages_from_before_it_existed(tmp_path: Path):
    set_up_logging(speaks=False, rank=1)
    log.info("early")
    log_to_file(tmp_path, 1)
    log.info("late")
    lines = (tmp_path / "log.rank0001.txt").read_text("utf-8").splitlines()
    assert [line.split("paratune.somewhere: ")[1] for line in lines] == ["early", "late"]


def test_two_set_ups_of_logging_do_not_duplicate_lines(capsys: pytest.CaptureFixture[str]):
    set_up_logging(speaks=True)
    set_up_logging(speaks=True)
    log.info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_without_a_terminal_progress_is_logged_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    set_up_logging(speaks=True)
    with Display(speaks=True).bar("tokenize", 100) as bar:
        for done in range(1, 101):
            now[0] += 1.0
            bar.update(done, "note", total=200)
    lines = capsys.readouterr().err.splitlines()
    # Every 15 seconds, of 100: after more than 15, 31, 47, ...
    assert len(lines) == 6
    assert "tokenize 16/200 note" in lines[0]


def test_on_a_terminal_bars_are_shown_and_removed(monkeypatch: pytest.MonkeyPatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "_stderr", lambda: Console(file=screen, force_terminal=True, width=120))
    display = Display(speaks=True)
    with display.bar("[train]", 10) as outer:
        outer.update(3, "loss 0.5")
        with display.bar(
            "evaluate",
            4,
        ) as inner:
            inner.update(4)
        outer.update(10)
        display._progress.refresh()
    text = screen.getvalue()
    assert "[train]" in text
    assert "loss 0.5" in text
    assert display._num_open == 0


def test_a_rank_that_does_not_speak_has_no_bar(monkeypatch: pytest.MonkeyPatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "_stderr", lambda: Console(file=screen, force_terminal=True))
    with Display(speaks=False).bar("train", 10) as bar:
        bar.update(5)
    assert screen.getvalue() == ""


def test_results_go_to_stdout(capsys: pytest.CaptureFixture[str]):
    print_result("a table")
    assert capsys.readouterr().out == "a table\n"


def test_logged_text_has_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    set_up_logging(speaks=True)
    log_to_file(tmp_path, 0)
    log.info("column %s\nand more", "\x1b[2J")
    shown, logged = capsys.readouterr().err, (tmp_path / "log.rank0000.txt").read_text("utf-8")
    for text in (shown, logged):
        assert "column \\x1b[2J\nand more" in text


def test_a_log_on_a_terminal_does_not_act_either(monkeypatch: pytest.MonkeyPatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "_stderr", lambda: Console(file=screen, force_terminal=True, width=120))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    set_up_logging(speaks=True)
    log.info("column %s", "\x9b2J\x1b]0;title")
    assert r"column \x9b2J\x1b" in screen.getvalue()
    assert "\x1b]0" not in screen.getvalue()
    assert "\x9b" not in screen.getvalue()


def test_json_holds_no_number_that_json_has_not(capsys: pytest.CaptureFixture[str]):
    print_json({"f1": float("nan"), "loss": [1.5, float("inf")], "name": "\x9b2J \ud800 ol\u00e1"})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=refuse) == {
        "f1": None,
        "loss": [1.5, None],
        "name": "\x9b2J \ud800 ol\u00e1",
    }
    assert text.isascii()


def test_json_holds_the_warnings_that_were_logged(capsys: pytest.CaptureFixture[str]):
    set_up_logging(speaks=True)
    log.warning("%d rows are left out", 3, extra=coded("data.empty", num_rows=3))
    print_json({"f1": 0.5})
    print_json([1])
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    fault = {"code": "data.empty", "message": "3 rows are left out", "facts": {"num_rows": 3}}
    assert json.loads(first) == {"warnings": [fault], "f1": 0.5}
    assert json.loads(second) == [1]
    assert captured.err.endswith("3 rows are left out  [data.empty]\n")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_bar_keeps_its_figures_in_a_narrow_terminal(width: int):
    out = io.StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    progress = console._progress(terminal)
    bar = console.Bar("run", 2000, progress)
    bar.update(16, "loss 0.4321  1234 samples/s per rank  epoch 1.00")
    bar.update(17)
    terminal.print(progress.make_tasks_table(progress.tasks))

    (line,) = [line for line in out.getvalue().splitlines() if "run" in line]
    assert len(line) <= width
    for figure in ("17/2000", "0:00:00", "loss 0.4321"):
        assert figure in line
    assert ("samples/s per rank" in line) == (width >= 80)
    assert ("epoch 1.00" in line) == (width >= 100)


def test_the_bars_of_a_run_and_its_evaluation_fit_80_columns(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    terminal = Console(file=out, width=80, force_terminal=True, color_system=None)
    progress = console._progress(terminal)
    now = [0.0]
    monkeypatch.setattr(progress, "get_time", lambda: now[0])
    bars = [console.Bar("imdb-ddp", 13_005, progress), console.Bar("evaluate validation", 70, progress)]
    now[0] = 36_000.0
    bars[0].update(11_000, "loss 0.4321  12 samples/s  epoch 1.00")
    now[0] = 36_100.0
    bars[0].update(11_005)
    terminal.print(progress.make_tasks_table(progress.tasks))
    line, evaluation = (line.rstrip() for line in out.getvalue().splitlines() if "/" in line)
    assert max(len(line), len(evaluation)) <= 80
    # 5 steps in 100 s, and 2000 left.
    for figure in ("11005/13005", "10:01:40", "11:06:40 left", "loss 0.4321"):
        assert figure in line
    assert "0/70" in evaluation


def test_output_of_libraries_goes_to_stderr(capsys: pytest.CaptureFixture[str]):
    with console.stdout_for_results():
        sys.stdout.write("a library speaks\n")
    sys.stdout.write("result\n")
    assert tuple(capsys.readouterr()) == ("result\n", "a library speaks\n")


def test_deepspeed_does_not_warn_about_a_missing_gpu(caplog):
    set_up_logging(speaks=True)
    logger = logging.getLogger("DeepSpeed")
    with caplog.at_level(logging.INFO, logger="DeepSpeed"):
        logger.handle(logging.LogRecord("DeepSpeed", 30, "x/real_accelerator.py", 213, "no GPU", (), None))
        logger.handle(logging.LogRecord("DeepSpeed", 30, "x/engine.py", 1, "something else", (), None))
    assert caplog.messages == ["something else"]
