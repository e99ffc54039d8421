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


def test_what_clusters_document_has_a_key():
    site = Site(
        nodes=2, exclusive="user", srun=["--cpu-bind=cores", "--mpi=none"], network_interface=["hsn0", "hsn1"],
        host_suffix="-ib",
    )  # fmt: skip
    lines = script_text(job(site)).splitlines()
    assert "#SBATCH --exclusive=user" in lines
    assert {f"export {name}=hsn0,hsn1" for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")} <= {*lines}
    (srun,) = (line for line in lines if line.startswith("  srun --nodes=2"))
    assert srun.removesuffix(" \\").endswith("--wait=120 --cpu-bind=cores --mpi=none")
    assert 'address="$head"-ib' in lines
    checked = subprocess.run(["bash", "-n"], input="\n".join(lines), capture_output=True, text=True)
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
    setup = setup.replace("  exit 5\n", "").replace('  log "$1 cannot', '  : "$1 cannot')  # there is no such folder
    shown = subprocess.run(
        ["bash", "-c", f'{setup}\nprintf "%s|" "$folder" "$config" "$A" "$B"'],
        env={"SLURM_JOB_ID": "1", "HOME": "/h", "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == f"{tmp_path}/it's $HOME|{run.config}|{bad}|a;b `c`|"
    assert list(tmp_path.iterdir()) == []


def test_a_port_is_drawn_and_one_that_is_taken_is_passed_over(tmp_path):
    lines = script_text(job(Site(nodes=2))).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("draw()"))
    text = "\n".join([*lines[begin : begin + 4], 'echo "$endpoint"'])
    # A replacement of od returns these numbers one after the other.
    (tmp_path / "od").write_text("#!/bin/bash\nhead -n 1 numbers; sed -i 1d numbers\n")
    (tmp_path / "od").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "address": "n1", "head": "h"}
    servers = (create_server_at(port) for port in range(10_000, 29_999))
    with next(server for server in servers if server is not None) as server:
        taken = server.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = 10_000 + other.getsockname()[1] % 20_000
        (tmp_path / "numbers").write_text(f"{taken - 10_000}\n{free - 10_000 + 7 * 20_000}\n")
        done = subprocess.run(["bash", "-c", text], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == f"n1:{free}", done.stderr


def create_server_at(port):
    """Return a server of loopback at a port; None where another program has it."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None
