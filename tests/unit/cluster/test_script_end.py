"""The end of the batch script: bash runs it, with replacements of srun and scontrol."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENCE_S

from paratune.cluster.script import ArrayRun, BatchJob, script_text
from paratune.cluster.site import Site

SRUN = """\
#!/bin/bash
case "$*" in *--overlap*) case "$*" in *"$LOST"*) exit 1 ;; *) exit 0 ;; esac ;; esac
[ -n "$SIGNAL" ] && kill -"$SIGNAL" $PPID && trap 'got=yes' USR1 && until [ -n "$got" ]; do sleep 0.05; done
for each in $CODES; do echo "${each#*:}" > "$PARATUNE_EXIT_CODES/${each%:*}"; done
[ -z "$SAVES" ] || mkdir -p "$HERE/checkpoints/$SAVES"
exit "$ENDS"
"""
SCONTROL = """\
#!/bin/bash
case "$*" in
  *hostnames*) printf 'n1\\nn2\\n' ;;
  *"show node"*) echo "NodeName=n1 Arch=x NodeAddr=10.0.0.7 NodeHostName=n1" ;;
  *"show job"*) echo "JobId=7 JobState=$STATE Reason=None" ;;
  requeue*) echo "$*" >> "$HERE/requeued"; kill -TERM $PPID ;;
esac
"""


def end(
    here: Path,
    *,
    ends: int,
    codes: str = "",
    signal: str = "",
    lost: str = "none",
    state: str = "RUNNING",
    restarts: int | None = None,
    max_requeues: int = 2,
    hangs: int | None = None,
    max_hang_requeues: int = 1,
    stalls: int | None = None,
    checkpoints: tuple[str, ...] = (),
    saves: str = "",
    **more: object,
) -> tuple[int, bool, str]:
    """Run the script; return its exit code, whether it asked for its next start, and what it left in JOB.exit."""
    programs = here / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (here / "slurm").mkdir()
    if hangs is not None:
        (here / "slurm" / "7.hangs").write_text(f"{hangs}\n")
    if stalls is not None:
        (here / "slurm" / "7.stalls").write_text(f"{stalls}\n")
    for name in checkpoints:
        (here / "checkpoints" / name).mkdir(parents=True)
    site = Site(nodes=2, max_requeues=max_requeues, max_hang_requeues=max_hang_requeues, **more)
    job = BatchJob("a", Site(nodes=2), (ArrayRun("a", here / "c.yaml"),), here / "slurm", here)
    script = here / "job.sh"
    script.write_text(script_text(replace(job, site=site)))
    done = subprocess.run(
        ["bash", str(script)],
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HERE": str(here),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-2]",
            **({} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}),
            "ENDS": str(ends),
            "CODES": codes,
            "SIGNAL": signal,
            "LOST": f"--nodelist={lost}",
            "STATE": state,
            "SAVES": saves,
        },
        cwd=here,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    (here / "said").write_text(done.stdout)
    return done.returncode, (here / "requeued").exists(), (here / "slurm" / "7.exit").read_text().strip()


def test_a_run_that_ends_well_ends_well(tmp_path: Path):
    assert end(tmp_path, ends=0, codes="rank0:0 rank1:0") == (0, False, "0")


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ("rank0:5 rank1:3", 3),  # rank 0 lost rank 1, whose code is the reason
        ("rank0:8 rank1:5", 8),
        ("rank0:1 rank1:5", 1),
        ("rank0:5 rank1:5", 5),
        ("rank0:5", 5),
        ("", 1),  # the code of srun, because no rank has written one
    ],
)
def test_the_most_specific_exit_code_is_that_of_the_job(codes: str, code: int, tmp_path: Path):
    assert end(tmp_path, ends=1, codes=codes) == (code, False, str(code))


def test_ranks_that_were_killed_are_named(tmp_path: Path):
    end(tmp_path, ends=1, codes="rank0:5")
    assert "rank 1 of 2\n" in (tmp_path / "said").read_text()


@pytest.mark.parametrize("signal", ["USR1", "TERM"])
@pytest.mark.parametrize("codes", ["rank0:75 rank1:75", "rank0:5 rank1:75", ""])
def test_after_a_signal_it_is_queued_again(signal: str, codes: str, tmp_path: Path):
    assert end(tmp_path, ends=1, codes=codes, signal=signal)[1:] == (True, "requeued")


def test_ranks_that_stopped_are_not_an_error_of_torchrun(tmp_path: Path):
    # Below torchrun they end with 0, and their codes are in the folder.
    assert end(tmp_path, ends=0, codes="rank0:75 rank1:75", signal="USR1")[1:] == (True, "requeued")


def test_a_failure_after_a_signal_is_a_failure(tmp_path: Path):
    assert end(tmp_path, ends=1, codes="rank0:4 rank1:4", signal="USR1") == (4, False, "4")


def test_a_run_that_ended_well_after_a_signal_is_done(tmp_path: Path):
    assert end(tmp_path, ends=0, codes="rank0:0 rank1:0", signal="USR1") == (0, False, "0")


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED"])
def test_a_cancelled_job_is_not_queued_again(state: str, tmp_path: Path):
    assert end(tmp_path, ends=1, codes="rank0:75 rank1:75", signal="TERM", state=state) == (75, False, "75")


def test_it_is_queued_again_no_more_often_than_it_may(tmp_path: Path):
    result = end(tmp_path, ends=1, codes="rank0:75 rank1:75", signal="USR1", restarts=2)
    assert result == (75, False, "75")


def test_a_lost_node_is_no_failure_of_the_run(tmp_path: Path):
    assert end(tmp_path, ends=1, codes="rank0:5", lost="n2")[1:] == (True, "requeued")


def test_a_hang_from_a_lost_node_is_queued_again(tmp_path: Path):
    assert end(tmp_path, ends=1, codes="rank0:10", lost="n2")[1:] == (True, "requeued")


@pytest.mark.parametrize(
    ("restarts", "hangs", "most", "is_queued"),
    [
        (None, None, 1, True),
        (1, 1, 1, False),  # for the second time
        (1, None, 1, True),  # its first start was ended by a signal
        (1, 1, 2, True),
        (None, None, 0, False),
        (None, 3, 1, True),  # left by an earlier job of this number
        (2, None, 1, False),  # max_requeues: 2
    ],
)
def test_a_run_that_stood_still_is_queued_again_once(
    restarts: int | None, hangs: int | None, most: int, is_queued: bool, tmp_path: Path
):
    result = end(tmp_path, ends=1, codes="rank0:10 rank1:5", restarts=restarts, hangs=hangs, max_hang_requeues=most)
    assert result[1:] == ((True, "requeued") if is_queued else (False, "10"))
    message = (tmp_path / "said").read_text()
    assert ("it hung: queued again" in message) == is_queued
    if is_queued:
        assert (tmp_path / "slurm" / "7.hangs").read_text() == f"{1 if restarts is None else (hangs or 0) + 1}\n"
    elif restarts != 2:
        assert f"not queued again, after {hangs or 0} times of max_hang_requeues: {most}" in message


@pytest.mark.parametrize(
    ("restarts", "stalls", "checkpoints", "saves", "left"),
    [
        (None, None, (), "", 1),
        (1, 1, (), "", 2),
        (2, 2, (), "", None),
        (5, 2, ("step_000010",), "", None),
        (5, 2, ("step_000010",), "step_000012", 0),
        (5, 2, ("step_999999",), "step_1000000", 0),
        (5, 2, ("step_000010",), "step_000012.partial", None),
        (None, 2, (), "", 1),  # left by an earlier job of this number
        (5, 1, ("step_000010",), "", 2),
    ],
)
def test_a_run_without_a_new_checkpoint_is_queued_again_twice(
    restarts: int | None, stalls: int | None, checkpoints: tuple[str, ...], saves: str, left: int | None, tmp_path: Path
):
    result = end(
        tmp_path, ends=1, codes="rank0:75 rank1:75", signal="USR1", restarts=restarts, stalls=stalls, max_requeues=100,
        checkpoints=checkpoints, saves=saves,
    )  # fmt: skip
    if left is None:
        assert result == (5, False, "5 no progress")
    else:
        assert result[1:] == (True, "requeued")
        assert (tmp_path / "slurm" / "7.stalls").read_text() == f"{left}\n"


def test_a_lost_node_before_a_checkpoint_is_not_queued_again_without_end(tmp_path: Path):
    result = end(tmp_path, ends=1, codes="rank0:5", lost="n2", restarts=2, stalls=2, max_requeues=100)
    assert result == (5, False, "5 no progress")


def test_a_cancelled_hang_is_not_queued_again(tmp_path: Path):
    assert end(tmp_path, ends=1, codes="rank0:10", state="CANCELLED") == (10, False, "10")


def test_a_hang_after_a_signal_is_queued_again(tmp_path: Path):
    assert end(tmp_path, ends=1, codes="rank0:10 rank1:10", signal="USR1")[1:] == (True, "requeued")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"venv": "/nowhere/.venv"}, "/nowhere/.venv/bin/activate"),
        ({"modules": ["cuda/99"]}, "cuda/99"),
        ({"setup": ["module() { return 1; }"], "modules": ["python/3.11", "cuda/99"]}, "python/3.11"),
    ],
)
def test_a_failed_module_ends_the_job_before_the_run(asked: dict[str, object], named: str, tmp_path: Path):
    assert end(tmp_path, ends=0, codes="rank0:0 rank1:0", **asked) == (5, False, "5")
    assert f"{named} cannot be loaded: the run was not started\n" in (tmp_path / "said").read_text()


def test_modules_that_load_are_no_hindrance(tmp_path: Path):
    asked = {"setup": ["module() { :; }"], "modules": ["python/3.11"]}
    assert end(tmp_path, ends=0, codes="rank0:0 rank1:0", **asked) == (0, False, "0")
