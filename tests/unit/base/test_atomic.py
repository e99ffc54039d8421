"""Files and folders are replaced whole, and only after their content is on the disk."""

import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from paratune.base import atomic

SOURCE = Path(atomic.__file__).parents[1]
OWN_WRITERS = {
    "base/atomic.py",
    "corpus/index/run.py",  # moves a folder away and back
    "data/token_store.py",  # a folder that stays open for several calls
    "data/tokens.py",  # deletes what that one left
    "reports/write.py",  # replaces several files at once
    "records/own.py",  # a key that never replaces one: a link to a new file
    "records/run_folder.py",  # recognises temporary names
}
"""Modules that know temporary names; all others write through `atomic`."""


class Calls:
    """Records synchronizations and renames in the order in which they happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        fsync, replace, rename = os.fsync, Path.replace, Path.rename

        def record_fsync(descriptor: int) -> None:
            name = Path(f"/proc/self/fd/{descriptor}").readlink().name
            self.made.append(("sync", re.sub(rf"\.{os.getpid()}\b", "", name)))
            fsync(descriptor)

        def record_replace(path: Path, target: Path) -> Path:
            self.made.append(("rename", target.name))
            return replace(path, target)

        def record_rename(path: Path, target: Path) -> Path:
            self.made.append(("rename", target.name))
            return rename(path, target)

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(Path, "replace", record_replace)
        monkeypatch.setattr(Path, "rename", record_rename)


def test_a_file_is_synchronized_before_its_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    atomic.write_text(tmp_path / "a.txt", "ü")
    assert calls.made == [("sync", ".a.txt.tmp"), ("rename", "a.txt"), ("sync", tmp_path.name)]
    assert (tmp_path / "a.txt").read_bytes() == "ü".encode()


def test_a_file_that_a_power_cut_makes_useless_is_not_synchronized(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    with atomic.replace_file(tmp_path / "a.txt", is_durable=False) as temporary:
        temporary.write_text("1")
    assert calls.made == [("rename", "a.txt")]


def test_all_files_of_a_folder_are_synchronized_before_its_rename(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    with atomic.replace_folder(tmp_path / "model") as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "weights").write_bytes(b"1")
    *before, rename, last = calls.made
    assert sorted(before) == [("sync", ".model.tmp"), ("sync", "inner"), ("sync", "weights")]
    assert (rename, last) == (("rename", "model"), ("sync", tmp_path.name))


def test_a_folder_may_have_folders_that_cannot_be_synchronized_and_links_to_nothing(tmp_path, monkeypatch):
    real = atomic.sync

    def sync(path):
        if path.is_dir():
            raise OSError(errno.EINVAL, "some network file systems")
        real(path)

    monkeypatch.setattr(atomic, "sync", sync)
    with atomic.replace_folder(tmp_path / "model") as temporary:
        (temporary / "inner").mkdir()
        (temporary / "link").symlink_to("nothing")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["inner", "link"]


def test_an_exception_keeps_the_old_content(tmp_path):
    (tmp_path / "a.txt").write_text("before")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("before")
    with suppress(KeyError), atomic.replace_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("after")
        raise KeyError
    with suppress(KeyError), atomic.replace_folder(tmp_path / "model") as temporary:
        (temporary / "weights").write_text("after")
        raise KeyError
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "model" / "weights").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "model"]


def test_a_folder_is_replaced_whole(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    with atomic.replace_folder(tmp_path / "model") as temporary:
        (temporary / "new").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_must_be_new_is_not_replaced(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "mine").touch()
    with pytest.raises(OSError, match="not empty"), atomic.replace_folder(tmp_path / "tokenizer", is_new=True):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["tokenizer", "mine"]


@pytest.mark.parametrize("when", ["in the block", "before the rename"])
def test_a_killed_process_leaves_the_old_file_and_a_temporary_one_that_is_deleted_later(tmp_path, when):
    (tmp_path / "a.txt").write_text("before")
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    code = f"""
import os, signal
from pathlib import Path
from paratune.base import atomic
if {when == "before the rename"}:
    Path.replace = lambda *_: {kill}
with atomic.replace_file(Path({str(tmp_path / "a.txt")!r})) as temporary:
    temporary.write_text("after")
    if {when == "in the block"}:
        {kill}
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / ".model.99999999.tmp").mkdir()
    (tmp_path / ".model.99999999.tmp" / "weights").touch()
    (tmp_path / ".hidden").touch()
    atomic.delete_remains(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a.txt"]


DEAD = 99_999_999
"""More than the largest process number that Linux gives."""


def test_the_next_writer_deletes_files_of_a_killed_process(tmp_path):
    for name in ("out[1].csv", "model"):
        (tmp_path / f".{name}.{DEAD}.tmp").touch()
    (tmp_path / f".model.{DEAD}.old.tmp").mkdir()
    remaining = [f".out.csv.{DEAD}.tmp", f".out[1].csv.more.{DEAD}.tmp", ".out[1].csv.mine.tmp"]
    for name in remaining:
        (tmp_path / name).touch()
    atomic.write_text(tmp_path / "out[1].csv", "new")
    with atomic.replace_folder(tmp_path / "model"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*remaining, "model", "out[1].csv"])


def test_a_folder_that_was_moved_aside_is_back_before_it_is_replaced(tmp_path):
    old = tmp_path / f".model.{DEAD}.old.tmp"
    old.mkdir()
    (old / "weights").write_text("before")
    with suppress(KeyError), atomic.replace_folder(tmp_path / "model"):
        raise KeyError
    assert (tmp_path / "model" / "weights").read_text() == "before"


def test_a_folder_is_deleted_with_the_rest_of_an_earlier_try(tmp_path):
    for name in ("stage", f".stage.{DEAD}.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    atomic.delete_folder(tmp_path / "stage")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_deleted_atomically(tmp_path, monkeypatch):
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "part").touch()

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(atomic.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            atomic.delete_folder(tmp_path / "stage")
    assert not (tmp_path / "stage").exists()
    atomic.delete_remains(tmp_path, is_locked=True)
    assert list(tmp_path.iterdir()) == []


def test_only_one_module_writes_temporary_files():
    writers = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if '.tmp"' in path.read_text()}
    assert writers <= OWN_WRITERS


def test_files_of_a_running_process_are_not_deleted(tmp_path):
    running = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        (tmp_path / f".a.txt.{running.pid}.tmp").touch()
        atomic.delete_remains(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        running.kill()
        running.wait()
    atomic.delete_remains(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_a_folder_that_could_not_be_replaced_gets_its_name_back(tmp_path, monkeypatch, error):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name.endswith(f".{os.getpid()}.tmp"):
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(type(error)), atomic.replace_folder(tmp_path / "model"):
        pass
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["old"]


def test_a_folder_whose_replacement_was_killed_gets_its_name_back(tmp_path):
    (tmp_path / ".model.99999999.old.tmp").mkdir()
    (tmp_path / ".model.99999999.old.tmp" / "old").touch()
    (tmp_path / ".model.99999999.tmp").mkdir()
    atomic.delete_remains(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["model", "model/old"]


MODES = """
import os, stat, sys
from pathlib import Path
from paratune.base.atomic import replace_file, replace_folder
os.umask(int(sys.argv[2], 8))
here = Path(sys.argv[1])
with replace_folder(here / "folder") as folder:
    for name, mode in (("private", 0o600), ("open", 0o666), ("program", 0o700)):
        (folder / name).touch()
        (folder / name).chmod(mode)
with replace_file(here / "file") as path:
    path.touch()
    path.chmod(0o600)
names = ("folder/private", "folder/open", "folder/program", "file")
print(*(format(stat.S_IMODE((here / name).stat().st_mode), "o") for name in names))
"""


@pytest.mark.parametrize(
    ("umask", "modes"),
    [("022", "644 644 744 644"), ("002", "664 664 764 664"), ("077", "600 600 700 600"), ("000", "666 666 766 666")],
)
def test_files_of_all_libraries_have_the_mode_of_the_umask(tmp_path, umask, modes):
    done = subprocess.run([sys.executable, "-c", MODES, tmp_path, umask], capture_output=True, text=True)
    assert done.stdout.strip() == modes, done.stderr
