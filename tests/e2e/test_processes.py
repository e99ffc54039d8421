"""Several real processes: --nproc and torchrun, signals to the launcher or to one rank, killed ranks.

Each case starts new interpreters, which takes most of the time.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from harness import Cli, python
from outcome import outcome, steps_of
from patience import PATIENCE_S, wait_for
from raised import check_shown

from paratune.errors import EXIT_FAILED, EXIT_LAUNCH, EXIT_OK, EXIT_STOPPED
from paratune.records import is_finished, read_events, read_json

pytestmark = pytest.mark.slow  # each test starts several processes

DDP = ("--set", "strategy=ddp", "--set", "evaluate={every: steps, steps: 7, best: loss, batch_size: 4}")
SLOWLY = ("--set", "strategy={kind: 'outside:Slow'}")
TWO = ("-m", "paratune", "train", "c.yaml", "--nproc", "2", *DDP)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *TWO[1:4], *DDP)
LONG = ("--set", "train.epochs=4000")
KILLS = "forcefully exiting via"
"""The text that torchrun prints before it kills."""
PLAIN = ("--set", "model.overrides={hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}")
"""Dropout masks differ between ranks; without dropout only the order of sums differs."""


@dataclass
class Started:
    """A running launcher and its output."""

    process: subprocess.Popen[bytes]
    folder: Path

    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text("utf-8", "replace")

    def ranks(self) -> list[psutil.Process]:
        """The processes that the launcher started, in the order of their ranks."""
        return sorted(psutil.Process(self.process.pid).children(), key=lambda child: child.pid)

    def wait_for_step(self, step: int) -> None:
        def reached() -> bool:
            assert self.process.poll() is None, self.stderr()
            run = self.folder / "runs" / "c"
            return run.exists() and any(event["step"] >= step for event in steps_of(run))

        wait_for(reached)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def start(world: Path) -> Iterator[object]:
    """Start python with arguments in the folder; remaining processes are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start_process(*arguments: object) -> Started:
        with (world / "stderr.txt").open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=world,
                env={**os.environ, "PARATUNE_CACHE": str(world / "cache")},
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
        started.append(process)
        return Started(process, world)

    yield start_process
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The undisturbed run on two processes."""
    import shutil

    from world import CONFIG

    folder = tmp_path_factory.mktemp("two")
    (folder / "model").symlink_to(tiny_folder / "model")
    shutil.copy(tiny_folder / "data.csv", folder)
    (folder / "c.yaml").write_text(CONFIG)
    completed = python(*TWO, "--json", cwd=folder, environment={"PARATUNE_CACHE": str(folder / "cache")})
    assert completed.code == EXIT_OK, completed.stderr
    assert completed.json["world_size"] == 2
    return folder / "runs" / "c"


def test_two_processes_give_the_result_of_one(two: Path, world: Path, cli: Cli):
    item = cli("train", "c.yaml", *DDP, *PLAIN)
    assert item.code == EXIT_OK, item.stderr
    completed = python(*TWO, *PLAIN, "--set", "run.name=two", cwd=world)
    assert completed.code == EXIT_OK, completed.stderr

    losses = [event["loss"] for event in steps_of(world / "runs" / "c")]
    assert [event["loss"] for event in steps_of(world / "runs" / "two")] == pytest.approx(losses, abs=1e-5)
    shares = [[e["num_samples"] for e in read_events(two, rank) if e["event"] == "step"] for rank in (0, 1)]
    assert [sum(pair) for pair in zip(*shares, strict=True)] == [16] * 30
    assert read_json(two / "run.json")["batch"]["global_batch_size"] == 16


@pytest.mark.slow
def test_torchrun_gives_the_same_result(two: Path, world: Path):
    completed = python(*TORCHRUN, cwd=world, environment={"PARATUNE_CACHE": str(world / "cache")})

    assert completed.code == EXIT_OK, completed.stderr
    assert outcome(world / "runs" / "c") == outcome(two)


def test_under_torchrun_all_ranks_refuse_an_existing_run(world: Path):
    """When the first rank exits, torchrun ends a rank that has not reported the error yet: it occurs once or twice.

    After 30 s it kills a rank that has not exited.
    """
    (world / "runs" / "c").mkdir(parents=True)
    (world / "runs" / "c" / "run.json").write_text("{}")
    completed = python(*TORCHRUN, cwd=world)

    assert completed.code == EXIT_FAILED, completed.stderr  # for every exit code of a rank
    check_shown(completed.stderr, "run.exists", "runs/c")
    assert KILLS not in completed.stderr


@pytest.mark.slow
def test_under_torchrun_a_rank_that_waits_for_a_failed_rank_ends(world: Path):
    """Only rank 0 fails here, before the rendezvous."""
    completed = python(*TORCHRUN, "--set", "strategy={kind: 'outside:FailsOnRank0'}", cwd=world)

    assert completed.code == EXIT_FAILED, completed.stderr
    assert "rank 0 has no such card" in completed.stderr
    assert KILLS not in completed.stderr
    assert not (world / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to"), [(signal.SIGTERM, "launcher"), (signal.SIGINT, "launcher"), (signal.SIGUSR1, "rank 1")]
)
def test_a_signal_stops_all_ranks_at_one_step(number: signal.Signals, to: str, two: Path, start, world: Path):
    (world / "brake").touch()
    running = start(*TWO, *SLOWLY)
    running.wait_for_step(3)
    (running.process if to == "launcher" else running.ranks()[1]).send_signal(number)

    assert running.wait() == EXIT_STOPPED, running.stderr()
    assert "Traceback" not in running.stderr()
    run = world / "runs" / "c"
    last = [[e["step"] for e in read_events(run, rank) if e["event"] == "step"][-1] for rank in (0, 1)]
    assert last[0] == last[1]
    assert (run / "checkpoints" / f"step_{last[0]:06d}" / "manifest.json").exists()

    repeated = python(*TWO, "--resume", cwd=world)
    assert repeated.code == EXIT_OK, repeated.stderr
    assert outcome(run) == outcome(two)


@pytest.mark.slow
def test_a_signal_before_the_rendezvous_stops_all_ranks(start, world: Path):
    running = start(*TWO)
    wait_for(lambda: len(running.ranks()) == 2)
    running.ranks()[1].send_signal(signal.SIGTERM)

    assert running.wait() == EXIT_STOPPED, running.stderr()
    assert "Traceback" not in running.stderr()
    assert not (world / "runs" / "c" / "checkpoints").exists()


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_is_named(start, world: Path):
    running = start(*TWO, *LONG)
    running.wait_for_step(3)
    others = running.ranks()
    others[1].send_signal(signal.SIGKILL)

    assert running.wait() == EXIT_LAUNCH, running.stderr()
    assert "rank 1 of 2 was killed by SIGKILL; the others are ended" in running.stderr()
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in others)
    assert not (world / "runs" / "c" / "summary.json").exists()


@pytest.mark.slow
def test_ranks_save_and_end_when_the_launcher_is_killed(start, world: Path):
    running = start(*TWO, *LONG)
    running.wait_for_step(3)
    ranks = running.ranks()
    running.process.kill()

    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE_S)
    assert alive == []
    run = world / "runs" / "c"
    step = steps_of(run)[-1]["step"]
    assert (run / "checkpoints" / f"step_{step:06d}" / "manifest.json").exists()


@pytest.mark.slow
def test_an_error_of_all_ranks_is_printed_once(world: Path):
    (world / "three.csv").write_text("\n".join((world / "data.csv").read_text().splitlines()[:2]) + "\n")
    completed = python(
        *TWO, "--set", "data.train=three.csv", "--set", "data.split=", "--set", "data.validation=data.csv", cwd=world
    )

    assert completed.code == 3
    assert completed.stderr.count("error:") == 1
    check_shown(completed.stderr, "data.too_few_rows", "data.train: 1", "2 processes")
    assert not (world / "runs").exists()


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_processes(start, world: Path, cli: Cli):
    """The samples of each step stay the same, and without dropout the losses as well."""
    assert cli("train", "c.yaml", *DDP, *PLAIN, "--set", "run.name=one").code == EXIT_OK
    (world / "brake").touch()
    running = start(*TWO, *SLOWLY, *PLAIN)
    running.wait_for_step(5)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == EXIT_STOPPED, running.stderr()

    resumed = cli("train", "c.yaml", *DDP, *PLAIN, "--resume")

    assert resumed.code == EXIT_OK, resumed.stderr
    run = world / "runs" / "c"
    losses = [event["loss"] for event in steps_of(world / "runs" / "one")]
    assert [event["loss"] for event in steps_of(run)] == pytest.approx(losses, abs=1e-5)
    summary = read_json(run / "summary.json")
    assert (summary["world_size"], summary["num_interruptions"]) == (1, 1)
    step = len([event for event in read_events(run, 1) if event["event"] == "step"])
    sessions = read_json(run / "run.json")["sessions"]
    assert [(item["step"], item["world_size"], len(item["hardware"])) for item in sessions] == [(0, 2, 1), (step, 1, 1)]
    assert [item["batch"]["global_batch_size"] for item in sessions] == [sessions[0]["batch"]["global_batch_size"]] * 2
    assert sessions[1]["command"][-1] == "--resume"
    (resume,) = (event for event in read_events(run) if event["event"] == "resume")
    assert (resume["checkpoint"], resume["passed_over"]) == (f"step_{step:06d}", [])
    times = summary["time"]
    parts_s = sum(seconds for name, seconds in times.items() if name != "total_s")
    # Of both sessions. Steps of one rank during the checkpoint of another may be in two parts.
    assert times["total_s"] > 0.9 * parts_s


@pytest.mark.slow
def test_processes_connect_only_to_this_machine(start, world: Path):
    """Ranks communicate over loopback; the test looks from outside, because gloo's sockets are not Python's."""
    running = start(*TWO, *LONG)
    running.wait_for_step(2)
    seen = [link.raddr.ip for rank in running.ranks() for link in rank.net_connections() if link.raddr]
    running.process.send_signal(signal.SIGTERM)

    assert running.wait() == EXIT_STOPPED
    assert seen != []
    assert [address for address in seen if not address.removeprefix("::ffff:").startswith(("127.", "::1"))] == []


@pytest.mark.slow
def test_one_process_needs_no_network_at_all(world: Path):
    """A new network namespace has no active interface, not even loopback."""
    inside = ("unshare", "-n", "--", sys.executable, "-m", "paratune", "train", "c.yaml")
    if subprocess.run([*inside[:3], "true"], capture_output=True, check=False).returncode:
        pytest.skip("a separate network namespace needs root")

    def train(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PARATUNE_CACHE": str(world / "cache")}
        words = [*inside, *arguments]
        return subprocess.run(words, cwd=world, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)

    alone = train()
    assert alone.returncode == EXIT_OK, alone.stderr
    assert is_finished(world / "runs" / "c")
    grouped = train("--set", "strategy=ddp", "--set", "run.name=d")
    assert grouped.returncode == EXIT_LAUNCH
    output = " ".join(grouped.stderr.split())
    check_shown(output, "launch.not_started", "gloo", "ip link set lo up", "strategy.kind: single")
