"""Runs of two processes that hang, for eight reasons: the right rank, the right cause, evidence, an exit code.

The time limit without progress is a few seconds here; the run must end within 90 s of the fault. Each case starts new
interpreters.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S

from paratune.errors import EXIT_CHECKPOINT, EXIT_HUNG, EXIT_LAUNCH, EXIT_OK
from paratune.records import is_finished, read_json

pytestmark = pytest.mark.slow
SOON_S = 90
OPTIONS = (
    *("--set", "strategy={kind: 'faults:Faulty'}", "--set", "run.hang_timeout_s=6"),
    *("--set", "evaluate.every=never", "--set", "evaluate.best=null"),
)
TRAIN = (sys.executable, "-m", "paratune", "train", "c.yaml", "--nproc", "2", *OPTIONS)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(world: Path) -> Iterator[Run]:
    """Train with a fault, and kill remaining processes."""

    def start(fault: str, *more: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PARATUNE_CACHE": str(world / "cache"), "FAULT": fault}
        completed = subprocess.run(
            [*before, *TRAIN, *more],
            cwd=world,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if completed.returncode and (world / "fault").exists():
            assert time.time() - (world / "fault").stat().st_mtime < SOON_S
        return completed

    yield start
    for left in psutil.process_iter(["cwd"]):
        if left.info["cwd"] == str(world):
            left.kill()


def evidence(world: Path) -> dict[str, object]:
    folder = world / "runs" / "c" / "hang"
    for rank in (0, 1):
        assert "Thread" in (folder / f"stacks.rank{rank:04d}.txt").read_text()
    return read_json(folder / "hang.json")


@pytest.mark.parametrize(
    ("fault", "cause", "message"),
    [
        ("loader:1", "loader", "for rank 1, which has been at step 4, get_batch"),
        ("disk:0", "checkpoint", "for rank 0, which has been at writing a checkpoint"),
    ],
)
def test_a_missing_rank_is_named_with_its_phase(run, world, fault, cause, message):
    completed = run(fault)
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr
    result = evidence(world)
    assert (result["cause"], result["missing_ranks"]) == (cause, [int(fault[-1])])
    waits = result["ranks"][1 - int(fault[-1])]["collectives"][-1]
    assert waits["name"].startswith("gloo:")
    assert not waits["is_done"]
    assert not list((world / "runs").glob(".heartbeat"))


def test_a_stopped_rank_is_distinguished_from_a_slow_one(run, world):
    completed = run("sigstop:1")
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert "rank 1 (process" in completed.stderr
    assert "is stopped (SIGSTOP" in completed.stderr
    assert "kill -CONT" in completed.stderr
    result = read_json(world / "runs" / "c" / "hang" / "hang.json")
    assert (result["cause"], result["missing_ranks"]) == ("stopped", [1])
    assert (world / "runs" / "c" / "hang" / "stacks.rank0000.txt").exists()


def test_a_stopped_rank_0_is_named(run, world):
    completed = run("sigstop:0")
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert "rank 0 (process" in completed.stderr
    assert read_json(world / "runs" / "c" / "hang" / "hang.json")["missing_ranks"] == [0]


def test_a_rank_blocked_in_native_code_is_named(run, world):
    completed = run("native:1")
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert "in native code" in completed.stderr


def test_a_tokenization_that_hangs_while_the_other_rank_waits(run, world):
    completed = run("tokenize:1")
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert "tokenizing, or reading the files, makes no progress" in completed.stderr
    result = read_json(world / "runs" / "c.hang" / "hang.json")
    assert (result["cause"], result["missing_ranks"]) == ("tokenizing", [1])


def test_a_lost_network_is_named(run, world):
    inside = ("unshare", "-n", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a separate network namespace needs root")
    completed = run("network:1", before=inside)
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert "all ranks are in " in completed.stderr
    assert "lo on" in completed.stderr
    result = evidence(world)
    assert (result["cause"], result["missing_ranks"]) == ("network", [])


def test_ranks_in_different_collectives(run, world):
    completed = run("mismatch:1")
    assert completed.returncode == EXIT_HUNG, completed.stderr
    assert "rank 1 is in gloo:all_gather of [7]" in completed.stderr
    assert "rank 0 is in gloo:all_reduce of [" in completed.stderr
    result = evidence(world)
    assert (result["cause"], result["missing_ranks"]) == ("mismatch", [1])


def test_uneven_batches(run, world):
    # gloo itself detects different sizes, and aborts the rank.
    completed = run("uneven:1")
    assert completed.returncode == EXIT_LAUNCH, completed.stderr
    assert "rank 1 of 2 was killed by SIGABRT" in completed.stderr
    assert "Is there a distributed collective mismatch in your code?" in completed.stderr


def test_a_rank_that_exits_is_named_at_once(run, world):
    completed = run("exit:1")
    assert completed.returncode == 17, completed.stderr
    assert "rank 1 of 2 ended with exit code 17" in completed.stderr
    assert not (world / "runs" / "c" / "hang").exists()


def test_a_full_disk_is_not_a_hang(run, world):
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    inside = (
        "unshare",
        "-m",
        "--",
        "sh",
        "-c",
        'mkdir runs && mount -t tmpfs -o size=300k tmpfs runs && exec "$@"',
        "sh",
    )
    completed = run("none:-1", before=inside)
    assert completed.returncode == EXIT_CHECKPOINT, completed.stderr
    assert "the disk is full" in completed.stderr


def test_a_slow_healthy_run_is_not_stopped(run, world):
    # Each batch of rank 1 takes 2 s; 12 batches take longer than the allowed 20 s without progress.
    completed = run(
        "slow:1", "--set", "run.hang_timeout_s=20", "--set", "train.epochs=null", "--set", "train.max_steps=12"
    )
    assert completed.returncode == EXIT_OK, completed.stderr
    assert is_finished(world / "runs" / "c")
    assert not list((world / "runs").glob(".heartbeat*"))
    assert not (world / "runs" / "c" / "hang").exists()
