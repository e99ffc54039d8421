"""Commands one after the other, with small programs in place of paratune."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from patience import wait_for
from raised import raises_code

from paratune.processes.local import CommandRunner

SLOW = """
    import signal, sys, time
    from pathlib import Path
    def stop(number, frame):
        print("heard", signal.Signals(number).name)
        sys.exit(75)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(number, stop)
    Path("ready").write_text("")
    while True:  # in short sleeps: a signal that comes just before a sleep is handled after it
        time.sleep(0.02)
"""


def program(folder: Path, body: str) -> list[str]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(body))
    return [sys.executable, "-S", "-E", str(script)]


def test_its_output_is_added_to_the_file_and_its_exit_code_returned(tmp_path: Path):
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    body = "import sys\nprint('out', sys.argv[1], flush=True)\nprint('err', file=sys.stderr)\nsys.exit(7)"
    with CommandRunner(program(tmp_path, body)) as children:
        assert children.run(["x"], log) == 7
    assert log.read_text() == "before\nout x\nerr\n"
    assert children.signal is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_remembered(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(number)

    def send() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    with CommandRunner(program(tmp_path, SLOW)) as children:
        thread.start()
        assert children.run([], tmp_path / "log.txt") == 75
        assert children.signal == number.name
    thread.join()
    assert (tmp_path / "log.txt").read_text() == f"heard {number.name}\n"
    assert signal.getsignal(number) == before
    assert number.name in capfd.readouterr().err


def test_a_signal_when_the_reader_of_its_output_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # `paratune sweep M 2>&1 | tee log`: a Ctrl-C ends tee too.
    monkeypatch.chdir(tmp_path)

    def send() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    error_output = os.dup(2)
    read, write = os.pipe()
    os.close(read)
    try:
        with CommandRunner(program(tmp_path, SLOW)) as children:
            os.dup2(write, 2)
            thread.start()
            assert children.run([], tmp_path / "log.txt") == 75
            assert children.signal == "SIGINT"
    finally:
        os.dup2(error_output, 2)
        for descriptor in (write, error_output):
            os.close(descriptor)
        thread.join()


def test_a_killed_command_has_a_negative_code(tmp_path: Path):
    with CommandRunner(program(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")) as children:
        assert children.run([], tmp_path / "log.txt") == -signal.SIGKILL


def test_a_file_that_cannot_be_written(tmp_path: Path):
    with CommandRunner(program(tmp_path, "")) as children, raises_code("launch.not_started", "nowhere/log.txt"):
        children.run([], tmp_path / "nowhere" / "log.txt")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of the parent")
def test_it_is_asked_to_end_when_this_process_is_killed(tmp_path: Path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom paratune.processes.local import CommandRunner\n"
        "with CommandRunner(sys.argv[1:]) as children: children.run([], Path('log.txt'))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, *program(tmp_path, SLOW)], cwd=tmp_path)
    wait_for((tmp_path / "ready").exists)
    parent.kill()
    parent.wait()
    wait_for(lambda: "heard SIGTERM" in (tmp_path / "log.txt").read_text())


def test_variables_are_given_and_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("GONE", "no")
    show = "import os; print(os.environ.get('INHERITED'), os.environ.get('GONE'), os.environ.get('GIVEN'))"
    with CommandRunner(program(tmp_path, show)) as children:
        assert children.run([], tmp_path / "out", {"GONE": None, "GIVEN": "a b"}) == 0
    assert (tmp_path / "out").read_text() == "yes None a b\n"


def test_a_command_that_starts_after_the_end_is_ended(tmp_path: Path):
    # Another thread may be about to start one: `paratune sweep --parallel` would wait until it is trained.
    with CommandRunner(program(tmp_path, "import time\ntime.sleep(5)")) as children:
        children.end()
        assert children.run([], tmp_path / "log.txt") == -signal.SIGTERM
