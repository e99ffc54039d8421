"""What a test expects of an error: its code and values, never its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paratune.errors import ParatuneError


@contextmanager
def raises_code(code: str, *values: object, **facts: object) -> Iterator[pytest.ExceptionInfo[ParatuneError]]:
    """Expect the block to raise an error of paratune.

    Args:
        code: One of the codes of the error.
        values: Each is part of the error's text.
        facts: Each is a fact of the fault with that code.
    """
    with pytest.raises(ParatuneError) as raised:
        yield raised
    check_code(raised.value, code, *values, **facts)


def check_code(error: ParatuneError, code: str, *values: object, **facts: object) -> None:
    """Hold an error to its code, values and facts, as `raises_code` does."""
    assert code in error.codes, error.text()
    assert [value for value in values if str(value) not in str(error)] == [], error.text()
    found = [{name: fault.facts.get(name) for name in facts} for fault in error.faults if fault.code == code]
    assert facts in found


def check_shown(output: str, code: str, *values: object) -> None:
    """Hold what a command printed to the code of an error or warning, and to the values of its message."""
    assert f"[{code}]" in output, output
    assert [value for value in values if str(value) not in output] == [], output


def check_logged(caplog: pytest.LogCaptureFixture, code: str, *values: object) -> None:
    """Hold the log to one warning with this code, whose message has the values."""
    (record,) = [record for record in caplog.records if getattr(record, "code", None) == code]
    assert [value for value in values if str(value) not in record.getMessage()] == [], record.getMessage()
