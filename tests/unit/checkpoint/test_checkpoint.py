"""Whole or absent, hashed, nothing pickled; the same for one writer and for several, which are threads here."""

import errno
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import PATIENCE_S
from raised import check_code, check_logged, raises_code
from safetensors import safe_open
from torch import Tensor

from paratune import checkpoint
from paratune.base import atomic
from paratune.base.piece import Piece
from paratune.errors import CheckpointError

PROGRESS = {"step": 5, "best": None}


def tensors(scale: float = 1.0) -> dict[str, Tensor]:
    return {
        "model/weight": scale * torch.arange(12.0).reshape(3, 4),
        "model/half": torch.ones(3, dtype=torch.bfloat16),
        "model/count": torch.tensor(7),
        "optimizer/weight/exp_avg": torch.arange(12.0, dtype=torch.float64).reshape(3, 4).t(),
    }


Save = Callable[..., Path]


def save_whole(folder: Path, step: int, scale: float = 1.0) -> Path:
    target = checkpoint.step_folder(folder, step)
    checkpoint.save(target, tensors(scale).items(), {**PROGRESS, "step": step}, step=step, is_writer=True)
    return target


def pieces(named: dict[str, Tensor], rank: int, world_size: int) -> Iterator[tuple[str, Piece, Tensor]]:
    """Yield equal ranges of the elements, as far as there are enough; scalars are those of the first rank."""
    for key, tensor in named.items():
        size = -(-tensor.numel() // world_size)
        begin, end = (min(number * size, tensor.numel()) for number in (rank, rank + 1))
        if begin < end:
            yield key, Piece(tuple(tensor.shape), begin, end), tensor.flatten()[begin:end]


def rank_name(rank: int) -> str:
    return f"rank {rank}"


def on_ranks(world_size: int, program: Callable[[int, checkpoint.Gather], int]) -> list[int]:
    """Run a program on each rank; if it raises on one, the others lose their peer. Raise the first cause."""
    barrier, slots = threading.Barrier(world_size, timeout=PATIENCE_S), [""] * world_size
    results, causes = [0] * world_size, []

    def run(rank: int) -> None:
        def gather(value: Any) -> list[Any]:
            slots[rank] = json.dumps(value)
            barrier.wait()
            values = [json.loads(text) for text in slots]
            barrier.wait()
            return values

        try:
            results[rank] = program(rank, gather)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            causes.append(error)
            # An error that all ranks raise is not a lost peer.
            if not isinstance(error, CheckpointError):
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), name=rank_name(rank)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if causes:
        # The rank whose error it is has the reason; the others name that rank.
        raise min(causes, key=lambda cause: "its log has the reason" in str(cause))
    return results


def save_sharded(folder: Path, step: int, scale: float = 1.0, world_size: int = 2) -> Path:
    target = checkpoint.step_folder(folder, step)

    def program(rank: int, gather: checkpoint.Gather) -> int:
        own = pieces(tensors(scale), rank, world_size)
        return checkpoint.save_sharded(target, own, {**PROGRESS, "step": step}, step=step, rank=rank, gather=gather)

    num_bytes = on_ranks(world_size, program)
    assert set(num_bytes) == {sum(path.stat().st_size for path in target.iterdir())}
    return target


FORMS: dict[str, Save] = {"whole": save_whole, "sharded": save_sharded}


@pytest.fixture(params=FORMS)
def save(request: pytest.FixtureRequest) -> Save:
    """Both ways to write a checkpoint, with the same content."""
    return FORMS[request.param]


def first_file(folder: Path) -> Path:
    return min(folder.glob("tensors.*"))


def test_saved_tensors_are_read_bit_for_bit(tmp_path: Path, save: Save):
    folder = save(tmp_path / "checkpoints", 5)
    assert folder.name == "step_000005"
    checkpoint.verify(folder)
    reader = checkpoint.CheckpointReader(folder)
    assert (reader.step, reader.progress) == (5, PROGRESS)
    assert reader.keys() == list(tensors())
    assert reader.keys("optimizer/") == ["optimizer/weight/exp_avg"]
    for key, value in tensors().items():
        read = reader.read(key)
        assert read.dtype == value.dtype
        assert torch.equal(read, value)
    with pytest.raises(KeyError, match="model/nothing"):
        reader.read("model/nothing")


@pytest.mark.parametrize("written_by", [1, 2, 3, 5])
@pytest.mark.parametrize("read_by", [1, 2, 4])
def test_shards_of_any_number_of_ranks_are_read_by_any_other(tmp_path: Path, written_by: int, read_by: int):
    reader = checkpoint.CheckpointReader(save_sharded(tmp_path, 5, world_size=written_by))
    whole = checkpoint.CheckpointReader(save_whole(tmp_path, 6))
    for rank in range(read_by):
        for key, piece, value in pieces(tensors(), rank, read_by):
            for form in (reader, whole):
                read = form.read(key, piece)
                assert read.dtype == value.dtype
                assert torch.equal(read, value if tensors()[key].ndim else tensors()[key])


def test_no_elements_and_other_shapes(tmp_path: Path, save: Save):
    reader = checkpoint.CheckpointReader(save(tmp_path, 5))
    none = reader.read("model/half", Piece((3,), 3, 3))
    assert (none.shape, none.dtype) == ((0,), torch.bfloat16)
    with pytest.raises(ValueError, match=r"model/weight has shape \(3, 4\), the model \(4, 3\)"):
        reader.read("model/weight", Piece((4, 3), 0, 6))


def test_ranks_write_at_the_same_time_and_only_their_own_elements(tmp_path: Path):
    folder = save_sharded(tmp_path, 5, world_size=3)
    sizes = {}
    for path in folder.glob("tensors.*"):
        with safe_open(path, framework="pt") as file:
            keys = list(file.keys())
            sizes[path.name] = {key: file.get_slice(key).get_shape() for key in keys}
    assert sizes["tensors.rank0000.00000.safetensors"] == {
        "model/weight": [4],
        "model/half": [1],
        "model/count": [1],
        "optimizer/weight/exp_avg": [4],
    }
    without_count = {"model/weight": [4], "model/half": [1], "optimizer/weight/exp_avg": [4]}
    assert sizes["tensors.rank0001.00000.safetensors"] == without_count
    assert sizes["tensors.rank0002.00000.safetensors"] == without_count


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 5), (5, 12), (7, 12), (6, 11), (0, 12)], ids=["none", "twice", "gap", "short", "all twice"]
)
def test_missing_or_repeated_elements_are_an_error_on_every_rank(tmp_path: Path, begin: int, end: int):
    before = save_sharded(tmp_path, 3)
    raised = []

    def program(rank: int, gather: checkpoint.Gather) -> int:
        place = (0, 6) if rank == 0 else (begin, end)
        own = [("model/x", Piece((3, 4), *place), torch.zeros(place[1] - place[0]))]
        try:
            return checkpoint.save_sharded(tmp_path / "step_000006", own, {}, step=6, rank=rank, gather=gather)
        except CheckpointError as error:
            raised.append(error.code)
            return 0

    on_ranks(2, program)
    assert sorted(raised) == ["checkpoint.damaged", "output.not_writable"]
    assert list(tmp_path.iterdir()) == [before]


def test_save_returns_the_size_of_the_folder(tmp_path: Path):
    num_bytes = checkpoint.save(tmp_path / "step_000001", tensors().items(), {}, step=1, is_writer=True)
    assert num_bytes == sum(path.stat().st_size for path in (tmp_path / "step_000001").iterdir())


def test_nothing_is_pickled(tmp_path: Path, save: Save):
    folder = save(tmp_path, 5)
    names = sorted(path.name for path in folder.iterdir())
    files = {
        save_whole: ["tensors.00000.safetensors"],
        save_sharded: ["tensors.rank0000.00000.safetensors", "tensors.rank0001.00000.safetensors"],
    }
    assert names == ["manifest.json", "progress.json", *files[save]]
    for path in folder.iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            with safe_open(path, framework="pt") as file:
                assert list(file.keys())
        head = path.read_bytes()[:2]
        assert head != b"PK", "torch.save writes a zip file"
        assert not head.startswith(b"\x80"), "a pickle begins with its protocol"


def test_large_states_are_written_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 30)
    folder = save_whole(tmp_path, 5)
    # 48 bytes, then 6 + 8 + 96 bytes: a file is closed once 30 bytes have come together.
    sizes = {
        name: len(list(safe_open(folder / name, "pt").keys()))
        for name in checkpoint.CheckpointReader(folder)._places.values()
    }
    assert sizes == {"tensors.00000.safetensors": 1, "tensors.00001.safetensors": 3}
    reader = checkpoint.CheckpointReader(folder)
    assert all(torch.equal(reader.read(key), value) for key, value in tensors().items())


def test_ranks_that_do_not_write_iterate_over_the_tensors(tmp_path: Path):
    seen = []

    def gather() -> Iterator[tuple[str, None]]:
        for key in ("a", "b", "c"):
            seen.append(key)
            yield key, None

    assert checkpoint.save(tmp_path / "step_000001", gather(), {}, step=1, is_writer=False) == 0
    assert seen == ["a", "b", "c"]
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """As a signal would: nothing catches it as an error."""


def _raise_in(
    monkeypatch: pytest.MonkeyPatch,
    target: object,
    name: str,
    *,
    error: BaseException,
    at_call: int = 1,
    rank: int | None = None,
):
    """Raise an error in a call of a function, or of one rank's calls."""
    real, calls = getattr(target, name), []

    def stand_in(*arguments: object, **options: object) -> object:
        if rank is None or threading.current_thread().name == rank_name(rank):
            calls.append(arguments)
        elif calls:  # a call of another rank after that one is no call of this rank
            return real(*arguments, **options)
        if len(calls) == at_call:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(target, name, stand_in)


STAGES: list[tuple[str, object, str, int]] = [
    ("before the first tensor", checkpoint, "save_file", 1),
    ("after the first file of tensors", checkpoint, "save_file", 2),
    ("syncing a file of tensors", atomic, "sync", 1),
    ("writing the progress", checkpoint, "write_json", 1),
    ("hashing", checkpoint, "file_sha256", 2),
    ("writing the manifest", checkpoint, "write_json", 2),
    ("renaming", Path, "rename", 1),
]
WRITERS = [("whole", None), ("sharded", 0), ("sharded", 1)]
"""The form, and the rank that is interrupted."""
INTERRUPTIONS = [
    pytest.param(form, rank, *stage, id=f"{form}-{rank}-{name}")
    for form, rank in WRITERS
    for name, *stage in STAGES
    # The second rank writes and hashes its tensors; all other steps are those of the first.
    if rank != 1 or stage[1] in ("save_file", "file_sha256")
]


@pytest.mark.parametrize(("form", "rank", "target", "name", "at_call"), INTERRUPTIONS)
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")], ids=["killed", "full"])
def test_an_interrupted_save_leaves_only_the_previous_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    rank: int | None,
    target: object,
    name: str,
    at_call: int,
    error: BaseException,
):
    before = FORMS[form](tmp_path, 3)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 20)
    with monkeypatch.context() as patch:
        _raise_in(patch, target, name, error=error, at_call=at_call, rank=rank)
        expected = Killed if isinstance(error, Killed) else CheckpointError
        with pytest.raises(expected) as caught:
            FORMS[form](tmp_path, 6)
    # A rank that lost its peer may still write to the temporary folder while that one deletes it.
    may_stay = rank is not None and expected is Killed
    names = [path.name for path in tmp_path.iterdir() if not (may_stay and path.suffix == ".tmp")]
    assert names == ["step_000003"]
    assert checkpoint.find_newest(tmp_path) == before
    assert FORMS[form](tmp_path, 6) == checkpoint.find_newest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000006"]
    if expected is CheckpointError:
        check_code(caught.value, "output.not_writable", "step_000006")
        assert "the disk is full" in str(caught.value) or "free some space" in str(caught.value)


@pytest.mark.parametrize(("rank", "name"), [(0, "save_file"), (1, "save_file"), (0, "write_json")])
def test_a_full_disk_of_one_rank_is_an_error_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, name: str
):
    _raise_in(monkeypatch, checkpoint, name, error=OSError(errno.ENOSPC, "No space left on device"), rank=rank)
    raised: dict[int, str] = {}

    def program(number: int, gather: checkpoint.Gather) -> int:
        own = pieces(tensors(), number, 2)
        try:
            checkpoint.save_sharded(tmp_path / "step_000006", own, {}, step=6, rank=number, gather=gather)
        except CheckpointError as error:
            check_code(error, "output.not_writable", "step_000006")
            raised[number] = str(error)
        return 0

    on_ranks(2, program)
    assert f"rank {rank} could not write" in raised[1 - rank]
    assert "the disk is full" in raised[rank]


def test_a_process_that_is_killed_while_writing_leaves_no_checkpoint(tmp_path: Path, save: Save):
    # Nothing can be tidied up then; what is left does not count, and the next save removes it.
    before = save(tmp_path, 3)
    aside = tmp_path / ".step_000006.99999999.tmp"
    shutil.copytree(before, aside)
    assert checkpoint.find_newest(tmp_path) == before
    save(tmp_path, 9)
    checkpoint.prune(tmp_path, 2, step=9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000009"]


def test_after_a_failed_write_the_remaining_tensors_are_still_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The other ranks take part in gathering each of them, and would wait for ever.
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 1)
    _raise_in(monkeypatch, checkpoint, "save_file", error=OSError(errno.EIO, "Input/output error"))
    seen = []

    def gather() -> Iterator[tuple[str, Tensor]]:
        for key, value in tensors().items():
            seen.append(key)
            yield key, value

    with raises_code("output.not_writable"):
        checkpoint.save(tmp_path / "step_000001", gather(), {}, step=1, is_writer=True)
    assert seen == list(tensors())


def test_an_existing_checkpoint_is_replaced(tmp_path: Path, save: Save):
    save(tmp_path, 5)
    folder = save(tmp_path, 5, scale=2.0)
    assert torch.equal(checkpoint.CheckpointReader(folder).read("model/weight"), tensors(2.0)["model/weight"])


def _cut_short(folder: Path) -> str:
    path = first_file(folder)
    os.truncate(path, path.stat().st_size - 1)
    return f"{path.name} has {path.stat().st_size} bytes instead of {path.stat().st_size + 1}"


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def _flip_a_bit(folder: Path) -> str:
    path = first_file(folder)
    _flip(path, -1)
    return f"{path.name} does not match its SHA-256"


def _lose_a_file(folder: Path) -> str:
    path = max(folder.glob("tensors.*"))
    path.unlink()
    return f"{path.name} is missing"


def _change_the_progress(folder: Path) -> str:
    path = folder / "progress.json"
    path.write_text(path.read_text().replace('"step": 6', '"step": 7'))
    return "progress.json does not match its SHA-256"


def _lose_the_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return "manifest.json does not exist"


def _tear_the_manifest(folder: Path) -> str:
    path = folder / "manifest.json"
    os.truncate(path, path.stat().st_size // 2)
    return "manifest.json is damaged"


def _change_the_manifest(folder: Path) -> str:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("model/weight", "model/weighs"))
    return "manifest.json does not match its own SHA-256"


def _empty_the_manifest(folder: Path) -> str:
    (folder / "manifest.json").write_text("[]")
    return "manifest.json is not a manifest"


def _make_it_of_another_format(folder: Path) -> str:
    path = folder / "manifest.json"
    path.write_text(re.sub('"format_version": [12]', '"format_version": 99', path.read_text()))
    return "has checkpoint format 99; this version reads 1 and 2"


DAMAGES = [
    _cut_short,
    _flip_a_bit,
    _lose_a_file,
    _change_the_progress,
    _lose_the_manifest,
    _tear_the_manifest,
    _change_the_manifest,
    _empty_the_manifest,
    _make_it_of_another_format,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_previous_checkpoint_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], str], save: Save
):
    before, newest = save(tmp_path, 3), save(tmp_path, 6)
    damaged_file = damage(newest)
    with pytest.raises(CheckpointError, match="step_000006") as caught:
        checkpoint.verify(newest)
    assert damaged_file in str(caught.value)
    assert checkpoint.find_newest(tmp_path) == before
    assert damaged_file in caplog.text
    check_logged(caplog, "checkpoint.skipped")


def test_damaged_checkpoints_only_are_an_error(tmp_path: Path, save: Save):
    for step in (3, 6):
        _cut_short(save(tmp_path, step))
    with raises_code("checkpoint.none_whole", "2"):
        checkpoint.find_newest(tmp_path)


def test_without_checkpoints_find_newest_returns_none(tmp_path: Path):
    assert checkpoint.find_newest(tmp_path / "absent") is None
    (tmp_path / "step_notes").mkdir()
    (tmp_path / "best_000003").mkdir()
    assert checkpoint.find_newest(tmp_path) is None


def test_checkpoints_are_ordered_by_number_also_beyond_six_digits(tmp_path: Path):
    for step in (1_000_000, 999_999, 20):
        checkpoint.step_folder(tmp_path, step).mkdir()
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == [
        "step_000020",
        "step_999999",
        "step_1000000",
    ]


def test_prune_keeps_the_newest(tmp_path: Path, save: Save):
    for step in (2, 4, 6, 8):
        save(tmp_path, step)
    (tmp_path / "best_000002").mkdir()
    checkpoint.prune(tmp_path, 2, step=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_000002", "step_000006", "step_000008"]


def test_prune_deletes_damaged_checkpoints_of_later_steps(tmp_path: Path, save: Save):
    # Step 9 is damaged, so the run went on from 4 and has saved 6: that one must not be the one that goes.
    for step in (2, 4, 9, 6):
        save(tmp_path, step)
    _cut_short(tmp_path / "step_000009")
    checkpoint.prune(tmp_path, 1, step=6)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000006"]


def test_the_progress_of_a_damaged_checkpoint_is_empty(tmp_path: Path, save: Save):
    folder = save(tmp_path, 5)
    assert checkpoint.read_progress(folder) == PROGRESS
    (folder / "progress.json").write_text("[1]")
    assert checkpoint.read_progress(folder) == {}
    (folder / "progress.json").write_text("{")
    assert checkpoint.read_progress(folder) == {}


def test_a_folder_that_is_not_writable_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with raises_code("output.not_writable", "step_000001"):
        checkpoint.save(tmp_path / "file" / "step_000001", tensors().items(), {}, step=1, is_writer=True)


def test_a_full_disk_is_an_error_and_the_previous_checkpoint_stays(tmp_path: Path):
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk takes root")
    try:
        before = save_whole(mount, 3)
        large = {"model/weight": torch.zeros(2**20)}
        with raises_code("output.not_writable", "step_000006"):
            checkpoint.save(mount / "step_000006", large.items(), {}, step=6, is_writer=True)
        assert [path.name for path in mount.iterdir()] == ["step_000003"]
        assert checkpoint.find_newest(mount) == before
    finally:
        subprocess.run(["umount", str(mount)], check=True)
