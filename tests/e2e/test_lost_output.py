"""A run saves or continues after it loses its terminal or reader; a command reports a result that it cannot write."""

import errno
import fcntl
import os
import pty
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_for

from paratune.errors import EXIT_FAILED, EXIT_OK, EXIT_STOPPED

pytestmark = pytest.mark.slow  # each test starts several processes

PARATUNE = (sys.executable, "-P", "-m", "paratune")
TRAIN = ("train", "c.yaml")


def environment(world: Path) -> dict[str, str]:
    return {**os.environ, "PARATUNE_CACHE": str(world / "cache"), "OMP_NUM_THREADS": "1"}


def begin_session(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.mark.usefixtures("default_sighup")
def test_a_lost_terminal_saves_a_checkpoint(world: Path):
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*PARATUNE, *TRAIN, "--set", "train.epochs=200"],
        cwd=world,
        env=environment(world),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=lambda: begin_session(0),
    )
    os.close(terminal)
    events = world / "runs" / "c" / "events.rank0000.jsonl"
    wait_for(lambda: drain(controller) and events.exists() and b'"event": "step"' in events.read_bytes())
    os.close(controller)  # as sshd does when the connection is lost: SIGHUP, and EIO for processes that write
    assert process.wait(PATIENCE_S) == EXIT_STOPPED
    assert list((world / "runs" / "c" / "checkpoints").glob("step_*"))


def drain(terminal: int) -> bool:
    """Read the available output, so that the process does not wait for a reader."""
    os.set_blocking(terminal, False)
    with suppress(BlockingIOError):
        while os.read(terminal, 65536):
            pass
    return True


@pytest.mark.slow
@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("nohup", [False, True])
def test_nohup_is_respected(world: Path, nohup: bool):
    # The run sends the signal to itself in the first step.
    code = (
        "import os, signal, sys; from paratune.engine import loop; from paratune.cli import main; step = loop._step\n"
        "def hang_up(*arguments):\n    os.kill(os.getpid(), signal.SIGHUP)\n    step(*arguments)\n"
        f"loop._step = hang_up; sys.argv = ['paratune', *{list(TRAIN)!r}]; main()"
    )
    command = [*(["nohup"] if nohup else []), sys.executable, "-c", code]
    result = subprocess.run(command, cwd=world, env=environment(world), capture_output=True, timeout=PATIENCE_S)
    assert result.returncode == (EXIT_OK if nohup else EXIT_STOPPED), result.stderr.decode()


@pytest.mark.slow
def test_training_continues_after_its_reader_exits(world: Path):
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [*PARATUNE, *TRAIN], cwd=world, env=environment(world), stdout=writing, stderr=writing, timeout=PATIENCE_S
    )
    os.close(writing)
    assert result.returncode == EXIT_OK
    assert (world / "runs" / "c" / "summary.json").exists()


def test_a_result_that_cannot_be_written_is_an_error(world: Path):
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PARATUNE, "config", "show", "c.yaml", "--json"],
            cwd=world,
            env=environment(world),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
    assert result.returncode == EXIT_FAILED
    assert os.strerror(errno.ENOSPC) in result.stderr
    assert "Traceback" not in result.stderr
