"""What all sections of a configuration have in common: the base class and the kinds of numbers and texts."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Part = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Columnar = Text | Annotated[list[Text], Field(min_length=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST_S = 100_000_000
"""About three years: the longest duration of a setting. Sockets, locks and timers refuse much longer ones."""
Duration = Annotated[float, Field(gt=0, le=LONGEST_S)]
"""Seconds."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: frozen, strict about types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)
