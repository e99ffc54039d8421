"""Unit tests run commands and trainings in one process, and each of these sets up the log of its process."""

import logging
import os
from collections.abc import Iterator

import pytest

from paratune.console import log_as_before


@pytest.fixture(autouse=True)
def log_of_one_command() -> Iterator[None]:
    """Begin each test without handlers: a warning of one command would be in the JSON document of the next."""
    logger = logging.getLogger("paratune")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    with log_as_before():
        yield


@pytest.fixture(autouse=True)
def _paths_of_children() -> Iterator[None]:
    """Remove what `cli.main` sets for its process: scripts that later tests start import from their own folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)
