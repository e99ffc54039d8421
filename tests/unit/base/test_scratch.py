import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from paratune.base.scratch import MIN_AGE_S, scratch_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from paratune.base.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _make_older(folder: Path) -> None:
    before = time.time() - 2 * MIN_AGE_S
    os.utime(folder, (before, before))


def test_the_folder_of_a_killed_process_is_deleted_by_the_next(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    with scratch_folder(tmp_path):
        assert left.exists()  # its process might not have locked it yet
    _make_older(left)
    with scratch_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_process_that_runs_stays(tmp_path: Path):
    with scratch_folder(tmp_path) as first:
        _make_older(first)
        with scratch_folder(tmp_path) as second:
            assert set(tmp_path.iterdir()) == {first, second}


def test_folders_of_others_stay(tmp_path: Path):
    other = tmp_path / "paratune-toy-me"
    other.mkdir()
    _make_older(other)
    with scratch_folder(tmp_path):
        assert other.exists()
