"""The compilation that DeepSpeed's AdamW needs: announced, done first by one process, never waited for in vain.

Nothing is compiled here, and DeepSpeed is not needed.
"""

import logging
import os
import threading
import time
from pathlib import Path

import pytest
from patience import wait_for
from raised import check_code, raises_code

from paratune.errors import LaunchError
from paratune.strategies import deepspeed_build
from paratune.strategies.deepspeed_build import prebuild


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(deepspeed_build, "POLL_S", 0.01)
    caplog.set_level(logging.INFO, "paratune")
    (tmp_path / "cpu_adam").mkdir()
    return tmp_path


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_it_is_announced_before_it_begins(folder: Path, caplog: pytest.LogCaptureFixture):
    said_before = []
    prebuild(lambda: said_before.extend(messages(caplog)), local_rank=0)
    assert said_before == [f"compiling DeepSpeed's cpu_adam into {folder}: a few minutes, only once"]
    assert messages(caplog)[1].startswith("DeepSpeed's cpu_adam is ready after ")


def test_what_is_compiled_is_only_loaded(folder: Path, caplog: pytest.LogCaptureFixture):
    (folder / "cpu_adam" / "cpu_adam.so").touch()
    prebuild(lambda: None, local_rank=1)
    assert not any("compiling" in message for message in messages(caplog))


def test_the_first_process_of_a_machine_goes_before_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for local_rank, expected in ((0, ["load", "meet", "meet"]), (1, ["meet", "load", "meet"])):
        happened: list[str] = []
        monkeypatch.setattr(
            deepspeed_build, "reduce_over_ranks", lambda value, op, to=happened: (to.append("meet"), value)[1]
        )
        prebuild(lambda to=happened: to.append("load"), local_rank=local_rank)
        assert happened == expected


def test_a_lock_that_was_left_behind_is_named(folder: Path):
    lock = folder / "cpu_adam" / "lock"
    lock.touch()
    then = time.time() - 60
    os.utime(lock, (then, then))
    with pytest.raises(LaunchError) as caught:
        prebuild(lambda: pytest.fail("torch would wait for ever"), local_rank=0)
    assert str(lock) in str(caught.value)
    check_code(caught.value, "deepspeed.stale_lock")


def test_another_process_that_compiles_is_waited_for(folder: Path, caplog: pytest.LogCaptureFixture):
    lock = folder / "cpu_adam" / "lock"

    def end_it() -> None:
        wait_for(lambda: "waiting" in caplog.text)
        lock.unlink()

    with lock.open("w"):
        thread = threading.Thread(target=end_it)
        thread.start()
        prebuild(lambda: None, local_rank=0)
        assert not lock.exists()
        thread.join()
    (said,) = (message for message in messages(caplog) if "waiting" in message)
    assert f"process {os.getpid()} has it open" in said


def test_a_compiler_that_fails_is_told_with_the_way_out(folder: Path):
    def fail() -> None:
        raise RuntimeError("ninja: error: no g++")

    with raises_code("deepspeed.compile", "cpu_adam"):
        prebuild(fail, local_rank=0)


def test_a_failure_elsewhere_ends_this_rank_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deepspeed_build, "reduce_over_ranks", lambda value, op: value + 1)
    with raises_code("deepspeed.compile"):
        prebuild(lambda: None, local_rank=1)
