"""Lets every test import the helpers in this folder (`from tiny import tiny_model`), and hides GPUs."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Before torch is imported: the test models are so small that threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests are written for CPUs: with one visible GPU, `device: auto` would select it, and two processes would be an error.
# `make test-gpu` runs the tests that need a GPU.
if os.environ.get("PARATUNE_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is slow; this must not fail a test.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory) -> None:
    """Keep the key with which records are signed out of the state folder of whoever runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def any_code(monkeypatch) -> None:
    """Allow all code, as a command does for the configuration of the user; for tests of what a command calls."""
    monkeypatch.setattr("paratune.config.permission.is_allowed", lambda name, options=None: True)


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """Give SIGHUP its default action in a test that sends it: under nohup, child processes would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
