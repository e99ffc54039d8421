"""Restarts by torchrun: after a lost rank, with fewer processes, and not after a requested stop."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from harness import python
from outcome import outcome, steps_of
from patience import PATIENCE_S, wait_for
from raised import check_shown
from world import CONFIG

from paratune.errors import EXIT_CHECKPOINT, EXIT_FAILED, EXIT_LAUNCH, EXIT_OK, EXIT_STOPPED
from paratune.records import read_events, read_json

pytestmark = pytest.mark.slow

ELASTIC = ("-m", "torch.distributed.run")
ONE_MACHINE = (*ELASTIC, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
TRAIN = ("-m", "paratune", "train", "c.yaml")
PLAIN = ("--set", "model.overrides={hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}")
"""Dropout masks differ between ranks; without dropout only the order of sums differs."""


def strategy(name: str) -> tuple[str, str]:
    return ("--set", f"strategy={name}")


DIES_ONCE = strategy("{kind: 'outside:DiesOnce'}")
"""Rank 1 kills itself in step 7 of its first start; checkpoints are saved after steps 4, 8, ..."""


def environment(world: Path) -> dict[str, str]:
    return {"PARATUNE_CACHE": str(world / "cache"), "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The folder of two undisturbed runs on two processes: `whole`, and `plain` without dropout."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "model").symlink_to(tiny_folder / "model")
    shutil.copy(tiny_folder / "data.csv", folder)
    (folder / "c.yaml").write_text(CONFIG)
    for name, options in (("whole", ()), ("plain", PLAIN)):
        completed = python(
            *(*TRAIN, "--nproc", "2", *strategy("ddp"), *options, "--set", f"run.name={name}"),
            cwd=folder,
            environment=environment(folder),
        )
        assert completed.code == EXIT_OK, completed.stderr
    return folder / "runs"


@pytest.mark.parametrize("arguments", [(), ("--overwrite",)])
def test_a_run_restarts_after_a_lost_rank_with_bitwise_equal_results(
    undisturbed: Path, world: Path, arguments: tuple[str]
):
    run = world / "runs" / "c"
    if arguments == ("--overwrite",):  # files that only the first start must delete
        run.mkdir(parents=True)
        (run / "run.json").write_text('{"sessions": []}')
        (run / "old.txt").write_text("old")
    completed = python(*ONE_MACHINE, *TRAIN, *arguments, *DIES_ONCE, cwd=world, environment=environment(world))

    assert completed.code == EXIT_OK, completed.stderr
    assert "torchrun started the processes again, restart 1 of 1" in completed.stderr
    assert "resuming after step 4" in completed.stderr
    assert outcome(run) == outcome(undisturbed / "whole")
    assert not (run / "old.txt").exists()
    received = [session["torchrun"] for session in read_json(run / "run.json")["sessions"]]
    assert [(entry["num_restarts"], entry["max_restarts"]) for entry in received] == [(0, 1), (1, 1)]
    assert received[0]["run_id"] == received[1]["run_id"]
    summary = read_json(run / "summary.json")
    assert (summary["num_restarts"], summary["num_interruptions"], summary["num_requeued"]) == (1, 1, None)
    (resume,) = (event for event in read_events(run) if event["event"] == "resume")
    assert (resume["step"], resume["num_restarts"], resume["num_requeued"]) == (4, 1, None)
    shown = python("-m", "paratune", "report", "runs/c", "--out", "report", cwd=world, environment=environment(world))
    assert shown.code == EXIT_OK, shown.stderr
    assert "started again once by torchrun" in (world / "report" / "index.html").read_text(encoding="utf-8")


def test_a_restart_does_not_resume_the_run_of_another_job(world: Path):
    """An existing run that stops the first start also stops the second."""
    started = python(*TRAIN, "--nproc", "2", *DIES_ONCE, cwd=world, environment=environment(world))
    assert started.code != EXIT_OK
    before = (world / "runs" / "c" / "run.json").read_bytes()
    completed = python(*ONE_MACHINE, *TRAIN, *strategy("ddp"), cwd=world, environment=environment(world))

    assert completed.code == EXIT_FAILED, completed.stderr
    check_shown(completed.stderr, "run.exists", "runs/c")
    assert (world / "runs" / "c" / "run.json").read_bytes() == before


def test_a_stopped_run_is_not_restarted(world: Path):
    """USR1 is only for the ranks: torchrun ignores it here, as in the script of `paratune launch`."""
    codes = world / "codes"
    codes.mkdir()
    with (world / "stderr.txt").open("wb") as file:
        process = subprocess.Popen(
            [
                *("bash", "-c", 'trap "" USR1; exec "$@"', "-", sys.executable, *ONE_MACHINE),
                *(*TRAIN, *strategy("ddp"), "--set", "train.epochs=4000"),
            ],
            cwd=world,
            env={**os.environ, **environment(world), "PARATUNE_EXIT_CODES": str(codes)},
            stderr=file,
        )
    run = world / "runs" / "c"
    try:
        wait_for(lambda: run.exists() and any(event["step"] >= 3 for event in steps_of(run)))
        for entry in (torchrun := psutil.Process(process.pid), *torchrun.children()):
            entry.send_signal(signal.SIGUSR1)
        # Otherwise torchrun would print a traceback for each rank; `paratune launch` reads the codes of the ranks.
        assert process.wait(PATIENCE_S) == 0
    finally:
        end(process)
    output = (world / "stderr.txt").read_text()
    assert "a checkpoint was saved" in output
    assert "Traceback" not in output
    assert [path.read_text().strip() for path in codes.iterdir()] == [str(EXIT_STOPPED)] * 2
    assert len(read_json(run / "run.json")["sessions"]) == 1


AGENT = """
import sys, time
from pathlib import Path
from torch.distributed.run import main

Path(sys.argv.pop(1)).touch()
while len(list(Path().glob("agent*.ready"))) < 2:
    time.sleep(0.01)
main()
"""
"""torchrun that starts when the other agent has also imported it: torchrun itself waits only a few seconds."""


@pytest.fixture
def agents(world: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two torchrun agents, as on two nodes of one process each; one of them may continue alone. Killed at the end."""
    # Neither agent hosts the store that both need, so that either may be lost.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (
        *("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--local-addr", "127.0.0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-id", "one-or-two", "--rdzv-endpoint", f"127.0.0.1:{store.port}"),
        *("--rdzv-conf", "is_host=false,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=6"),
        *(*TRAIN, *strategy("{kind: 'outside:Slow'}"), *PLAIN),
    )
    (world / "brake").touch()
    started = []
    for number in range(2):
        with (world / f"agent{number}.txt").open("wb") as file:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", AGENT, f"agent{number}.ready", *arguments],
                    cwd=world,
                    env={**os.environ, **environment(world)},
                    stderr=file,
                    start_new_session=True,
                )
            )
    yield started
    for entry in started:
        end(entry)
    del store


def end(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent with its processes, as if a node were lost."""
    if agent.poll() is None:
        ranks = psutil.Process(agent.pid).children(recursive=True)
        for entry in (agent, *ranks):
            entry.kill()
        agent.wait()


def test_a_run_continues_on_the_remaining_nodes(undisturbed: Path, agents: list[subprocess.Popen[bytes]], world: Path):
    """Two processes, then one that trains all samples of a step: the same result up to the order of sums."""
    run, brake = world / "runs" / "c", world / "brake"
    wait_for(lambda: run.exists() and any(event["step"] >= 5 for event in steps_of(run)))
    end(agents[1])
    brake.unlink()

    assert agents[0].wait(PATIENCE_S) == EXIT_OK, (world / "agent0.txt").read_text()[-3000:]
    sessions = read_json(run / "run.json")["sessions"]
    assert [session["world_size"] for session in sessions] == [2, 1]
    assert {session["batch"]["global_batch_size"] for session in sessions} == {16}
    assert read_json(run / "summary.json")["num_restarts"] >= 1
    whole, resumed = ([[e["loss"], e["grad_norm"]] for e in steps_of(entry)] for entry in (undisturbed / "plain", run))
    # float32: the sums over the 16 samples of a step have another order.
    for item, other in zip(resumed, whole, strict=True):
        assert item == pytest.approx(other, abs=1e-5, rel=1e-4)


def test_ranks_that_would_change_the_samples_of_a_step_are_refused(world: Path):
    """With `per_device` the global batch size depends on the ranks: fewer ranks would train something else."""
    sizes = ("--set", "batch.global=", "--set", "batch.per_device=8")
    died = python(*TRAIN, "--nproc", "2", *DIES_ONCE, *sizes, cwd=world, environment=environment(world))
    assert died.code == EXIT_LAUNCH, died.stderr
    fewer = python(*TRAIN, "--resume", *strategy("ddp"), *sizes, cwd=world, environment=environment(world))
    assert fewer.code == EXIT_CHECKPOINT, fewer.stderr
    check_shown(fewer.stderr, "run.other_configuration", "global batch: 16", "8", "batch.global")


def test_out_of_memory_halves_the_micro_batch_at_each_restart(world: Path):
    exact = ("--set", "precision=fp64", "--set", "evaluate.batch_size=2", "--set", "train.epochs=1")
    full = strategy("{kind: 'outside:FullDDP', options: {most: 4, first: 6}}")
    completed = python(*ONE_MACHINE, *TRAIN, *exact, *full, cwd=world, environment=environment(world))
    assert completed.code == EXIT_OK, completed.stderr
    assert "all processes restart with micro-batches of 4" in " ".join(completed.stderr.split())
    sessions = read_json(world / "runs" / "c" / "run.json")["sessions"]
    # 16 samples on two ranks: 8 each, then 4, the largest size that fits.
    assert [session["batch"]["micro_batch_size"] for session in sessions] == [8, 4]
    assert {session["batch"]["global_batch_size"] for session in sessions} == {16}


def test_a_failed_shared_probe_is_not_repeated(world: Path):
    steps = ("--set", "train.max_steps=4", "--set", "train.epochs=null", "--set", "evaluate.batch_size=2")
    full = strategy("{kind: 'outside:FullZero3', options: {most: 3}}")
    completed = python(
        *(*ONE_MACHINE, *TRAIN, *steps, *full, "--set", "batch.micro_batch_size=auto"),
        cwd=world,
        environment=environment(world),
    )
    assert completed.code == EXIT_OK, completed.stderr
    batch = read_json(world / "runs" / "c" / "run.json")["batch"]
    assert batch["micro_batch_size"] == 2
    assert batch["reason"].endswith("larger ones were not tried (memory ran out with more than 2)")
