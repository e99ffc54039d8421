"""Calls that report no progress for longer than run.hang_timeout_s may continue as long as bytes arrive."""

import pytest
from harness import python
from slow_hub import NAME, WEIGHTS, slow_hub
from tiny import tiny_model

from paratune.errors import EXIT_HUNG, EXIT_OK
from paratune.records import is_finished, read_json

pytestmark = pytest.mark.slow
TIMEOUT_S = 8
OPTIONS = (
    *("--set", f"model.name={NAME}", "--set", f"run.hang_timeout_s={TIMEOUT_S}", "--set", "measure.plan=false"),
    *("--set", "train.epochs=null", "--set", "train.max_steps=1", "--set", "evaluate={every: never, best: null}"),
    *("--set", "checkpoint={every: steps, steps: 1}"),
)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory):
    """A model of 1.4 MiB: much more than the bytes that count as progress."""
    folder = tmp_path_factory.mktemp("large")
    tiny_model(folder, num_layers=40)
    return folder


def train(world, hub, *more):
    environment = {
        "PARATUNE_CACHE": str(world / "cache"),
        "HF_HOME": str(world / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": hub.url,
        "no_proxy": "127.0.0.1",
    }
    return python("-m", "paratune", "train", "c.yaml", *OPTIONS, *more, cwd=world, environment=environment)


@pytest.mark.parametrize("start", [(), ("--set", "strategy=ddp", "--nproc", "2")], ids=["alone", "two ranks"])
def test_a_slow_download_is_completed(world, large_model, start):
    size = (large_model / WEIGHTS).stat().st_size
    # Twice the allowed time without progress. For the client the weights are one chunk, reported at its end.
    with slow_hub(large_model, bytes_per_s=size / (2 * TIMEOUT_S)) as hub:
        completed = train(world, hub, *start)
    assert completed.code == EXIT_OK, completed.stderr
    assert is_finished(world / "runs" / "c")


def test_a_stalled_download_is_stopped_and_named(world, large_model):
    with slow_hub(large_model, bytes_per_s=100_000, stops_at=400_000) as hub:
        completed = train(world, hub)
    assert completed.code == EXIT_HUNG, completed.stderr
    record = read_json(world / "runs" / "c.hang" / "hang.json")
    (rank,) = record["ranks"]
    assert (record["cause"], rank["work"]) == ("call", f"load the model {NAME}")
    # Counted from the first check, which is at most an eighth of the time after the start of the call.
    assert rank["work_bytes"] > 200_000  # including other files that the process reads, such as modules
    assert rank["work"] in record["message"]
