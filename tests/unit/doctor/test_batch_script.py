"""Which lines of batch scripts start training, on which nodes, and which other scripts are read for that."""

import pytest
from set_ups import in_slurm

from paratune.doctor.batch_script import ScriptFacts, find_start, read_called
from paratune.doctor.shell_commands import MAX_LINE_CHARACTERS, commands

TRAIN = "paratune train x.yaml"


def plain(script):
    """Return the first command that starts training, without its place."""
    result = find_start(script, {}).plain
    return result and result[2]


@pytest.mark.parametrize(
    "line",
    [
        "module load deepspeed",
        "pip install deepspeed",
        "mkdir -p deepspeed",
        "command -v torchrun",
        "which torchrun",
        "where=$(which torchrun)",
        "grep torchrun log",
        "ls /opt/venv/bin/torchrun",
        "torchrun --version",
        "VERSION=$(torchrun --version)",
        "python -m torch.distributed.run --help",
        "python -m deepspeed.env_report",
        "python -m pip install paratune train",
        "echo paratune train x.yaml",
        "paratune doctor x.yaml",
        "accelerate config",
        "deepspeed --hostfile hosts train.py",
        "deepspeed --hostfile=hosts train.py",
        "deepspeed -H hosts train.py",
        "accelerate launch --deepspeed_hostfile hosts train.py",
        *(
            f"{starter} {TRAIN}"
            for starter in (
                *("mpiexec.hydra -n 8", "orterun -np 8", "jsrun -n 8", "aprun -n 8", "flux run -N 2", "blaunch -z h"),
                *("parallel-ssh -h hosts", "ssh node2", "$LAUNCHER", "time mpirun -np 8", "env A=1 jsrun"),
            )
        ),
        "COMMAND=(torchrun --nnodes=2 x)",
        "torchrun_it --nnodes=2",
        "true # torchrun x; paratune train x.yaml",
        "apptainer exec torchrun ls",
        "conda run -n torchrun python own.py",
        "conda activate torchrun",
        "nice -n",
        "uv",
    ],
)
def test_other_commands_are_not_mistaken_for_a_start_of_training(line):
    assert plain(line) is None


@pytest.mark.parametrize(
    "before",
    [
        *("A=1", "A='a b' B+=2", "exec", "time -p", "time -f %e -o log", "nohup", "nice -n 5", "nice -10"),
        *("numactl -N 0 --membind=0", "env -u A B=1", "stdbuf -oL -e L", "conda run --no-capture-output -n it"),
        *("singularity -s exec --nv -B /data a.sif", "apptainer exec --bind=/data $IMAGE", "uv run --extra gpu --"),
        *("A=1 exec nice numactl --localalloc env B=1", "if ! ", "while", "then"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        TRAIN,
        "/opt/venv/bin/torchrun --nnodes=2 x",
        '"$VENV/bin/torchrun" x',
        "python3.11 -u -X dev -m torch.distributed.run x",
        "python -m paratune train x.yaml",
        "python -m accelerate.commands.launch x",
        "accelerate launch x",
        "deepspeed --num_gpus 4 train.py",
    ],
)
def test_the_start_of_training_is_shown_without_assignments(before, command):
    assert plain(f"{before} {command}") == command


def test_secrets_before_the_program_are_not_shown(set_up):
    in_slurm(set_up, nodes=2)
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        del set_up.environ[name]
    set_up.probes["batch_script"] = "#!/bin/bash\nWANDB_API_KEY=abcdef env HF_TOKEN='gh ij' paratune train x.yaml\n"
    (finding,) = [item for item in set_up.alarms() if item.code == "srun_forgotten"]
    assert finding.fact.endswith(": paratune train x.yaml")
    assert "abcdef" not in str(finding)
    assert "gh ij" not in str(finding)


@pytest.mark.parametrize(
    "line",
    [
        "x=$((1<<3))",
        "((x = 1 << y))",
        "echo 'a << b'",
        'echo "a << b"',
        r"echo a \<< b",
        "cat <<< word",
        "true # a << b",
        "cat <<'END OF'\nx\nEND OF",
        "cat <<EOF\nsrun_it\nEOF",
        "cat <<-\\END-OF\n\tx\n\tEND-OF",
        "cat << 'A' <<B\nx\nA\nx\nB",
    ],
)
def test_commands_after_here_documents_are_found(line):
    assert plain(f"{line}\n{TRAIN}") == TRAIN


def test_quoted_text_and_here_documents_are_no_commands():
    for script in ("cat <<'E O'\n{0}\nE O", "cat <<A << B\nA\n{0}\nB", "cat 'x'<<EOF\n{0}\nEOF", "echo '; {0}"):
        assert plain(script.format(TRAIN)) is None


@pytest.mark.parametrize("piece", ["a/", '\\"', '"\\', "((", "a=(", "<<a ", "nice ", "{ "])
def test_long_lines_are_not_parsed(piece):
    padding = MAX_LINE_CHARACTERS - len(TRAIN) - 3
    longest = f"{TRAIN} # {piece * padding}"[:MAX_LINE_CHARACTERS]
    assert plain(longest) == TRAIN
    assert plain(f"{longest}a") is None
    assert list(commands(piece * 2**17)) == []
    assert list(commands((piece * 2**10 + "\\\n") * 2**6)) == []  # continued lines are one
    assert find_start(f"{piece * 2**17}\nsrun x", {}).names_srun


@pytest.mark.parametrize(
    ("first", "name", "is_read"),
    [
        ("#!/usr/bin/env python3", "./launch.py", False),
        ("#!/usr/bin/env python3", "./launch", False),
        ("#!/usr/bin/perl", "./launch.sh", False),
        ('"""', "./launch.py", False),
        ('"""', "./launch.txt", False),
        ("#!/bin/bash -l", "./launch.py", True),
        ("#!/usr/bin/env -S bash -e", "./launch", True),
        ("#! /usr/bin/zsh", "./launch", True),
        *(("", f"./launch{suffix}", True) for suffix in ("", ".sh", ".bash", ".slurm", ".sbatch")),
        ("#!/usr/bin/env python3", "bash launch.py", True),  # the shell reads it, whatever it is
        ('"""', "source launch.py", True),
    ],
)
def test_only_called_shell_scripts_are_read(tmp_path, first, name, is_read):
    (tmp_path / name.removeprefix("./").rpartition(" ")[2]).write_text(f"{first}\ntorchrun x\nsrun {TRAIN}\n")
    called = read_called(name, {}, tmp_path)
    assert bool(called) == is_read
    seen = find_start(name, called)
    assert (seen.names_srun, seen.plain is not None) == (is_read, is_read)


def test_a_file_that_is_both_run_and_sourced_is_read(tmp_path):
    (tmp_path / "a.py").write_text(f"{TRAIN}\n")
    assert list(read_called("./a.py\nbash ./a.py", {}, tmp_path)) == ["./a.py"]
    assert list(read_called("bash ./a.py\n./a.py", {}, tmp_path)) == ["./a.py"]
    (tmp_path / "b.sh").write_text("bash ./a.py\n")
    (tmp_path / "c.sh").write_text("./a.py\n")
    assert list(read_called("./b.sh\n./c.sh", {}, tmp_path)) == ["./b.sh", "./c.sh", "./a.py"]


@pytest.mark.parametrize("line", ['LAUNCHER="srun"', "LAUNCHER='srun'", "LAUNCHER=srun", "sh -c 'srun x'"])
def test_srun_in_a_variable_or_in_quotes_is_named(line):
    assert find_start(f"{line}\n$LAUNCHER {TRAIN}", {}).names_srun


@pytest.mark.parametrize(
    ("script", "unread"),
    [
        ("bash -euo pipefail run.sh", ("run.sh",)),
        ("bash -o pipefail -O extglob +x run.sh", ("run.sh",)),
        ("bash --norc --rcfile own.rc run.sh -c x", ("run.sh",)),
        ("/usr/bin/env A=1 bash -- run", ("run",)),
        ("time nice -n 5 sh run.sh>log", ("run.sh",)),
        ('source "$DIR"/env.sh', ("$DIR/env.sh",)),
        ("./run.sh", ("./run.sh",)),
        ("bash -c 'x' run.sh", ()),
        ("bash -ec x", ()),
        ("bash -s < run.sh", ()),
        ("bash < run.sh", ()),
        ("source activate env\n. /opt/venv/bin/activate", ()),
        ("/usr/bin/env\n/usr/bin/nvidia-smi\n./launch.py\n/usr/bin/env python own.py", ()),
        ("/opt/venv/bin/python own.sh\nsource", ()),
    ],
)
def test_scripts_of_a_shell_that_cannot_be_read_are_named(script, unread):
    assert find_start(script, {}) == ScriptFacts(False, None, unread)
