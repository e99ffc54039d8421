"""Hub names on a machine without a network."""

import shutil
from pathlib import Path

import pytest
from harness import python
from raised import check_shown

from paratune.errors import EXIT_CONFIG, EXIT_DATA, EXIT_OK

TRAIN = ("-m", "paratune", "train", "c.yaml", "--set", "train.epochs=1")


def _without_network(world: Path) -> dict[str, str]:
    """An environment with an unreachable hub: nothing listens on port 9 of loopback."""
    return {
        "PARATUNE_CACHE": str(world / "cache"),
        "HF_HOME": str(world / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "no_proxy": "127.0.0.1",
    }


@pytest.mark.slow
def test_a_name_that_is_not_in_the_cache_is_refused_at_once(world: Path):
    for option, code, message in (
        ("model.name=some-owner/some-model", EXIT_CONFIG, "model: some-owner/some-model is not a local folder"),
        ("model.tokenizer=some-owner/some-model", EXIT_CONFIG, "model: some-owner/some-model is not a local folder"),
        ("data.train=hub:some-owner/some-data", EXIT_DATA, "hub:some-owner/some-data is on the hub, it is not in the"),
    ):
        completed = python(*TRAIN, "--set", option, cwd=world, environment=_without_network(world))

        assert completed.code == code, completed.stderr
        # One line: the hub's client would print each of its retries, for 46 s in total.
        (line,) = completed.stderr.splitlines()
        assert line.startswith(f"error: {message}")
        assert "and http://127.0.0.1:9 cannot be reached (" in line
        assert not (world / "runs").exists()


@pytest.mark.slow
def test_a_model_in_the_cache_is_trained_without_a_network(world: Path):
    # The layout of huggingface_hub: refs/main names the commit, snapshots/COMMIT holds its files.
    cached = world / "hf" / "hub" / "models--some-owner--some-model"
    shutil.copytree(world / "model", cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    option = "model.name=some-owner/some-model"

    completed = python(*TRAIN, "--set", option, cwd=world, environment=_without_network(world))
    assert completed.code == EXIT_OK, completed.stderr
    check_shown(completed.stderr, "model.from_cache", "some-owner/some-model")
    assert "Retry" not in completed.stderr

    offline = {**_without_network(world), "HF_HUB_OFFLINE": "1"}
    repeated = python(*TRAIN, "--set", option, "--set", "run.name=d", cwd=world, environment=offline)
    assert repeated.code == EXIT_OK, repeated.stderr
    assert "cannot be reached" not in repeated.stderr
