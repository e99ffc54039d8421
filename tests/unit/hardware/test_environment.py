"""Which environment variables are recorded, and which a run cannot be given."""

import os
from pathlib import Path

import pytest

from paratune.hardware.environment import (
    MAX_SCRIPT_CHARACTERS,
    RECORD_VARIABLE,
    record_words,
    recorded_batch_script,
    recorded_environment,
    unset_variables,
    why_not_to_set,
)


def test_known_variables_are_recorded_and_secrets_are_not():
    environ = {
        "NCCL_NSOCKS_PERTHREAD": "4",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TORCH_HUB_TOKEN": "hf_x",
        # Names that begin as known ones do, and hold what nobody may read.
        "CUDA_REGISTRY_AUTH": "x",
        "FI_PASS": "x",
        "TORCH_HUB_PAT": "x",
        "NCCL_LICENCE": "x",
        "MKL_WEBHOOK_URL": "https://user:x@host",
        "HOME": "/home/me",
        "FOO": "1",
        "BAR": "2",
        "MY_API_KEY": "x",
        RECORD_VARIABLE: "FOO,MY_API_KEY,-GLOO_SOCKET_IFNAME",
    }
    assert recorded_environment(environ) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "FOO": "1",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "OMP_NUM_THREADS": "2",
    }
    assert unset_variables(environ) == ["GLOO_SOCKET_IFNAME"]


def test_strategies_without_a_name_are_an_error():
    assert (recorded_environment({}), unset_variables({})) == ({}, [])


def test_names_of_variables_are_passed_to_the_run():
    words = record_words({"FOO": "1", "BAR": None, "OMP_NUM_THREADS": None})
    assert words == "-BAR,FOO,-OMP_NUM_THREADS"
    assert unset_variables({RECORD_VARIABLE: words}) == ["BAR", "OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NCCL_DEBUG", None),
        ("PARATUNE_CACHE", None),
        ("TOKENIZERS_PARALLELISM", None),
        ("KEYBOARD", None),
        ("RANK", "set by paratune and torchrun in each process"),
        ("MASTER_ADDR", "set by paratune and torchrun"),
        ("TORCHELASTIC_RUN_ID", "set by paratune and torchrun"),
        ("PARATUNE_RENDEZVOUS", "internal to paratune"),
        ("SLURM_PROCID", "set by Slurm"),
        ("COLUMNS", "set by paratune for the logs"),
        ("HF_TOKEN", "looks like a secret"),
        ("AWS_SECRET_ACCESS_KEY", "looks like a secret"),
        ("1A", "is not the name of a variable"),
        ("A=B", "is not the name of a variable"),
        ("A;rm", "is not the name of a variable"),
        ("", "is not the name of a variable"),
    ],
)
def test_variables_that_a_matrix_cannot_set(name: str, part: str | None):
    reason = why_not_to_set(name)
    assert reason is None if part is None else part in (reason or "")


JOB = {"SLURM_JOB_ID": "77"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a scontrol on PATH that has only job 77; return the file with the text of its script."""
    program, script = tmp_path / "scontrol", tmp_path / "script"
    program.write_text(f'#!/bin/sh\n[ "$*" = "write batch_script 77 -" ] && cat {script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return script


def test_script_of_the_job_is_recorded_without_secrets(scontrol: Path):
    scontrol.write_text("#!/bin/bash\nexport HF_TOKEN=abc\nsrun paratune train a.yaml\n")

    assert recorded_batch_script(JOB) == "#!/bin/bash\nexport HF_TOKEN=***\nsrun paratune train a.yaml"


def test_a_long_script_is_cut(scontrol: Path):
    scontrol.write_text("#!" + "x" * MAX_SCRIPT_CHARACTERS)

    text = recorded_batch_script(JOB)

    assert text is not None
    assert text.startswith("#!" + "x" * (MAX_SCRIPT_CHARACTERS - 2) + "\n")
    assert "2 more characters" in text


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("#!/bin/bash\n", {}),
        ("#!/bin/bash\n", {"SLURM_JOB_ID": "78"}),
        ("job script retrieval failed\n", JOB),
    ],
)
def test_no_script_is_recorded_where_slurm_has_none(scontrol: Path, text: str, environ: dict[str, str]):
    scontrol.write_text(text)

    assert recorded_batch_script(environ) is None
