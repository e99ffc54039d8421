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


def test_a_compilation_is_announced_first(folder: Path, caplog: pytest.LogCaptureFixture):
    said_before = []
    prebuild(lambda: said_before.extend(messages(caplog)), local_rank=0)
    assert said_before == [f"compiling DeepSpeed's cpu_adam into {folder}: a few minutes, only once"]
    assert messages(caplog)[1].startswith("DeepSpeed's cpu_adam is ready after ")


def test_a_compiled_extension_is_only_loaded(folder: Path, caplog: pytest.LogCaptureFixture):
    (folder / "cpu_adam" / "cpu_adam.so").touch()
    prebuild(lambda: None, local_rank=1)
    assert not any("compiling" in message for message in messages(caplog))


def test_the_first_process_of_a_machine_compiles_before_the_others_load(folder: Path, monkeypatch: pytest.MonkeyPatch):
    for local_rank, expected in ((0, ["load", "meet", "meet"]), (1, ["meet", "load", "meet"])):
        happened: list[str] = []
        monkeypatch.setattr(
            deepspeed_build, "reduce_over_ranks", lambda value, op, to=happened: (to.append("meet"), value)[1]
        )
        prebuild(lambda to=happened: to.append("load"), local_rank=local_rank)
        assert happened == expected


def test_the_lock_of_a_killed_compilation_is_an_error(folder: Path):
    lock = folder / "cpu_adam" / "lock"
    lock.touch()
    then = time.time() - 60
    os.utime(lock, (then, then))
    with pytest.raises(LaunchError) as caught:
        prebuild(lambda: pytest.fail("torch would wait for ever"), local_rank=0)
    assert str(lock) in str(caught.value)
    check_code(caught.value, "deepspeed.compile")


def test_a_process_waits_for_another_one_that_compiles(folder: Path, caplog: pytest.LogCaptureFixture):
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
    (message_text,) = (message for message in messages(caplog) if "waiting" in message)
    assert f"process {os.getpid()} has it open" in message_text


def test_a_failed_compilation_is_an_error_with_a_remedy(folder: Path):
    def fail() -> None:
        raise RuntimeError("ninja: error: no g++")

    with raises_code("deepspeed.compile", "cpu_adam"):
        prebuild(fail, local_rank=0)


def test_a_failure_of_another_rank_ends_this_rank(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deepspeed_build, "reduce_over_ranks", lambda value, op: value + 1)
    with raises_code("deepspeed.compile", name="cpu_adam"):
        prebuild(lambda: None, local_rank=1)
