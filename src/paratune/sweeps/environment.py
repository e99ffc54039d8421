"""Environment variables in a matrix file: `env: {NAME: value}`, and axes called `env.NAME`."""

from collections.abc import Mapping
from typing import Any

from paratune.config.plain import one_line
from paratune.config.validate import describe_value
from paratune.hardware.environment import RECORD_VARIABLE, record_words, why_not_to_set
from paratune.sweeps.matrix_file import MatrixFile

ENV = "env"
Environment = dict[str, str | None]
"""By name; None unsets a variable that runs would inherit."""


def variable_of(key: str) -> str | None:
    """Return the variable that an axis `env.NAME` sets; None for other axes."""
    return key.partition(".")[2] if key.startswith(f"{ENV}.") else None


def read_environment(file: MatrixFile, content: Any, at: str) -> Environment:
    """Return the variables of `env`."""
    if content is None:
        return {}
    if not isinstance(content, dict) or not content:
        file.refuse(
            f"{at} is {describe_value(content)}; allowed: a mapping of variables to values, such as "
            "{NCCL_DEBUG: WARN}",
            at,
        )
        return {}
    return {str(name): read_variable(file, str(name), value, f"{at}.{name}") for name, value in content.items()}


def read_variable(file: MatrixFile, name: str, value: Any, at: str) -> str | None:
    """Return the value of a variable as text, None to unset it; problems are added to `file`."""
    reason = why_not_to_set(name)
    if reason is not None:
        file.refuse(f"{at}: {one_line(name)} {reason}", at)
        return None
    if isinstance(value, bool):
        file.refuse(
            f'{at} is {describe_value(value)}, which some programs write "1" and some "true"; put it in quotes', at
        )
        return None
    if value is None or isinstance(value, str | int | float):
        text = None if value is None else str(value)
        if text is not None and not text.isprintable():
            file.refuse(f"{at} has a line break or a control character; allowed: one line of text", at)
        return text
    file.refuse(f"{at} is {describe_value(value)}; allowed: text, a number, or null to unset it", at)
    return None


def for_a_run(environment: Mapping[str, str | None]) -> Environment:
    """Return the variables of a run, and one with their names, so that its record contains all of them."""
    if not environment:
        return {}
    return {**environment, RECORD_VARIABLE: record_words(environment)}
