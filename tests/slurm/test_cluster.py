"""Runs on a real Slurm: several nodes, arrays, preemption, failures, lost nodes, cancelling, dependencies."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from outcome import outcome
from raised import check_shown
from toy_jobs import release, state_of, steps_of, text_of, wait_until

from paratune.cluster import toy
from paratune.cluster.jobs import controller_facts
from paratune.errors import EXIT_DATA, EXIT_FAILED, EXIT_LAUNCH, EXIT_OK
from paratune.records import read_json

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LAUNCH = ("launch", "c.yaml", "--site", "site.yaml")
TWO_NODES = (*LAUNCH, "--nodes", "2", "--set", "strategy=ddp", "--set", "train.epochs=8")
SLOWLY = ("--set", "strategy={kind: 'outside:Slow'}")
URGENT = """\
#!/bin/bash
#SBATCH --nodes=3 --exclusive --partition=urgent --output=/dev/null
sleep 2
"""


def submitted(completed: "subprocess.CompletedProcess[str]") -> str:
    """Return the number of the job that was submitted."""
    assert completed.returncode == EXIT_OK, completed.stderr
    return json.loads(completed.stdout)[0]["job"]


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("step_*"))


def test_a_preempted_and_requeued_run_on_two_nodes_gives_the_result_of_an_undisturbed_one(
    world: Path, paratune: Run, tmp_path: Path, brake: Path
):
    whole = paratune(*TWO_NODES, "--set", "run.name=whole", "--wait")
    assert whole.returncode == EXIT_OK, whole.stderr + text_of(world / "runs" / "whole" / "slurm")
    record = read_json(world / "runs" / "whole" / "run.json")
    assert record["world_size"] == 2

    job = submitted(paratune(*TWO_NODES, *SLOWLY, "--set", "run.name=stopped", "--json"))
    run = world / "runs" / "stopped"
    wait_until(lambda: has_checkpoint(run), "it trains")
    (tmp_path / "urgent.sh").write_text(URGENT)
    subprocess.run(["sbatch", "--wait", str(tmp_path / "urgent.sh")], check=True, capture_output=True)
    brake.unlink()
    release(job)
    wait_until(lambda: (run / "summary.json").exists(), "it continues to its end", steps_of(run))
    wait_until(lambda: state_of(job) == "COMPLETED", "the job ends")

    assert outcome(run) == outcome(world / "runs" / "whole")
    output = text_of(run / "slurm")
    assert "a checkpoint was saved" in output
    assert "queued again" in output
    listed = json.loads(paratune("jobs", "--json").stdout)
    assert [record["states"] for record in listed] == [{"ended well": 1}] * 2
    assert [record["num_requeued"] for record in listed] == [0, 1]


def test_a_failed_run_fails_its_job_with_its_exit_code_and_cancels_dependent_jobs(world: Path, paratune: Run):
    (world / "odd.csv").write_text((world / "data.csv").read_text() + "row,text,strange,1\n")
    bad = submitted(paratune(*TWO_NODES, "--set", "run.name=bad", "--set", "data.train=odd.csv", "--json"))
    after = submitted(paratune(*LAUNCH, "--set", "run.name=follows", "--after", bad, "--json"))
    assert state_of(after) in ("PENDING", "CANCELLED")  # the first job may have failed already

    waited = paratune(*LAUNCH, "--set", "run.name=bad2", "--set", "data.train=odd.csv", "--wait")
    assert waited.returncode == EXIT_DATA, waited.stderr
    assert "strange" in waited.stderr

    wait_until(lambda: state_of(bad) == "FAILED", "it fails")
    assert read_text(world / "runs" / "bad" / "slurm" / f"{bad}.exit") == str(EXIT_DATA)
    wait_until(lambda: state_of(after) == "CANCELLED", "the dependent job is cancelled")
    listed = {record["job"]: record for record in json.loads(paratune("jobs", "--json").stdout)}
    assert (listed[bad]["exit_code"], listed[after]["states"]) == (EXIT_DATA, {"cancelled": 1})


def test_a_matrix_is_an_array_of_its_runs(world: Path, paratune: Run):
    (world / "m.yaml").write_text("base: c.yaml\naxes: {run.seed: [1, 2]}\nenv: {OMP_NUM_THREADS: 1}\n")
    completed = paratune("launch", "m.yaml", "--site", "site.yaml", "--array", "--wait")
    assert completed.returncode == EXIT_OK, completed.stderr + text_of(world / "runs" / "m" / "slurm")
    runs = sorted((world / "runs" / "m" / "runs").iterdir())
    assert [(run / "summary.json").exists() for run in runs] == [True, True]
    repeated = paratune("launch", "m.yaml", "--site", "site.yaml", "--array")
    assert "nothing is left to train" in repeated.stderr


def test_a_matrix_on_one_and_two_nodes_gives_one_table_of_one_machine(world: Path, paratune: Run):
    axes = "{way: {one: {nproc: 1}, two: {nproc: 2, nodes: 2, strategy: ddp}}}"
    (world / "nodes.yaml").write_text(f"base: c.yaml\naxes: {axes}\nenv: {{OMP_NUM_THREADS: 1}}\n")
    completed = paratune("launch", "nodes.yaml", "--site", "site.yaml", "--array", "--wait")
    assert completed.returncode == EXIT_OK, completed.stderr + text_of(world / "runs" / "nodes" / "slurm")
    records = [read_json(world / "runs" / "nodes" / "runs" / name / "run.json") for name in ("one", "two")]
    assert [record["world_size"] for record in records] == [1, 2]
    scripts = [(world / "runs" / "nodes" / "slurm" / name).read_text() for name in ("nodes-1.sh", "nodes-2-nodes-2.sh")]
    assert ["#SBATCH --nodes=2" in script for script in scripts] == [False, True]
    folder = world / "report"
    assert paratune("report", "runs/nodes", "--out", str(folder)).returncode == EXIT_OK
    tables = {table["key"]: table for table in read_json(folder / "report.json")["tables"]}
    assert len(tables["systems"]["columns"]) == 2  # the facts, and all runs
    assert [row["num_devices"]["value"] for row in tables["scaling-strong"]["rows"]] == [1, 2]


def test_one_limit_holds_for_all_arrays_of_a_matrix(world: Path, paratune: Run):
    axes = "{way: {one: {nproc: 1}, two: {nproc: 2, nodes: 2, strategy: ddp}}}"  # three nodes are free: both could run
    (world / "limited.yaml").write_text(f"base: c.yaml\naxes: {axes}\nenv: {{OMP_NUM_THREADS: 1}}\n")
    completed = paratune("launch", "limited.yaml", "--site", "site.yaml", "--array", "--max-at-once", "1", "--wait")
    assert completed.returncode == EXIT_OK, completed.stderr + text_of(world / "runs" / "limited" / "slurm")
    listed = json.loads(paratune("jobs", "runs/limited", "--json").stdout)
    first, second = (next(iter(controller_facts(record["job"]).values())) for record in listed)
    assert first["EndTime"] <= second["StartTime"]


def test_a_job_without_a_new_checkpoint_is_queued_again_twice(world: Path, paratune: Run):
    strategy = "strategy={kind: 'outside:SlowStart'}"
    job = submitted(paratune(*LAUNCH, "--set", strategy, "--set", "run.name=stalled", "--json"))
    slurm = world / "runs" / "stalled" / "slurm"
    for number in range(3):
        # It, or its repetition 5 s later, comes before the first step: there is nothing to save.
        wait_until(lambda number=number: f"start {number} of job" in text_of(slurm), "it starts")  # type: ignore[misc]
        subprocess.run(["scancel", "--signal=USR1", "--batch", job], check=True, capture_output=True)
        if number < 2:
            release(job)
    wait_until(lambda: state_of(job) == "FAILED", "it ends")
    assert not has_checkpoint(world / "runs" / "stalled")
    assert read_text(slurm / f"{job}.exit") == f"{EXIT_LAUNCH} no progress"
    check_shown(paratune("jobs", "runs/stalled").stderr, "slurm.no_progress", job)


def test_a_run_continues_when_a_node_is_lost(world: Path, paratune: Run, cluster: toy.ToyCluster, brake: Path):
    job = submitted(paratune(*TWO_NODES, *SLOWLY, "--set", "run.name=lost", "--json"))
    run = world / "runs" / "lost"
    wait_until(lambda: has_checkpoint(run), "it trains")
    toy._kill([cluster.pids()["n2"], *toy._job_processes(cluster, "n2")])  # like a power cut
    brake.unlink()
    try:
        release(job)
        wait_until(lambda: (run / "summary.json").exists(), "it continues to its end", steps_of(run))
        wait_until(lambda: state_of(job) == "COMPLETED", "the job ends")
    finally:
        toy.start_node(cluster, "n2")
    assert read_json(run / "summary.json")["num_interruptions"] >= 1
    wait_until(lambda: set(toy.node_states(cluster).values()) == {"idle"}, "the node is back")


def test_a_cancelled_run_saves_and_stays_out_of_the_queue(world: Path, paratune: Run):
    name = ("--set", "run.name=cancelled", "--set", "train.epochs=4000")
    job = submitted(paratune(*LAUNCH, *name, "--json"))
    run = world / "runs" / "cancelled"
    wait_until(lambda: has_checkpoint(run), "it trains")
    check_shown(paratune(*LAUNCH, *name).stderr, "slurm.already_queued")
    subprocess.run(["scancel", job], check=True, capture_output=True)
    wait_until(lambda: state_of(job) == "CANCELLED", "it is cancelled")
    wait_until(lambda: "a checkpoint was saved" in text_of(run / "slurm"), "it saves")
    wait_until(lambda: read_text(run / "slurm" / f"{job}.exit"), "the script ends")


def read_text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


STARTS = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=starts.txt
srun paratune train c.yaml --set strategy=ddp --set run.name=by-srun --set train.epochs=1
RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=2 srun paratune train c.yaml --set strategy=ddp --set run.name=x
paratune train c.yaml --set run.name=x
"""


def test_srun_needs_no_torchrun_and_wrong_starts_are_named(world: Path):
    (world / "starts.sh").write_text(STARTS)
    subprocess.run(["sbatch", "--wait", "starts.sh"], cwd=world, capture_output=True)
    output = (world / "starts.txt").read_text()
    assert (world / "runs" / "by-srun" / "summary.json").exists(), output
    record = read_json(world / "runs" / "by-srun" / "run.json")
    assert (record["launcher"], record["world_size"], record["job"]["nodes"]) == ("srun", 2, "n[1-2]")
    assert record["job"]["batch_script"] == STARTS.rstrip()
    check_shown(output, "launch.started_twice", "RANK is 0 in task 1", "2 nodes")


def test_a_signal_during_the_start_is_handled(world: Path, paratune: Run, brake: Path):
    # 30 steps, most of which take a second: the first signal may come too early; the next one is sent 5 s later.
    job = submitted(paratune(*LAUNCH, *SLOWLY, "--set", "run.name=early", "--json"))
    run = world / "runs" / "early"
    wait_until(lambda: "start 0" in read_text(run / "slurm" / f"{job}.txt"), "it starts")
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    wait_until(lambda: "queued again" in text_of(run / "slurm"), "it is queued again")
    brake.unlink()
    release(job)
    wait_until(lambda: state_of(job) == "COMPLETED", "the job ends")
    assert read_json(run / "summary.json")["num_requeued"] == 1
    assert "queued again" in text_of(run / "slurm")


def test_a_second_cluster_runs_beside_the_first_and_leaves_no_process(paratune: Run):
    at = ("--folder", f"/tmp/paratune-toy-{os.getpid()}")
    try:
        started = paratune("toy-cluster", "start", "--nodes", "2", *at)
        assert started.returncode == EXIT_OK, started.stderr
        assert started.stdout == f"export SLURM_CONF={at[1]}/slurm.conf\n"
        refused = " ".join(paratune("toy-cluster", "start", *at).stderr.split())
        assert "toy-cluster stop" in refused
        assert "export SLURM_CONF=" in refused
        status = json.loads(paratune("toy-cluster", "status", "--json", *at).stdout)
        assert status["nodes"] == {"n1": "idle", "n2": "idle"}
        names = subprocess.run(
            ["srun", "--nodes=2", "printenv", "SLURMD_NODENAME"],
            env={**os.environ, **status["environment"]},
            capture_output=True,
            text=True,
        )
        assert sorted(names.stdout.split()) == ["n1", "n2"]
    finally:
        assert paratune("toy-cluster", "stop", *at).returncode == EXIT_OK
    assert paratune("toy-cluster", "status", *at).returncode == EXIT_FAILED
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in status["daemons"].values()), "daemons end")
    shutil.rmtree(at[1])


def test_a_node_that_did_not_answer_for_some_time_is_resumed(paratune: Run, tmp_path: Path):
    """Its daemon is stopped for longer than Slurm waits. It is a separate cluster, because the node loses its jobs."""
    at = f"/tmp/paratune-toy-still-{os.getpid()}"
    started = toy.start(Path(at), 2)
    try:
        still = started.pids()["n1"]
        os.kill(still, signal.SIGSTOP)
        wait_until(lambda: toy.node_states(started)["n1"].startswith("down"), "it counts as lost")
        assert toy.resume_nodes(started) == ["n1"]
        os.kill(still, signal.SIGCONT)
        wait_until(lambda: "n1 idle" in paratune("toy-cluster", "status", "--folder", at).stderr, "it is back")
        subprocess.run(
            ["scontrol", "update", "nodename=n2", "state=down", "reason=trying"],
            env={**os.environ, **started.environment},
            check=True,
        )
        wait_until(lambda: toy.node_states(started)["n2"] == "down", "it is set to down by hand")
        assert toy.resume_nodes(started) == []
    finally:
        toy.stop(started)
        shutil.rmtree(at)


def test_a_run_of_a_job_is_the_anchor_of_plans_on_the_login_node(world: Path, paratune: Run):
    trained = paratune(*TWO_NODES, "--set", "run.name=anchor", "--wait")
    assert trained.returncode == EXIT_OK, trained.stderr + text_of(world / "runs" / "anchor" / "slurm")
    options = ("--devices", "2", "--nodes", "1,2", "--strategies", "ddp", "--json")
    planned = paratune("plan", "c.yaml", "--measured", str(world / "runs" / "anchor"), *options)
    assert planned.returncode == EXIT_OK, planned.stderr
    result = json.loads(planned.stdout)
    assert [(option["num_nodes"], option["step_s"] is not None) for option in result["options"]] == [
        (1, True),
        (2, True),
    ]
