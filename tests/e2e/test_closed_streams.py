"""Commands whose stdin, stdout or stderr are closed (`>&-`) finish their work, and print into no file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from paratune.errors import EXIT_CONFIG, EXIT_OK

pytestmark = pytest.mark.slow  # each test starts several processes

CLOSED = ("<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")


def paratune(world: Path, closed: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-P", "-m", "paratune", *words],
        cwd=world,
        env={**os.environ, "PARATUNE_CACHE": str(world / "cache")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("closed", CLOSED)
def test_a_command_that_prints_ends_well(world: Path, closed: str):
    assert paratune(world, closed, "config", "show", "c.yaml", "--json").returncode == EXIT_OK


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_an_error_keeps_its_exit_code(world: Path, closed: str):
    assert paratune(world, closed, "config", "show", "none.yaml", "--json").returncode == EXIT_CONFIG


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_child_processes_have_open_streams(world: Path, closed: str):
    code = (
        "import os, subprocess, sys; from paratune import cli; cli._open_closed_streams()\n"
        "is_open = 'import os; [os.fstat(number) for number in (0, 1, 2)]'\n"
        "first = os.open(os.devnull, os.O_RDONLY)\n"
        "sys.exit(subprocess.run([sys.executable, '-c', is_open]).returncode or first < 3)"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=world, timeout=PATIENCE_S).returncode == 0


@pytest.mark.slow
def test_work_without_streams_is_that_with_streams(world: Path):
    for name, closed in (("open", ""), ("closed", CLOSED[-1])):
        run = f"runs/{name}"
        for words in (
            ("train", "c.yaml", "--set", "train.epochs=1", "--set", f"run.name={name}"),
            ("report", run),
            ("evaluate", run, "--data", "data.csv"),
            ("predict", run, "--input", "data.csv", "--out", f"{name}.csv"),
        ):
            ended = paratune(world, closed, *words)
            assert ended.returncode == EXIT_OK, (words, ended.stderr)
    assert (world / "open.csv").read_bytes() == (world / "closed.csv").read_bytes()
    lines = (world / "runs" / "closed" / "events.rank0000.jsonl").read_text().splitlines()
    assert {type(json.loads(line)) for line in lines} == {
        dict
    }  # a line that is printed into this file would be no JSON


@pytest.mark.slow
@pytest.mark.parametrize("words", [("data", "c.yaml"), ("plan", "c.yaml"), ("sweep", "m.yaml"), ("jobs",)])
def test_other_commands_end_well(world: Path, words: tuple[str, ...]):
    (world / "m.yaml").write_text("base: c.yaml\naxes: {run.seed: [1]}\n")
    (world / "c.yaml").write_text((world / "c.yaml").read_text().replace("epochs: 3", "epochs: 1"))
    assert paratune(world, CLOSED[-1], *words).returncode == EXIT_OK
