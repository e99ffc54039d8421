"""Files of killed compilations: stale locks and incomplete libraries."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paratune.hardware import extensions
from paratune.hardware.extensions import extensions_folder, find_locks, is_compiled


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock of an hour ago in the folder of torch."""
    path = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    return path


def test_a_lock_that_no_process_has_open_is_stale(lock: Path, tmp_path: Path):
    (build_lock,) = find_locks(tmp_path)
    assert build_lock.is_stale
    assert build_lock.process is None
    assert build_lock.describe() == f"{lock} is 3600 s old, and no process has it open"


def test_an_old_lock_that_a_process_has_open_is_not_stale(lock: Path, tmp_path: Path):
    program = "import sys; held = open(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "held\n"
        (build_lock,) = find_locks(tmp_path)
        builder.communicate("")
    assert not build_lock.is_stale
    assert build_lock.process == builder.pid
    assert f"process {builder.pid} has it open" in build_lock.describe()
    assert find_locks(tmp_path)[0].is_stale


@pytest.mark.parametrize(("age_s", "is_stale"), [(0.0, False), (extensions.GRACE_S + 5, True)], ids=["young", "old"])
def test_a_young_lock_without_owner_is_not_stale(lock: Path, tmp_path: Path, age_s: float, is_stale: bool):
    then = time.time() - age_s
    os.utime(lock, (then, then))
    assert find_locks(tmp_path)[0].is_stale is is_stale


@pytest.mark.parametrize(("age_s", "is_stale"), [(extensions.LONG_S / 2, False), (extensions.LONG_S + 60, True)])
def test_a_lock_is_stale_after_half_an_hour_where_processes_are_invisible(
    lock: Path, tmp_path: Path, age_s: float, is_stale: bool
):
    then = time.time() - age_s
    os.utime(lock, (then, then))
    assert find_locks(tmp_path, proc=tmp_path / "no proc")[0].is_stale is is_stale


def test_a_lock_on_a_shared_disk_may_belong_to_another_machine(lock: Path, monkeypatch: pytest.MonkeyPatch):
    then = time.time() - 600
    os.utime(lock, (then, then))
    monkeypatch.setattr(extensions, "describe_storage", lambda path: {"kind": "network"})
    assert not find_locks(lock.parents[2])[0].is_stale


def test_locks_of_one_extension_can_be_selected(lock: Path, tmp_path: Path):
    assert [build_lock.path for build_lock in find_locks(tmp_path, "cpu_adam")] == [lock]
    assert find_locks(tmp_path, "fused_adam") == []
    assert find_locks(tmp_path / "absent") == []


def test_the_folder_of_extensions_is_that_of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    # The other implementation: torch's own.
    from torch.utils import cpp_extension

    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert extensions_folder() == Path(cpp_extension.get_default_build_root())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert extensions_folder() == Path(cpp_extension.get_default_build_root())
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "named"))
    assert cpp_extension._get_build_directory("op", False) == str(extensions_folder() / "op")


def test_compiled_extensions_are_found(lock: Path, tmp_path: Path):
    assert not is_compiled(tmp_path, "cpu_adam")
    (lock.parent / "cpu_adam.so").touch()
    assert is_compiled(tmp_path, "cpu_adam")
    assert not is_compiled(tmp_path, "fused_adam")
