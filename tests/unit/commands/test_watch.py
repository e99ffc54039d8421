"""`paratune watch`: one view without a terminal, a live one in a terminal, and how it ends."""

import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from patience import PATIENCE_S
from raised import raises_code
from watched import event, finish, held, log, step, training

from paratune.commands.watch import watch as run_watch
from paratune.errors import EXIT_OK

# What a shell starts in the background ignores SIGINT, and so does all that it starts.
CODE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from paratune.cli import main; main()"


def watch(*paths: Path, once: bool = True, as_json: bool = False) -> None:
    run_watch(*paths, once=once, json=as_json)


def fresh(folder: Path) -> Path:
    training(folder)
    log(folder, step(11, time=time.time()))
    return folder


def test_once_prints_one_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with held(fresh(tmp_path / "r")):
        watch(tmp_path)
    assert "step 11 of 100 (11.0%)" in capsys.readouterr().out


def test_without_a_terminal_watch_prints_one_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with held(fresh(tmp_path / "r")):
        watch(tmp_path / "r", once=False)
    out = capsys.readouterr().out
    assert "training" in out
    assert "\x1b" not in out


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    finish(tmp_path / "done")
    with held(fresh(tmp_path / "r")):
        watch(tmp_path, as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["runs"][0]["state"], result["others"]) == ("training", {"finished": 1})


def test_without_paths_it_looks_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    with raises_code("run.not_found"):
        watch()
    finish(tmp_path / "runs" / "a")
    watch()
    assert "1 finished" in capsys.readouterr().out


def test_bad_input_is_named(tmp_path: Path):
    with raises_code("run.not_found", "nowhere"):
        watch(tmp_path / "nowhere")


class Terminal:
    """`paratune watch` in a terminal of its own."""

    def __init__(self, *arguments: str, kind: str = "xterm-256color") -> None:
        self._end, inside = pty.openpty()
        self.resize(100, 40)
        words = [sys.executable, "-c", CODE, "watch", *arguments]
        environment = {**os.environ, "TERM": kind, "COLUMNS": "", "LINES": ""}
        del environment["COLUMNS"], environment["LINES"]
        self.process = subprocess.Popen(
            words, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
        )
        os.close(inside)
        self.text = ""

    def resize(self, width: int, height: int) -> None:
        ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + timeout_s
        while words not in self.text:
            assert time.monotonic() < end, self.text[-2000:]
            self.read(0.2)

    def read(self, seconds: float) -> bool:
        """Take in a piece of what it prints (a terminal gives no more at once); return whether there was any."""
        if not select.select([self._end], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # the other side is closed
            time.sleep(0.05)
            return False
        self.text += piece.decode("utf-8", "replace")
        return bool(piece)

    def end(self) -> int:
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.2)  # a full terminal would hold it up
        code = self.process.wait(1)
        while self.read(0.5):
            pass
        os.close(self._end)
        return code


def test_a_terminal_that_cannot_move_its_cursor_gets_one_view(tmp_path: Path):
    with held(fresh(tmp_path / "r")):
        terminal = Terminal(str(tmp_path / "r"), kind="dumb")
        assert terminal.end() == EXIT_OK
    assert "step 11 of 100" in terminal.text
    assert "\x1b" not in terminal.text


LEAVES_THE_SCREEN = "\x1b[?1049l"


def test_the_live_view_follows_a_run_to_its_end(tmp_path: Path):
    folder = fresh(tmp_path / "r")
    with held(folder):
        terminal = Terminal(str(folder))
        terminal.wait_for("step 11 of 100")
        log(folder, step(12, time=time.time()), event("begin", doing="evaluating", time=time.time()))
        terminal.wait_for("step 12 of 100")
        terminal.wait_for("evaluating")
        finish(folder)
    assert terminal.end() == EXIT_OK
    # The last view stays on the terminal itself.
    after = terminal.text.rpartition(LEAVES_THE_SCREEN)[2]
    assert "finished" in after
    assert "accuracy 0.9" in after


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, EXIT_OK), (signal.SIGTERM, 143)])
def test_a_signal_ends_watch_and_restores_the_screen(tmp_path: Path, number: int, code: int):
    terminal = Terminal(str(tmp_path))
    terminal.wait_for("nothing is running")
    shutil.rmtree(tmp_path)  # a watched folder may vanish
    terminal.read(2.6)
    terminal.process.send_signal(number)
    assert terminal.end() == code
    assert LEAVES_THE_SCREEN in terminal.text
    assert "Traceback" not in terminal.text
