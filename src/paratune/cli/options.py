"""Options and arguments that several commands have."""

from typing import Annotated, Literal

from cyclopts import Parameter

from paratune.errors import ConfigError

Overrides = Annotated[
    list[str] | None,
    Parameter(name="--set", negative=(), help="section.key=value, replaces a value of the file; may be repeated"),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="print the result as JSON on stdout")]
TextColumn = Annotated[str | None, Parameter(help="column of the text")]
PairColumn = Annotated[str | None, Parameter(help="column of the second text of a pair")]
LabelColumn = Annotated[str | None, Parameter(help="column of the label, target or answer")]
StartColumn = Annotated[
    str | None, Parameter(help="column of the character position at which the answer in --label starts")
]
BatchSize = Annotated[int, Parameter(help="samples of a forward pass for the longest samples; more for shorter ones")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="device")]


def some_of(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    if not names:
        raise ConfigError(f"name at least one of {what}", code="cli.argument_missing")
    return names
