"""A rank that is killed before or after any write of a sharded checkpoint, in real processes with gloo."""

import itertools
import multiprocessing
import signal
from pathlib import Path

import pytest
import shard_ranks
import torch
from patience import PATIENCE_S

from paratune import checkpoint

pytestmark = pytest.mark.slow  # about a hundred processes


def run(folder: Path, step: int, killed_rank: int = -1, moment: int = 0) -> list[int | None]:
    """Save a checkpoint on all ranks; return their exit codes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shard_ranks"])
    arguments = (str(folder), step, killed_rank, moment)
    ranks = [context.Process(target=shard_ranks.save, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(PATIENCE_S)
        process.kill()  # only if it waits for ever, which the exit code shows
        process.join()
    return [process.exitcode for process in ranks]


def check(folder: Path, step: int) -> None:
    checkpoint.verify(folder)
    reader = checkpoint.CheckpointReader(folder)
    assert reader.step == step
    assert all(torch.equal(reader.read(key), value) for key, value in shard_ranks.tensors(step).items())


@pytest.mark.parametrize(("killed_rank", "num_least"), [(0, 30), (1, 10)])
def test_a_kill_at_any_write_leaves_a_complete_checkpoint(tmp_path: Path, killed_rank: int, num_least: int):
    checkpoints = tmp_path / "checkpoints"
    assert run(tmp_path, 3) == [0, 0]
    before = checkpoints / "step_000003"
    for moment in itertools.count():
        codes = run(tmp_path, 6, killed_rank, moment)
        newest = checkpoint.find_newest(checkpoints)
        if codes == [0, 0]:
            break
        assert codes[killed_rank] == -signal.SIGKILL
        assert codes[1 - killed_rank] in (0, 3), moment
        # After its rename the new checkpoint is there, although the rank that renamed it is not.
        assert newest in (before, checkpoints / "step_000006"), moment
        check(newest, int(newest.name[5:]))
        # What is left of an incomplete one has a temporary name.
        assert {path for path in checkpoints.iterdir() if not path.name.startswith(".")} == {before, newest}, moment
        if newest != before:
            assert killed_rank == 0
            checkpoint.prune(checkpoints, 1, step=3)
        # The next save, of another step, deletes what is left.
        checkpoint.prune(checkpoints, 1, step=3)
        assert [path.name for path in checkpoints.iterdir()] == ["step_000003"]
    assert moment >= num_least
    assert newest is not None
    check(newest, 6)
