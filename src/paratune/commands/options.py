"""Types and checks of options that several commands have."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from paratune.errors import ConfigError

Overrides = Annotated[
    Sequence[str], Parameter(name="--set", help="section.key=value, replaces a value of the file; may be repeated")
]
Json = Annotated[bool, Parameter(help="print the result as JSON on stdout")]
RunCode = Annotated[bool, Parameter(help="run Python code that does not come with paratune")]
TextColumn = Annotated[str | None, Parameter(help="column of the text")]
PairColumn = Annotated[str | None, Parameter(help="column of the second text of a pair")]
LabelColumn = Annotated[str | None, Parameter(help="column of the label, target or answer")]
BatchSize = Annotated[int, Parameter(help="samples of a forward pass for the longest samples; more for shorter ones")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="device")]
Margins = Annotated[
    Sequence[str],
    Parameter(name="--margin", help="difference that counts as equal, MEASURE=AMOUNT or PERCENT%: f1=0.01,speed=3%"),
]


def shown_default(value: Any) -> str | None:
    """Return a default as `--help` shows it; None when the option is not set by default."""
    return None if value in (None, ()) or value is False else str(value)


def require_some(names: Sequence[str], kinds: str) -> None:
    """Raise a `ConfigError` when a command line names nothing."""
    if not names:
        raise ConfigError(f"name at least one of {kinds}", code="cli.argument_missing")
