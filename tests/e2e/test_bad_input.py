"""Bad input gets an error with place, value and remedy, and a documented exit code; no files are left behind."""

from pathlib import Path

import pytest
from bad_case import Case
from bad_input import CASES, NOT_FINITE
from harness import Cli

from paratune.records import is_finished, read_events


def _files(world: Path) -> dict[str, bytes]:
    """Return all files that a user would see, without the cache and the files of this test."""
    return {
        str(path.relative_to(world)): path.read_bytes()
        for path in sorted(world.rglob("*"))
        if path.is_file() and not {".outputs", "cache", "__pycache__"} & set(path.relative_to(world).parts)
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused(case: Case, world: Path, cli: Cli):
    case.prepare(world)
    before = _files(world)

    result = cli(*case.arguments)

    message = " ".join(result.stderr.replace("│", " ").split())
    assert result.code == case.code, result.stderr
    assert [part for part in case.message_parts if part not in message] == [], result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert _files(world) == before, "files were left behind or lost"
    assert not (world / "runs").exists()


def test_a_loss_that_is_not_finite_names_the_step(world: Path, cli: Cli):
    result = cli(*NOT_FINITE.arguments)

    assert result.code == NOT_FINITE.code, result.stderr
    assert [part for part in NOT_FINITE.message_parts if part not in result.stderr] == [], result.stderr
    assert "Traceback" not in result.stderr
    run = world / "runs" / "c"
    assert not is_finished(run)
    assert not (run / "model").exists()
    # The earlier steps are recorded: they show how the loss diverged.
    assert [event["step"] for event in read_events(run) if event["event"] == "step"][:2] == [1, 2]


def test_all_problems_of_a_file_are_reported_at_once(world: Path, cli: Cli):
    result = cli(
        "train", "c.yaml", "--set", "train.lerning_rate=1", "--set", "evaluate.best=bleu", "--set", "run.seed=x"
    )

    assert result.code == 2
    assert "c.yaml: 3 problems" in result.stderr
    assert [part for part in ("lerning_rate", "bleu", "run.seed") if part not in result.stderr] == []
