"""The toy cluster without Slurm; tests/slurm starts real ones."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_for
from raised import raises_code

from paratune.cluster import toy
from paratune.commands.jobs import toy_cluster
from paratune.errors import MissingDependency


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of Slurm that only log why they do not start."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in toy.PROGRAMS:
        (folder / name).write_text("#!/bin/sh\necho 'cannot bind: \x1b[31mno'; exit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_missing_programs_are_named_with_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toy, "_SEARCH", ())
    with pytest.raises(MissingDependency) as caught:
        toy.start(tmp_path / "c", 3)
    assert str(caught.value) == (
        "a toy cluster needs munged, slurmctld, slurmd, sbatch; on Debian and Ubuntu: "
        "apt-get install --no-install-recommends munge slurmctld slurmd slurm-client"
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("count", [0, -1, 65])
def test_it_has_1_to_64_nodes(count: int, tmp_path: Path):
    with raises_code("toy_cluster.not_started", "64", option="--nodes", value=count):
        toy.start(tmp_path, count)


def test_folders_that_slurm_cannot_take_are_refused(installed: Path, tmp_path: Path):
    with raises_code("toy_cluster.not_started", "--folder"):
        toy.start(tmp_path / "my cluster", 1)
    with raises_code("toy_cluster.not_started"):
        toy.start(Path("/tmp") / ("x" * 90), 1)
    (tmp_path / "file").touch()
    with raises_code("toy_cluster.not_started"):
        toy.start(tmp_path / "file", 1)


def test_a_daemon_that_does_not_come_up_has_the_last_word(installed: Path):
    folder = Path("/tmp") / f"paratune-toy-test-{os.getpid()}"
    try:
        with raises_code("toy_cluster.not_started", "x1b", "31"):
            toy.start(folder, 2)
        assert toy.ToyCluster(folder).pids() == {}
        assert ((folder / "munge.key").stat().st_mode & 0o777, (folder / "munge.key").stat().st_size) == (0o600, 1024)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_the_configuration_has_a_port_for_each_daemon(tmp_path: Path):
    (tmp_path / "slurm.conf").write_text(toy.conf_text(tmp_path, [7000, 7001, 7002]))
    cluster = toy.ToyCluster(tmp_path)
    assert cluster.node_names() == ["n1", "n2"]
    text = cluster.conf.read_text()
    assert re.findall(r"(?:SlurmctldPort| Port)=(\d+)", text) == ["7000", "7001", "7002"]
    assert set(re.findall(r"NodeAddr=(\S+)", text)) == {"127.0.0.1"}
    assert "PartitionName=urgent Nodes=n[1-2]" in text
    assert cluster.environment == {"SLURM_CONF": str(tmp_path / "slurm.conf")}


def test_only_own_daemons_count_as_running(tmp_path: Path):
    (tmp_path / "munged.pid").write_text(f"{os.getpid()}\n")  # another process has that number since
    (tmp_path / "n1.pid").write_text("no number\n")
    (tmp_path / "n2.pid").write_text("999999999\n")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", str(tmp_path)]) as own:
        (tmp_path / "slurmctld.pid").write_text(f"{own.pid}\n")
        try:
            result = wait_for(toy.ToyCluster(tmp_path).pids)  # a moment after its start a process has no command line
        finally:
            own.kill()
    assert result == {"slurmctld": own.pid}


def test_a_daemon_that_nobody_waits_for_has_ended():
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        began = time.monotonic()
        toy._end([number])  # now a zombie
        parent.kill()
    assert time.monotonic() - began < toy.END_S / 2


def test_status_and_stop_report_that_no_cluster_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert toy_cluster("status", folder=tmp_path, nodes=3) == 1
    assert toy_cluster("stop", folder=tmp_path, nodes=3) == 0
    assert capsys.readouterr().out == f"no toy cluster runs in {tmp_path}\n" * 2


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[toy.ToyCluster]:
    """Processes that have the names of daemons of a cluster of two nodes, and nobody who answers for them."""
    (tmp_path / "slurm.conf").write_text(toy.conf_text(tmp_path, [7000, 7001, 7002]))
    running = toy.ToyCluster(tmp_path)
    monkeypatch.setattr(toy, "_call", no_answer)
    daemons = []
    for name in ("munged", "slurmctld", "n1", "n2"):
        daemons.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", str(tmp_path)]))
        (tmp_path / f"{name}.pid").write_text(f"{daemons[-1].pid}\n")
    wait_for(lambda: len(running.pids()) == 4)
    yield running
    for daemon in daemons:
        daemon.kill()
        daemon.wait()


def no_answer(command: Sequence[str], _: toy.ToyCluster, *, timeout_s: float = 0.0) -> None:
    return None


def test_a_controller_that_does_not_answer_keeps_nothing_alive(cluster: toy.ToyCluster):
    job = {"SLURMD_NODENAME": "n2", "SLURM_CONF": str(cluster.conf)}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env=job) as task:
        try:
            wait_for(lambda: toy._job_processes(cluster, "n2") == [task.pid])
            assert toy.stop(cluster) == ["munged", "n1", "n2", "slurmctld"]
            assert task.wait(PATIENCE_S) == -signal.SIGKILL
        finally:
            task.kill()
    assert cluster.pids() == {}
    assert list(cluster.folder.glob("*.pid")) == []


def test_jobs_and_the_commands_that_end_them_have_one_time(cluster: toy.ToyCluster, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, float]] = []

    def busy(command: Sequence[str], _: toy.ToyCluster, *, timeout_s: float) -> "subprocess.CompletedProcess[str]":
        asked.append((command[0], timeout_s))
        return subprocess.CompletedProcess(command, 0, "1 toy job.sh R\n" if command[0] == "squeue" else "", "")

    monkeypatch.setattr(toy, "_call", busy)
    monkeypatch.setattr(toy, "END_S", 0.5)
    assert not toy._cancel_all(cluster, cluster.pids())
    assert asked[0] == ("scancel", 0.5)
    assert {command for command, _ in asked[1:]} == {"squeue"}
    assert all(0 < timeout_s <= 0.5 for _, timeout_s in asked)


def test_a_controller_that_does_not_answer_has_no_nodes_to_show(cluster: toy.ToyCluster):
    assert toy.node_states(cluster) == {}
    assert toy.resume_nodes(cluster) == []


def test_status_looks_at_the_processes(
    cluster: toy.ToyCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # The controller says for minutes that a lost node is idle.
    monkeypatch.setattr(toy, "_nodes", lambda _: [["n1", "idle", "none"], ["n2", "idle", "none"]])
    assert toy_cluster("status", folder=cluster.folder, nodes=2, json=True) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == {"n1": "idle", "n2": "idle"}
    os.kill(cluster.pids()["n2"], signal.SIGKILL)
    wait_for(lambda: "n2" not in cluster.pids())
    assert toy_cluster("status", folder=cluster.folder, nodes=2, json=True) == 1
    assert json.loads(capsys.readouterr().out)["nodes"] == {"n1": "idle", "n2": "ended"}
    assert toy_cluster("status", folder=cluster.folder, nodes=2) == 1
    assert "n2" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["n2", "munged", "slurmctld"])
def test_a_daemon_that_dies_during_start_is_named(cluster: toy.ToyCluster, name: str):
    (cluster.folder / "n2.out").write_text("slurmd: starting\n")
    (cluster.folder / "slurmd.n2.log").write_text("fatal: no plugin\n")
    os.kill(cluster.pids()[name], signal.SIGKILL)
    begin = time.monotonic()
    with raises_code("toy_cluster.not_started", name) as caught:
        toy._wait_until_idle(cluster)
    assert time.monotonic() - begin < toy.START_S
    assert ("\n  slurmd: starting\n  fatal: no plugin" in str(caught.value)) == (name == "n2")


def test_the_controller_is_named_when_all_daemons_run_and_nodes_are_not_idle(
    cluster: toy.ToyCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(toy, "START_S", 0.2)
    with raises_code("toy_cluster.not_started"):
        toy._wait_until_idle(cluster)


def test_a_daemon_that_does_not_go_to_the_background_is_named(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (installed / "slurmd").write_text("#!/bin/sh\necho 'held up'; exec sleep 1000\n")
    monkeypatch.setattr(toy, "START_S", 1.0)
    with raises_code("toy_cluster.not_started", "n1"):
        toy.start_node(toy.ToyCluster(tmp_path), "n1")
