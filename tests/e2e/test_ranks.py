"""Ranks that fail or differ, under --nproc and under torchrun with two agents: all exit soon, and the cause is named.

Each case starts new interpreters, which takes most of the time.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from outcome import outcome, steps_of
from own_strategy import KIND, write_module
from patience import PATIENCE_S, wait_for
from raised import check_shown

import paratune
from paratune.errors import EXIT_FAILED, EXIT_LAUNCH, EXIT_OK
from paratune.processes.place import RENDEZVOUS_VARIABLE
from paratune.records import read_json

TRAIN = ("-m", "paratune", "train", "c.yaml")
LONG = ("--set", "train.epochs=4000")


@dataclass
class RunningProcess:
    """A running process and its output."""

    process: subprocess.Popen[bytes]
    errors: Path

    def stderr(self) -> str:
        return self.errors.read_text("utf-8", "replace")

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)


StartProcess = Callable[..., RunningProcess]


@pytest.fixture
def start_process(world: Path) -> Iterator[StartProcess]:
    """Start python with arguments in the folder; remaining processes are killed at the end."""
    started: list[RunningProcess] = []

    def start(*arguments: object, environment: Mapping[str, str] | None = None) -> RunningProcess:
        errors = world / f"stderr{len(started)}.txt"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=world,
                env={**os.environ, "PARATUNE_CACHE": str(world / "cache"), **(environment or {})},
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
        started.append(RunningProcess(process, errors))
        return started[-1]

    yield start
    for entry in started:
        if entry.process.poll() is None:
            for child in psutil.Process(entry.process.pid).children(recursive=True):
                child.kill()
            entry.process.kill()
            entry.process.wait()


def has_reached(world: Path, step: int, *processes: RunningProcess) -> None:
    def reached() -> bool:
        assert all(entry.process.poll() is None for entry in processes), processes[0].stderr()
        run = world / "runs" / "c"
        return run.exists() and any(event["step"] >= step for event in steps_of(run))

    wait_for(reached)


STORES: list[dist.TCPStore] = []
"""Stores for the rendezvous of agents, opened here so that no other process can take their ports."""


def agents(start_process: StartProcess, *options: str) -> list[RunningProcess]:
    """Start torchrun twice, as on two nodes, with one process each; they connect over loopback."""
    STORES.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    arguments = (
        *("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-id", "two", "--rdzv-endpoint", f"127.0.0.1:{STORES[-1].port}"),
        *("--rdzv-conf", "is_host=false"),
        *TRAIN,
        *options,
    )
    return [start_process(*arguments, environment={"GLOO_SOCKET_IFNAME": "lo"}) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DamagedDDP", "DamagedZero3"])
def test_an_error_of_one_rank_ends_the_run_and_is_named(start_process: StartProcess, world: Path, kind: str):
    running = start_process(*TRAIN, "--nproc", "2", *LONG, "--set", f"strategy={{kind: 'outside:{kind}'}}")

    assert running.wait() == EXIT_FAILED, running.stderr()
    assert "rank 1 of 2 ended with exit code 1; the others were ended" in running.stderr()
    assert "ArithmeticError: row 17 is damaged" in running.stderr()
    own_words = running.stderr().partition("rank 1 of 2 ended")[0]
    assert "rank 0 of 2" in own_words
    assert "[launch.rank_lost]" in own_words
    assert "Traceback" not in own_words
    assert not (world / "runs" / "c" / "summary.json").exists()


@pytest.mark.slow
def test_a_killed_rank_of_sharded_weights_ends_the_run_and_is_named(start_process: StartProcess, world: Path):
    running = start_process(*TRAIN, "--nproc", "2", *LONG, "--set", "strategy=zero3")
    has_reached(world, 3, running)
    ranks = sorted(psutil.Process(running.process.pid).children(), key=lambda child: child.pid)
    ranks[1].send_signal(signal.SIGKILL)

    assert running.wait() == EXIT_LAUNCH, running.stderr()
    assert "rank 1 of 2 was killed by SIGKILL; the others are ended" in running.stderr()
    assert "Traceback" not in running.stderr()


@pytest.mark.slow
def test_two_torchrun_agents_give_the_result_of_two_processes(start_process: StartProcess, world: Path):
    assert start_process(*TRAIN, "--nproc", "2", "--set", "strategy=ddp", "--set", "run.name=two").wait() == EXIT_OK
    nodes = agents(start_process, "--set", "strategy=ddp")

    assert [node.wait() for node in nodes] == [EXIT_OK, EXIT_OK], nodes[0].stderr()
    # Bitwise equal: losses, norms, weights.
    assert outcome(world / "runs" / "c") == outcome(world / "runs" / "two")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "zero3"])
def test_a_rank_that_is_killed_on_one_node_ends_the_other_node(start_process: StartProcess, world: Path, kind: str):
    nodes = agents(start_process, *LONG, "--set", f"strategy={kind}")
    has_reached(world, 3, *nodes)
    (rank,) = (
        child
        for child in psutil.Process(nodes[1].process.pid).children(recursive=True)
        if "paratune" in child.cmdline()
    )
    rank.send_signal(signal.SIGKILL)

    assert [node.wait() for node in nodes] == [EXIT_FAILED, EXIT_FAILED]
    assert "SIGKILL" in nodes[1].stderr()
    check_shown(nodes[0].stderr(), "launch.rank_lost", "of 2")


@pytest.mark.slow
def test_ranks_with_other_options_and_other_code_are_refused_before_training(start_process: StartProcess, world: Path):
    shutil.copytree(Path(paratune.__file__).parent, world / "other" / "paratune")
    with (world / "other" / "paratune" / "engine" / "loop.py").open("a") as file:
        file.write("\n# another version\n")
    common = {"WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", RENDEZVOUS_VARIABLE: str(world / "rendezvous")}
    path = os.pathsep.join([str(world / "other"), os.environ.get("PYTHONPATH", "")])
    ranks = [
        start_process(*TRAIN, "--set", "strategy=ddp", environment={**common, "RANK": "0", "LOCAL_RANK": "0"}),
        start_process(
            *(*TRAIN, "--set", "strategy=ddp", "--set", "train.learning_rate=0.001"),
            environment={**common, "RANK": "1", "LOCAL_RANK": "1", "PYTHONPATH": path},
        ),
    ]
    assert [rank.wait() for rank in ranks] == [EXIT_LAUNCH, EXIT_LAUNCH], ranks[0].stderr()
    for rank in ranks:
        check_shown(rank.stderr(), "launch.ranks_differ", "train.learning_rate: 0.003 on rank 0; 0.001 on rank 1")
        assert "code of paratune (SHA-256): " in rank.stderr()
        assert rank.stderr().count("on rank 0;") == 2, "nothing else differs"
    assert not (world / "runs").exists()


@pytest.mark.slow
def test_the_strategy_of_the_documentation_trains(start_process: StartProcess, world: Path):
    code = os.pathsep.join([str(write_module(world / "my_code")), os.environ.get("PYTHONPATH", "")])
    strategy = f"strategy={{kind: '{KIND}', options: {{pieces: 4}}}}"
    running = start_process(*TRAIN, "--nproc", "2", "--set", strategy, environment={"PYTHONPATH": code})

    assert running.wait() == EXIT_OK, running.stderr()
    run = world / "runs" / "c"
    assert read_json(run / "run.json")["strategy"]["kind"] == KIND
    assert read_json(run / "summary.json")["status"] == "finished"
    # Two words of each sentence determine its label.
    assert read_json(run / "summary.json")["scores"]["validation"]["accuracy"] > 0.9
