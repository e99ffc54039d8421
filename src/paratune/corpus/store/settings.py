"""Settings of the stage `store`."""

from typing import Literal

from pydantic import Field

from paratune.config.section import Section, Share

Export = Literal["parquet", "jsonl", "text"]


class Store(Section):
    """The finished corpus: tables, database, and exported texts for training."""

    validation: Share = 0.01
    """Share of the documents in the validation split, chosen by the SHA-256 of their text."""
    unit: Literal["documents", "sentences"] = "documents"
    """Unit of a row or a line of the exported texts."""
    exports: list[Export] = Field(default_factory=lambda: list[Export](["parquet"]))
    """Formats of the exported texts; none when empty."""
    database: bool = True
    """Whether corpus.duckdb is made: all tables in one file of about the same size."""
