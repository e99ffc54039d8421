"""Checks of errors in tests: code and values, never words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paratune.errors import ParatuneError


@contextmanager
def raises_code(code: str, *values: object, **facts: object) -> Iterator[pytest.ExceptionInfo[ParatuneError]]:
    """Assert that the block raises an error of paratune.

    Args:
        code: One of the codes of the error.
        values: Parts of the error's text.
        facts: Facts of the fault with that code.
    """
    with pytest.raises(ParatuneError) as raised:
        yield raised
    check_code(raised.value, code, *values, **facts)


def check_code(error: ParatuneError, code: str, *values: object, **facts: object) -> None:
    """Assert the code, values and facts of an error, as `raises_code` does."""
    assert code in error.codes, error.text()
    assert [value for value in values if str(value) not in str(error)] == [], error.text()
    matching = [{name: fault.facts.get(name) for name in facts} for fault in error.faults if fault.code == code]
    assert facts in matching


def check_shown(output: str, code: str, *values: object) -> None:
    """Assert that a command printed the code of an error or warning, and the values of its message."""
    assert f"[{code}]" in output, output
    assert [value for value in values if str(value) not in output] == [], output


def check_logged(caplog: pytest.LogCaptureFixture, code: str, *values: object) -> None:
    """Assert that the log has a warning with this code, and the values in its message."""
    messages = [record.getMessage() for record in caplog.records if getattr(record, "code", None) == code]
    assert [message for message in messages if all(str(value) in message for value in values)] != [], caplog.text
