"""The task that runs on each node, with replacements of programs that record their calls."""

import os
import subprocess
from pathlib import Path

from patience import PATIENCE_S

from paratune.cluster.script import ArrayRun, BatchJob, script_text
from paratune.cluster.site import Container, Site
from paratune.processes.launcher import FIRST_PORT, NUM_PORTS

SRUN = '#!/bin/bash\nwhile [ "$1" != bash ]; do shift; done\nSLURM_NODEID=1 exec "$@"\n'
SCONTROL = "#!/bin/bash\necho n1\n"
PROGRAM = """\
#!/bin/bash
printf '%s\\n' "$(basename "$0")" "$@" > "$HERE/words"
echo "${TMPDIR:-}" > "$HERE/tmpdir"; [ -z "${TMPDIR:-}" ] || touch "$TMPDIR/used"
kill -USR1 $$  # ignored: it is for the ranks
echo "$HF_HUB_OFFLINE $A" > "$HERE/variables"
"""


def words_of(here: Path, site: Site) -> list[str]:
    """Run the script of a site; return what the task started."""
    programs = here / "bin"
    programs.mkdir()
    texts = {"srun": SRUN, "scontrol": SCONTROL, **dict.fromkeys(("paratune", "torchrun", "apptainer"), PROGRAM)}
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    folder = here / "slurm"
    folder.mkdir()
    script = here / "job.sh"
    script.write_text(script_text(BatchJob("a", site, (ArrayRun("a", here / "it's $c.yaml"),), folder, here)))
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HERE": str(here),
        "USER": "me",
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    done = subprocess.run(
        ["bash", str(script)], env=environ, cwd=here, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (here / "words").read_text().splitlines()


def test_one_node_runs_paratune_itself(tmp_path: Path):
    config = str(tmp_path / "it's $c.yaml")
    assert words_of(tmp_path, Site(processes_per_node=3)) == ["paratune", "train", config, "--nproc", "3", "--resume"]


def test_several_nodes_run_torchrun_with_the_rendezvous_on_the_first(tmp_path: Path):
    words = words_of(tmp_path, Site(nodes=2, gpus_per_node=4))
    assert words[:5] == ["torchrun", "--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=static", "--rdzv-id=7.0"]
    host, _, port = words[5].removeprefix("--rdzv-endpoint=").partition(":")
    assert host == "n1"
    assert FIRST_PORT <= int(port) < FIRST_PORT + NUM_PORTS
    # Read in the task, not in the batch script, where it is 0.
    assert words[6:8] == ["--node-rank=1", f"--log-dir={tmp_path / 'slurm'}/7.ranks"]
    assert words[-4:] == ["paratune", "train", str(tmp_path / "it's $c.yaml"), "--resume"]


def test_each_start_of_a_job_draws_its_port(tmp_path: Path):
    ports = set()
    for number in range(3):
        (here := tmp_path / str(number)).mkdir()
        ports.add(words_of(here, Site(nodes=2, gpus_per_node=4))[5])
    assert len(ports) > 1  # of 20,000, three equal ones are drawn once in 400 million times


def test_a_container_gets_its_options_as_words(tmp_path: Path):
    container = Container(image="/images/$USER/my image.sif", binds=["/a b:/c"], options=["--no-home"])
    words = words_of(tmp_path, Site(gpus_per_node=1, container=container))
    assert words[:2] == ["apptainer", "exec"]
    assert words[2:] == [
        *("--bind", str(tmp_path), "--pwd", str(tmp_path), "--nv", "--bind", "/a b:/c", "--no-home"),
        *("/images/me/my image.sif", "paratune", "train", str(tmp_path / "it's $c.yaml"), "--nproc", "1", "--resume"),
    ]


def test_a_container_sees_the_run_and_its_temporary_files(tmp_path: Path):
    site = Site(container=Container(image="a.sif"), scratch=str(tmp_path / "disk"))
    folder = Path("/elsewhere/runs/a/slurm")
    job = BatchJob("a", site, (ArrayRun("a", folder / "config.yaml"),), folder, tmp_path)
    line = next(line for line in script_text(job).splitlines() if "apptainer exec" in line)
    assert '--bind "$PWD" --pwd "$PWD" --bind "$TMPDIR" --bind /elsewhere/runs/a' in line


def test_scratch_is_made_and_deleted_and_variables_are_there(tmp_path: Path):
    site = Site(scratch=f"{tmp_path}/disk of $USER", internet=False, environment={"A": "$USER;b"})
    words_of(tmp_path, site)
    scratch = tmp_path / "disk of me"
    assert (tmp_path / "tmpdir").read_text().strip() == str(scratch / "paratune-7")
    assert list(scratch.iterdir()) == []
    assert (tmp_path / "variables").read_text().strip() == "1 me;b"
