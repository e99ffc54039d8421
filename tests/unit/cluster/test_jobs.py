"""The states of jobs, from replacements of Slurm's commands and from the folder of a run."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from raised import raises_code

from paratune.cluster import jobs
from paratune.cluster.jobs import (
    MAX_UNKNOWN,
    Queued,
    Status,
    Submitted,
    check_job_id,
    controller_facts,
    queue,
    record_submission,
    status,
    status_line,
    submissions,
    submit,
    wait_for,
)

Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Makes programs on the PATH out of shell texts: `programs(squeue="echo 12")`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**texts: str) -> None:
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)

    return make


def submission(folder: Path, job: str = "12", **changed: object) -> Submitted:
    values = {
        "job": job,
        "name": "sst2",
        "submitted": "2026-01-01T00:00:00+00:00",
        "folder": str(folder),
        "site": "site.yaml",
        "script": "job.sh",
        "num_nodes": 1,
        "num_processes": 1,
        "num_runs": 1,
        "is_array": False,
        **changed,
    }
    return Submitted(**values)


def queued(number: str, state: str, *, nodes: str = "", reason: str = "None") -> Queued:
    return Queued(number, number.partition("_")[0], state, "0:05", nodes, reason)


def test_a_submission_gives_the_number(programs: Programs, tmp_path: Path):
    programs(sbatch=f'printf "%s\\n" "$@" > {tmp_path}/words; echo "12;cluster"')
    assert submit(tmp_path / "job.sh", after=["3", "4"]) == "12"
    assert (tmp_path / "words").read_text().splitlines() == [
        *("--parsable", "--dependency=afterok:3:4", "--kill-on-invalid-dep=yes", str(tmp_path / "job.sh"))
    ]


def test_a_refusal_is_slurms_words(programs: Programs, tmp_path: Path):
    says = 'echo "sbatch: error: invalid partition: gpu" >&2; echo "sbatch: error: Batch job failed" >&2'
    programs(sbatch=f"{says}; exit 1")
    with raises_code("slurm.refused", "sbatch", "job.sh: invalid"):
        submit(tmp_path / "job.sh")


def test_missing_slurm_commands_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises_code("dependency.program_missing", "--dry-run"):
        queue()


def test_the_queue_is_read(programs: Programs):
    programs(squeue='echo "12_3|12|PENDING|0:00||JobArrayTaskLimit"; echo "9|9|RUNNING|1:02|n[1-2]|None"')
    assert queue() == [
        Queued("12_3", "12", "PENDING", "0:00", "", "JobArrayTaskLimit"),
        Queued("9", "9", "RUNNING", "1:02", "n[1-2]", "None"),
    ]
    programs(squeue='echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
    with raises_code("slurm.refused", command="squeue"):
        queue()


def test_controller_facts_are_read_by_run(programs: Programs):
    programs(
        scontrol='echo "JobId=13 ArrayJobId=12 ArrayTaskId=1 JobName=a JobState=FAILED Restarts=2 ExitCode=3:0";'
        'echo "JobId=12 ArrayJobId=12 ArrayTaskId=2-4 JobState=PENDING Restarts=0"'
    )
    assert controller_facts("12").keys() == {"12_1", "12"}
    assert (controller_facts("12")["12_1"]["JobState"], controller_facts("12")["12_1"]["Restarts"]) == ("FAILED", "2")
    programs(scontrol='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert controller_facts("12") == {}
    programs(scontrol='echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1')
    with raises_code("slurm.refused", "scontrol", "12"):
        controller_facts("12")


@pytest.mark.parametrize("text", ["12", "12_3"])
def test_numbers_of_jobs(text: str):
    assert check_job_id(text, "--after") == text


@pytest.mark.parametrize("text", ["", "12;reboot", "-1", "12_", "all", "12 13"])
def test_invalid_job_ids_are_refused(text: str):
    with raises_code("cli.invalid_value", "--after"):
        check_job_id(text, "--after")


def test_submissions_are_kept_and_found(tmp_path: Path):
    for name, number in (("b", "20"), ("a", "9")):
        (tmp_path / "runs" / name / "slurm").mkdir(parents=True)
        record_submission(submission(tmp_path / "runs" / name, number, after=("3",)))
    with (tmp_path / "runs" / "a" / "slurm" / "jobs.jsonl").open("a") as file:
        file.write('{"job": "21", "na')  # the disk was full
    assert [item.job for item in submissions([tmp_path / "runs"])] == ["9", "20"]
    assert submissions([tmp_path / "runs" / "a"])[0].after == ("3",)
    assert submissions([tmp_path / "nowhere"]) == []
    with raises_code("output.not_writable", "5", "jobs.jsonl"):
        record_submission(submission(tmp_path / "gone", "5"))


def test_a_cluster_that_was_made_anew_begins_its_numbers_again(tmp_path: Path):
    (tmp_path / "slurm").mkdir()
    for name, when in (("1", 1_000_000), ("12", 1_000_000), ("1_3", 2_000_000_000)):
        (tmp_path / "slurm" / f"{name}.exit").write_text("3")
        os.utime(tmp_path / "slurm" / f"{name}.exit", (when, when))
    record_submission(submission(tmp_path, "1", name="old"))
    record_submission(submission(tmp_path, "1"))
    assert sorted(path.name for path in (tmp_path / "slurm").glob("*.exit")) == ["12.exit", "1_3.exit"]
    assert [item.name for item in submissions([tmp_path])] == ["sst2"]


@pytest.mark.parametrize(
    ("in_queue", "facts", "expected", "state", "code"),
    [
        ("PENDING", {"Restarts": "0"}, None, "pending", None),
        ("PENDING", {"Restarts": "1"}, None, "queued again", None),
        ("PENDING", {}, "requeued", "queued again", None),
        ("RUNNING", {}, "requeued", "running", None),
        ("COMPLETING", {}, "0", "ending", None),
        ("CONFIGURING", {}, None, "configuring", None),
        (None, {"JobState": "COMPLETED", "ExitCode": "0:0"}, "0", "ended well", 0),
        (None, {}, "0", "ended well", 0),
        (None, {}, "3", "ended with 3", 3),
        (None, {"JobState": "FAILED", "ExitCode": "127:0"}, None, "failed", 127),
        (None, {"JobState": "CANCELLED"}, "75", "cancelled", 75),
        (None, {"JobState": "CANCELLED"}, None, "cancelled", 5),
        (None, {"JobState": "TIMEOUT"}, None, "timeout", 5),
        (None, {}, None, "n/a", None),
        (None, {}, "requeued", "n/a", None),
    ],
)
def test_the_state_of_a_job(
    in_queue: str | None,
    facts: dict[str, str],
    expected: str | None,
    state: str,
    code: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(jobs, "controller_facts", lambda job: {job: facts} if facts else {})
    (tmp_path / "slurm").mkdir()
    if expected is not None:
        (tmp_path / "slurm" / "12.exit").write_text(f"{expected}\n")
    result = status(submission(tmp_path), [queued("12", in_queue), queued("13", "RUNNING")] if in_queue else [])
    assert (result.states, result.exit_code) == ({state: 1}, code)


def test_the_states_of_an_array_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "controller_facts", lambda job: {"12_0": {"JobState": "COMPLETED", "Restarts": "1"}})
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "12_0.exit").write_text("0\n")
    (tmp_path / "slurm" / "12_1.exit").write_text("3\n")
    array = submission(tmp_path, num_runs=6, is_array=True)
    waiting = [queued(f"12_{number}", "PENDING", reason="Resources") for number in (3, 4, 5)]
    result = status(array, [queued("12_2", "RUNNING", nodes="n1"), *waiting])
    assert result.states == {"ended well": 1, "ended with 3": 1, "running": 1, "pending": 3}
    assert (result.exit_code, result.num_requeued, result.nodes, result.reason) == (None, 1, "n1", "Resources")
    assert not result.is_over
    assert status_line(result) == (
        "job 12 sst2: 1 ended well, 1 ended with 3, 1 running, 3 pending on n1 (Resources), queued again once"
    )


def test_waiting_logs_each_change_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "slurm").mkdir()
    looks = [[queued("12", "PENDING", reason="Priority")]] * 2 + [[queued("12", "RUNNING", nodes="n1")]] * 2 + [[]]
    monkeypatch.setattr(jobs, "queue", lambda: looks.pop(0) if looks else [])
    monkeypatch.setattr(jobs, "controller_facts", lambda job: {})
    message: list[str] = []
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 6:
            (tmp_path / "slurm" / "12.exit").write_text("4")  # comes a moment after it left the queue

    (result,) = wait_for([submission(tmp_path)], message.append, sleep=sleep)
    assert result.exit_code == 4
    assert message == [
        "job 12 sst2: pending (Priority)",
        "job 12 sst2: running on n1",
        "job 12 sst2: n/a",
        "job 12 sst2: ended with 4",
    ]
    assert slept[0] == 1.0
    assert slept == sorted(slept)


def test_waiting_ends_for_an_unknown_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "slurm").mkdir()
    monkeypatch.setattr(jobs, "queue", list)
    monkeypatch.setattr(jobs, "controller_facts", lambda job: {})
    slept: list[float] = []
    (result,) = wait_for([submission(tmp_path)], lambda line: None, sleep=slept.append)
    assert (result.exit_code, len(slept)) == (None, MAX_UNKNOWN - 1)


def test_a_status_is_plain_data(tmp_path: Path):
    result = Status(submission(tmp_path), {"running": 1}, "n1", "0:05", None, 0, None)
    assert json.loads(json.dumps(jobs.as_dict(result)))["states"] == {"running": 1}
    assert {"COMPLETED", "CANCELLED"} <= jobs.ENDED


@pytest.mark.parametrize(
    "change",
    [
        *({"job": value} for value in ("--user=root", "12 13", "", 12)),
        *({"num_runs": value} for value in (10**12, -1, "x", None)),
        {"folder": None},
        {"name": [1]},
        {"is_array": "yes"},
    ],
    ids=str,
)
def test_a_forged_submission_is_left_out(tmp_path: Path, change: dict[str, object]):
    """A stranger's folder must not give options to scancel."""
    folder = tmp_path / "run" / "slurm"
    folder.mkdir(parents=True)
    good = asdict(submission(folder=str(tmp_path / "run")))
    lines = ["[1]", "null", json.dumps({**good, "job": "99", **change}), json.dumps(good)]
    (folder / "jobs.jsonl").write_text("\n".join(lines))
    assert [entry.job for entry in submissions([tmp_path])] == [good["job"]]
