"""Worker processes that make batches: the run has the same result as without them, and none remains after the run."""

from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import psutil
import pytest
from harness import Cli
from hooks import SignalAt
from outcome import outcome, steps_of
from patience import PATIENCE_S, wait_for

from paratune.errors import EXIT_LAUNCH, EXIT_OK, EXIT_STOPPED
from paratune.records import read_json

pytestmark = pytest.mark.slow  # each test starts several processes

TRAIN = ("train", "c.yaml", "--set", "train.epochs=1")
LONG = ("train", "c.yaml", "--set", "train.epochs=20000", "--set", "evaluate={every: never, best: null}")
NEXT = "paratune.training.memory:StepBatches.__next__"
"""The function that waits for a batch."""


def with_workers(number: int) -> tuple[str, str]:
    return "--set", f"data.num_workers={number}"


def named(name: str) -> tuple[str, str]:
    return "--set", f"run.name={name}"


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the processes that the fork server starts; the server itself is a child of the run."""
    return [item for item in below(pid) if item.ppid() != pid]


@pytest.fixture
def alone(cli: Cli, world: Path) -> dict[str, Any]:
    """The outcome without workers."""
    assert cli(*TRAIN, *named("alone")).code == EXIT_OK
    return outcome(world / "runs" / "alone")


@pytest.mark.parametrize(
    "number", [SIGTERM, *(pytest.param(item, marks=pytest.mark.slow) for item in (SIGINT, SIGUSR1))]
)
def test_a_signal_saves_and_another_number_of_workers_resumes(
    number: Any, cli: Cli, world: Path, alone: dict[str, Any]
):
    """Batch systems, and a terminal on Ctrl-C, send the signal to each process."""
    stopped = cli(*TRAIN, *with_workers(2), hook=SignalAt(number, NEXT, 3, to_all=True))
    assert stopped.code == EXIT_STOPPED, stopped.stderr
    assert "after step 3; a checkpoint was saved" in stopped.stderr
    resumed = cli(*TRAIN, *with_workers(1), "--resume")
    assert resumed.code == EXIT_OK, resumed.stderr
    run = world / "runs" / "c"
    assert outcome(run) == alone
    sessions = [session["loader"] for session in read_json(run / "run.json")["sessions"]]
    assert sessions == [{"workers": 2}, {"workers": 1}]
    assert {text for text in (stopped.stderr, resumed.stderr) if "Traceback" in text or "leaked" in text} == set()


def test_no_process_remains_after_a_kill(cli: Cli, world: Path):
    running = cli.start(*LONG, *with_workers(2))
    wait_for(lambda: steps_of(world / "runs" / "c") if (world / "runs" / "c" / "run.json").exists() else None)
    started = below(running.pid)
    assert len(workers_of(running.pid)) == 2
    running.send(SIGKILL)
    assert running.wait().code == -SIGKILL
    assert psutil.wait_procs(started, PATIENCE_S)[1] == []


def test_a_killed_worker_ends_the_run_and_is_named(cli: Cli, world: Path):
    running = cli.start(*LONG, *with_workers(2))
    wait_for(lambda: steps_of(world / "runs" / "c") if (world / "runs" / "c" / "run.json").exists() else None)
    started, (_, second) = below(running.pid), workers_of(running.pid)
    second.kill()
    ended = running.wait()
    assert ended.code == EXIT_LAUNCH, ended.stderr
    output = " ".join(ended.stderr.split())
    assert f"of 2 (process {second.pid}) was killed by SIGKILL" in output
    assert "--resume" in output
    assert "data.num_workers" in output
    assert "Traceback" not in output
    assert psutil.wait_procs(started, PATIENCE_S)[1] == []


@pytest.mark.slow
def test_out_of_memory_drops_prepared_batches(cli: Cli, world: Path):
    full = ("--set", "strategy={kind: 'outside:FullAlone', options: {most: 4, first: 3}}")
    exact = ("--set", "precision=fp64", "--set", "evaluate.batch_size=2")
    for workers in (0, 2):
        result = cli(*TRAIN, *full, *exact, *named(f"w{workers}"), *with_workers(workers))
        assert result.code == EXIT_OK, result.stderr
        assert "continuing with 4 x 4" in " ".join(result.stderr.split())
    assert outcome(world / "runs" / "w0") == outcome(world / "runs" / "w2")


@pytest.mark.slow
def test_workers_do_not_change_the_result(cli: Cli, world: Path):
    for workers in (0, 2):
        options = ("--nproc", 2, "--set", "strategy=ddp", *named(f"w{workers}"), *with_workers(workers))
        result = cli(*TRAIN, *options)
        assert result.code == EXIT_OK, result.stderr
    assert outcome(world / "runs" / "w0") == outcome(world / "runs" / "w2")
