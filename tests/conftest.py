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


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """Give SIGHUP its default action in a test that sends it: under nohup, child processes would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
