"""A full disk: a clear message, no partial files, intact earlier checkpoints, and a resumed run when there is space."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Cli
from outcome import outcome
from raised import check_shown

from paratune import checkpoint
from paratune.errors import EXIT_CHECKPOINT, EXIT_DATA, EXIT_OK

pytestmark = pytest.mark.slow  # each test starts several processes

Mount = Callable[[str, int], Path]


@pytest.fixture
def small_disk(world: Path) -> Iterator[Mount]:
    """Mounts a file system of some KiB at a new folder; skips the test without the permission."""
    mounted: list[Path] = []

    def mount(name: str, size_kib: int) -> Path:
        folder = world / name
        folder.mkdir()
        completed = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)], capture_output=True, check=False
        )
        if completed.returncode:
            pytest.skip("mounting a small disk needs root")
        mounted.append(folder)
        return folder

    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path, leave_kib: int) -> Path:
    """Write a file that leaves `leave_kib` KiB of free space."""
    space = os.statvfs(folder)
    path = folder / "other.bin"
    path.write_bytes(b"\0" * (space.f_bavail * space.f_frsize - leave_kib * 1024))
    return path


def test_a_checkpoint_that_does_not_fit(small_disk: Mount, world: Path, cli: Cli):
    # A checkpoint of the tiny model is 330 KiB, a snapshot of the best model a third of that: two checkpoints and one
    # snapshot fit.
    disk = small_disk("small", 900)
    arguments = ("train", "c.yaml", "--set", "run.folder=small")
    assert cli("train", "c.yaml", "--set", "run.name=free").code == EXIT_OK

    full = cli(*arguments)

    assert full.code == EXIT_CHECKPOINT, full.stderr
    assert "Traceback" not in full.stderr
    assert "the disk is full" in full.stderr
    check_shown(full.stderr, "output.not_writable", "--resume")
    checkpoints = checkpoint.list_checkpoints(disk / "c" / "checkpoints")
    assert checkpoints != []
    for folder in checkpoints:
        checkpoint.verify(folder)
    assert list((disk / "c").rglob("*.tmp")) == []
    assert not (disk / "c" / "summary.json").exists()

    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    resumed = cli(*arguments, "--resume")
    assert resumed.code == EXIT_OK, resumed.stderr
    assert outcome(disk / "c") == outcome(world / "runs" / "free")


@pytest.mark.parametrize("leave_kib", [0, 4, 12, 20, 60])
def test_a_full_disk_for_the_record(leave_kib: int, small_disk: Mount, world: Path, cli: Cli):
    """The first file that does not fit: run.json, the event log, the log, predictions or the model."""
    disk = small_disk("small", 900)
    other = fill(disk, leave_kib)
    arguments = ("train", "c.yaml", "--set", "run.folder=small", "--set", "checkpoint={every: never, steps: null}")

    full = cli(*arguments, "--set", "evaluate.best=")

    assert full.code == EXIT_CHECKPOINT, full.stderr
    assert "Traceback" not in full.stderr
    assert "small/c" in full.stderr
    assert "full" in full.stderr or "No space left" in full.stderr
    assert not (disk / "c" / "summary.json").exists()
    assert not (disk / "c" / "model").exists()

    other.unlink()
    repeated = cli(*arguments, "--set", "evaluate.best=", "--resume")
    assert repeated.code == EXIT_OK, repeated.stderr


def test_a_full_disk_for_the_tokens(small_disk: Mount, world: Path, cli: Cli):
    disk = small_disk("small", 64)
    fill(disk, 8)

    full = cli("train", "c.yaml", "--set", "data.cache_dir=small")

    assert full.code == EXIT_DATA, full.stderr
    check_shown(full.stderr, "output.not_writable", "small")
    assert "data.cache_dir or $PARATUNE_CACHE" in full.stderr
    assert not (world / "runs").exists()
    assert [path for path in (disk / "tokens").iterdir() if path.is_dir()] == []


def test_a_full_disk_for_predictions(small_disk: Mount, world: Path, cli: Cli):
    disk = small_disk("small", 64)
    fill(disk, 4)

    for name in ("out.csv", "out.jsonl", "out.parquet"):
        full = cli("predict", "model", "--input", "data.csv", "--out", f"small/{name}", "--text", "text")
        assert full.code == EXIT_DATA, full.stderr
        assert f"small/{name} could not be written" in full.stderr
        assert "Traceback" not in full.stderr
        assert sorted(path.name for path in disk.iterdir()) == ["other.bin"]


def test_a_full_disk_for_the_report(small_disk: Mount, world: Path, cli: Cli):
    assert cli("train", "c.yaml", "--set", "train.epochs=0.5").code == EXIT_OK
    disk = small_disk("small", 64)
    fill(disk, 8)

    full = cli("report", "runs/c", "--out", "small/report")

    assert full.code not in (EXIT_OK, 1), full.stderr
    assert "Traceback" not in full.stderr
    assert "small/report" in full.stderr
