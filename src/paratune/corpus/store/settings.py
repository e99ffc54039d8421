"""The settings of the finished corpus."""

from typing import Literal

from pydantic import Field

from paratune.config.section import Section, Share

Export = Literal["parquet", "jsonl", "text"]


class Store(Section):
    """The finished corpus: its tables, its database, and its texts as training reads them."""

    validation: Share = 0.01
    """Share of the documents that is kept for validation, chosen by the SHA-256 of their text."""
    unit: Literal["documents", "sentences"] = "documents"
    """What a row or a line of the exported texts is."""
    exports: list[Export] = Field(default_factory=lambda: list[Export](["parquet"]))
    """Formats of the exported texts; none when empty."""
    database: bool = True
    """Whether corpus.duckdb is made: all tables in one file, which takes about as much room as they do."""
