"""Commands set up the log of their process, and these tests call them in one process."""

from collections.abc import Iterator

import pytest

from paratune.console import log_as_before


@pytest.fixture(autouse=True)
def log_of_one_command() -> Iterator[None]:
    """Restore the log after each test: warnings of one command would be in the JSON document of the next."""
    with log_as_before():
        yield
