"""A part of a report under its heading: tables, figures and texts that every format takes in the same order."""

from dataclasses import dataclass

from paratune.report.canvas import Drawing
from paratune.report.listing import Listing
from paratune.report.tabular import Table

Part = Table | Drawing | Listing


@dataclass(frozen=True)
class ReportSection:
    """A part of the report under its heading."""

    key: str
    heading: str
    parts: tuple[Part, ...]
    is_short: bool = True
    """Whether the terminal shows its tables."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(part for part in self.parts if isinstance(part, Table))

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        return tuple(part for part in self.parts if isinstance(part, Drawing))
