"""The batch script of a job, read with a replacement of scontrol."""

import os
from pathlib import Path

import pytest

from paratune.hardware.batch_script import MAX_CHARACTERS, recorded_batch_script

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
    scontrol.write_text("#!" + "x" * MAX_CHARACTERS)

    text = recorded_batch_script(JOB)

    assert text is not None
    assert text.startswith("#!" + "x" * (MAX_CHARACTERS - 2) + "\n")
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
