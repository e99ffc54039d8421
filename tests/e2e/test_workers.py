"""Worker processes that make batches: the run is the one without them, and none of them stays behind."""

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

TRAIN = ("train", "c.yaml", "--set", "train.epochs=1")
LONG = ("train", "c.yaml", "--set", "train.epochs=20000", "--set", "evaluate={every: never, best: null}")
NEXT = "paratune.train.memory:StepBatches.__next__"
"""Where a batch is waited for."""


def with_workers(number: int) -> tuple[str, str]:
    return "--set", f"data.num_workers={number}"


def named(name: str) -> tuple[str, str]:
    return "--set", f"run.name={name}"


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the processes that the server forks; the server itself is a child of the run."""
    return [one for one in below(pid) if one.ppid() != pid]


@pytest.fixture
def alone(cli: Cli, world: Path) -> dict[str, Any]:
    """The outcome without workers."""
    assert cli(*TRAIN, *named("alone")).code == EXIT_OK
    return outcome(world / "runs" / "alone")


@pytest.mark.parametrize("number", [SIGTERM, *(pytest.param(one, marks=pytest.mark.slow) for one in (SIGINT, SIGUSR1))])
def test_a_signal_to_all_processes_saves_and_another_number_of_workers_goes_on(
    number: Any, cli: Cli, world: Path, alone: dict[str, Any]
):
    """Batch systems, and a terminal on Ctrl-C, send it to each process."""
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


def test_nothing_stays_behind_when_the_run_is_killed(cli: Cli, world: Path):
    running = cli.start(*LONG, *with_workers(2))
    wait_for(lambda: steps_of(world / "runs" / "c") if (world / "runs" / "c" / "run.json").exists() else None)
    started = below(running.pid)
    assert len(workers_of(running.pid)) == 2
    running.send(SIGKILL)
    assert running.wait().code == -SIGKILL
    assert psutil.wait_procs(started, PATIENCE_S)[1] == []


def test_a_worker_that_is_killed_ends_the_run_and_is_named(cli: Cli, world: Path):
    running = cli.start(*LONG, *with_workers(2))
    wait_for(lambda: steps_of(world / "runs" / "c") if (world / "runs" / "c" / "run.json").exists() else None)
    started, (_, second) = below(running.pid), workers_of(running.pid)
    second.kill()
    ended = running.wait()
    assert ended.code == EXIT_LAUNCH, ended.stderr
    said = " ".join(ended.stderr.split())
    assert f"of 2 (process {second.pid}) was killed by SIGKILL" in said
    assert "--resume" in said
    assert "data.num_workers" in said
    assert "Traceback" not in said
    assert psutil.wait_procs(started, PATIENCE_S)[1] == []


@pytest.mark.slow
def test_memory_that_runs_out_drops_what_was_made_ahead(cli: Cli, world: Path):
    full = ("--set", "strategy={kind: 'outside:FullAlone', options: {most: 4, first: 3}}")
    exact = ("--set", "precision=fp64", "--set", "evaluate.batch_size=2")
    for workers in (0, 2):
        result = cli(*TRAIN, *full, *exact, *named(f"w{workers}"), *with_workers(workers))
        assert result.code == EXIT_OK, result.stderr
        assert "going on with 4 x 4" in " ".join(result.stderr.split())
    assert outcome(world / "runs" / "w0") == outcome(world / "runs" / "w2")


@pytest.mark.slow
def test_ranks_with_workers_are_the_ranks_without(cli: Cli, world: Path):
    for workers in (0, 2):
        options = ("--nproc", 2, "--set", "strategy=ddp", *named(f"w{workers}"), *with_workers(workers))
        result = cli(*TRAIN, *options)
        assert result.code == EXIT_OK, result.stderr
    assert outcome(world / "runs" / "w0") == outcome(world / "runs" / "w2")
