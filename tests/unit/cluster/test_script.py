"""Batch scripts as texts: golden ones for the sites that come along, and bash reads each."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from paratune.cluster.script import ArrayRun, BatchJob, script_text
from paratune.cluster.site import Site, read_site

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "sbatch"
SITES = sorted((ROOT / "configs" / "sites").glob("*.yaml"))
FOLDER, DIRECTORY = Path("/home/me/work/runs/sst2/slurm"), Path("/home/me/work")
RUN = ArrayRun("sst2", FOLDER / "config.yaml")


def job(site: Site, **changed: object) -> BatchJob:
    return BatchJob(
        **{"name": "sst2", "site": site, "runs": (RUN,), "folder": FOLDER, "directory": DIRECTORY, **changed}
    )


JOBS = {
    **{path.stem: job(read_site(path)) for path in SITES},
    "array": job(
        Site(gpus_per_node=1),
        name="table6",
        is_array=True,
        max_at_once=2,
        runs=(
            ArrayRun(
                "a", DIRECTORY / "runs/table6/configs/a.yaml", {"NCCL_DEBUG": "$(x) 'y'", "OMP_NUM_THREADS": None}
            ),
            ArrayRun("b c", DIRECTORY / "runs/table6/configs/b c.yaml"),
        ),
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_script_is_the_golden_one(name: str):
    text = script_text(JOBS[name])
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, "UPDATE_GOLDEN=1 pytest tests/unit/cluster/test_script.py, and read the diff"


@pytest.mark.parametrize("name", JOBS)
def test_bash_reads_it(name: str):
    checked = subprocess.run(["bash", "-n"], input=script_text(JOBS[name]), capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_hostile_names_stay_words(tmp_path: Path):
    bad = 'x\'; touch hacked; echo "$(touch hacked)" `touch hacked` #'
    run = ArrayRun("a", tmp_path / f"{bad}.yaml", {"A": bad})
    text = script_text(
        job(
            Site(venv=bad.replace("$(touch hacked)", ""), environment={"B": "a;b `c`"}),
            runs=(run,),
            folder=tmp_path / "it's $HOME",
        )
    )
    setup = text[text.index("\nfolder=") : text.index("# Runs once on each node.")]
    setup = setup.replace("  exit 5\n", "").replace('  say "$1 cannot', '  : "$1 cannot')  # there is no such folder
    shown = subprocess.run(
        ["bash", "-c", f'{setup}\nprintf "%s|" "$folder" "$config" "$A" "$B"'],
        env={"SLURM_JOB_ID": "1", "HOME": "/h", "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == f"{tmp_path}/it's $HOME|{run.config}|{bad}|a;b `c`|"
    assert list(tmp_path.iterdir()) == []


def test_a_port_belongs_to_one_job_and_one_that_is_taken_is_passed_over():
    lines = script_text(job(Site(nodes=2))).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("port="))
    text = "\n".join([*lines[begin : begin + 3], 'echo "$endpoint"'])

    def endpoint(job_id: int) -> str:
        environ = {"SLURM_JOB_ID": str(job_id), "address": "n1", "head": "h"}
        return subprocess.run(["bash", "-c", text], env=environ, capture_output=True, text=True).stdout.strip()

    assert endpoint(123456) == "n1:13456"  # 10000 + 123456 - 6 * 20000
    for number in range(20_000, 40_000):
        port = 10_000 + number % 20_000
        try:
            with socket.create_server(("127.0.0.1", port)):
                socket.create_server(("127.0.0.1", port + 1)).close()
                assert endpoint(number) == f"n1:{port + 1}"
        except OSError:  # somebody else has it
            continue
        break
