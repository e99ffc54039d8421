"""Base class of all sections of a configuration, and types of numbers and texts."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Part = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Columnar = Text | Annotated[list[Text], Field(min_length=1)]


def _column_name(value: Any) -> Any:
    """Return the name of a column by number, as in a table without a header."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("columns are counted from 1")
        return str(value)
    return value


Column = Annotated[str, Field(min_length=1), BeforeValidator(_column_name, json_schema_input_type=str | int)]
"""A column by its name or, in a file without a header, by its number, counted from 1."""
Joined = Column | Annotated[list[Column], Field(min_length=1)]
"""Columns whose texts are joined."""
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST_S = 100_000_000
"""Longest duration of a setting, about three years. Sockets, locks and timers refuse much longer ones."""
Duration = Annotated[float, Field(gt=0, le=LONGEST_S)]
"""Seconds."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _ascending(numbers: list[Any]) -> list[Any]:
    if numbers != sorted(set(numbers)):
        raise ValueError("ascending, each number once")
    return numbers


Span = Annotated[list[Finite], Field(min_length=2, max_length=2), AfterValidator(_ascending)]
"""A lower and then a higher number."""
LayerNumbers = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_ascending)]
"""Layers of a model, counted from 0."""


class Section(BaseModel):
    """Base of all sections: frozen, with strict types, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


CodeName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""package.module:attribute."""


class OwnCode(Section):
    """Your own function, with its full name; see docs/howto/extend.md."""

    function: CodeName
    """package.module:function."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""


class OwnOptimizer(OwnCode):
    """Your own optimizer: a class or a function, called with the parameter groups; see docs/howto/extend.md."""

    elementwise: bool = False
    """Whether the update of a number depends only on this number, its gradient and its own states, as in Adam and SGD;
    strategies that shard weights need it."""
    state_bytes: Annotated[int, Field(ge=0)] = 8
    """Bytes of the optimizer states for each trained number, for `paratune plan`; 8 are two moments in float32."""
