"""Trials of `paratune launch` on a toy Slurm: a process of a job gets a signal, and the run must give the same result.

A trial is a separate process that starts and stops a cluster, so that Slurm's daemons do not count as processes that a
command left behind.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from paratune.cluster import toy
from paratune.cluster.jobs import controller_facts

from . import warm, worlds
from .findings import DIFFERENCE, STUCK, TRACEBACK, Finding
from .results import first_difference, run_result

NAME = "launch"
SITE = 'time: "30:00"\nsave_before_s: 60\n'
RUN = ("launch", "c.yaml", "--site", "site.yaml", "--nodes", "2", "--set", "strategy=ddp", "--set", "train.epochs=8")
PROGRAMS = ("sbatch", "slurmctld", "slurmd", "munged")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)
KILLS = 2
JOB_S = 400.0
POLL_S = 0.2


def missing() -> str | None:
    """Return the reason why no trial can run here; None if trials can run."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    absent = [name for name in PROGRAMS if shutil.which(name, path=places) is None]
    return f"missing: {', '.join(absent)} (make slurm)" if absent else None


def run_trial(number: int, seed: int, folder: Path) -> tuple[int, list[Finding]]:
    """Run a trial; return the number of signals that reached a process, and the findings."""
    output, log = folder / "launch.json", folder / "launch.out"
    folder.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)

    def work() -> None:
        warm.redirect_output(log)
        kills, findings = _with_cluster(random.Random(f"{seed}/{NAME}/{number}"))
        output.write_text(json.dumps([kills, findings]))

    code = os.waitstatus_to_exitcode(os.waitpid(warm.fork(work), 0)[1])
    if code != 0 or not output.exists():
        return 0, [Finding(DIFFERENCE, NAME, number, f"exit code {code}: {log.read_text('utf-8', 'replace')[-3000:]}")]
    kills, findings = json.loads(output.read_text())
    return kills, [Finding(sort, NAME, number, text) for sort, text in findings]


def _with_cluster(draw: random.Random) -> tuple[int, list[tuple[str, str]]]:
    place = Path(tempfile.mkdtemp(prefix="soak-slurm-", dir="/tmp"))  # sockets have short names
    cluster = toy.start(place / "cluster", 2)
    try:
        tools = str(Path(sys.executable).parent)
        os.environ.update(cluster.environment, PARATUNE_CACHE=str(place / "cache"))
        os.environ["PATH"] = os.pathsep.join([tools, os.environ["PATH"]])
        os.environ.pop("LD_PRELOAD", None)
        worlds.sentences(place)
        (place / "site.yaml").write_text(SITE)
        _launch(place, "whole")
        _wait_for_end(place, "whole", JOB_S)
        return _killed(draw, place)
    finally:
        toy.stop(cluster)
        shutil.rmtree(place, ignore_errors=True)


def _killed(draw: random.Random, place: Path) -> tuple[int, list[tuple[str, str]]]:
    """Disturb a run, wait until it is finished, and compare it with the undisturbed run `whole`."""
    num_hits, run = 0, place / "runs" / "killed"
    for _ in range(KILLS):
        job = _launch(place, "killed")
        num_hits += _disturb(draw, place, job)
        _wait_for_end(place, "killed", JOB_S, job)
        if (run / "summary.json").exists():
            break
    if not (run / "summary.json").exists():
        job = _launch(place, "killed")
        _wait_for_end(place, "killed", JOB_S, job)
    text = "\n".join(path.read_text("utf-8", "replace") for path in sorted((run / "slurm").glob("*.txt")))
    if not (run / "summary.json").exists():
        return num_hits, [(STUCK, f"the run is not finished; output of its jobs: {text[-3000:]}")]
    findings = []
    if "]:Traceback (most recent call last)" in text:  # of a rank; torchrun prints its own traceback
        findings.append((TRACEBACK, text[text.index("Traceback (most") :][:3000]))
    if difference := first_difference(run_result(place / "runs" / "whole"), run_result(run)):
        findings.append((DIFFERENCE, f"another result: {difference}"))
    return num_hits, findings


def _launch(place: Path, name: str) -> str:
    """Submit a run and return the number of its job."""
    command = [sys.executable, "-P", "-m", "paratune", *RUN, "--set", f"run.name={name}", "--json"]
    completed = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise RuntimeError(f"launch exited with {completed.returncode}: {completed.stderr[-2000:]}")
    return str(json.loads(completed.stdout)[0]["job"])


def _disturb(draw: random.Random, place: Path, job: str) -> bool:
    """Send a signal to a process of a job some time after its first process exists; return whether it reached one."""
    end = time.monotonic() + JOB_S
    while not _processes(place, job):
        if time.monotonic() > end or _state(job) not in ("PENDING", "RUNNING", "CONFIGURING"):
            return False
        time.sleep(POLL_S)
    checkpoints = place / "runs" / "killed" / "checkpoints"
    num_before = len(list(checkpoints.glob("step_*")))
    wanted = draw.randint(0, 2)  # checkpoints that it may save first
    while _processes(place, job) and len(list(checkpoints.glob("step_*"))) < num_before + wanted:
        time.sleep(POLL_S / 10)
    time.sleep(draw.random() * 0.5)
    processes = _processes(place, job)
    if not processes:
        return False
    with suppress(psutil.Error):
        draw.choice(processes).send_signal(draw.choice(SIGNALS))
        return True
    return False


def _processes(place: Path, job: str) -> list[psutil.Process]:
    """Return the processes of paratune that belong to a job."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = any("paratune" in word for word in process.cmdline()[:5])
            if is_ours and process.environ().get("SLURM_JOB_ID") == job and process.cwd() == str(place):
                processes.append(process)
    return processes


def _state(job: str) -> Any:
    return next(iter(controller_facts(job).values()), {}).get("JobState")


def _wait_for_end(place: Path, name: str, seconds: float, job: str | None = None) -> None:
    """Wait until a run is finished, or its job is over; a job that was queued again is released."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (place / "runs" / name / "summary.json").exists():
            time.sleep(POLL_S)
            return
        if job is not None:
            state = _state(job)
            if state == "PENDING":
                release = ["scontrol", "update", f"jobid={job}", "starttime=now"]
                subprocess.run(release, check=False, capture_output=True)
            elif state not in ("RUNNING", "COMPLETING", "CONFIGURING"):
                return
        time.sleep(5 * POLL_S)
