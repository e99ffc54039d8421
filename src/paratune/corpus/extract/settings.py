"""Settings of the stage `extract`."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from paratune.config.section import Positive, PositiveFloat, Section, Text


class Extract(Section):
    """Extraction of texts, and its limits per document."""

    min_characters: Annotated[int, Field(ge=1)] = 50
    """Characters below which a text is dropped as short."""
    max_characters: Positive = 10_000_000
    """Characters above which a text is dropped as long."""
    max_mib: PositiveFloat = 64.0
    """Size in MiB above which a document is dropped."""
    time_s: Annotated[int, Field(ge=1, le=86_400)] = 60
    """CPU seconds that a document may take; ten times as many of wall time."""
    memory_mib: Annotated[int, Field(ge=128)] = 1024
    """MiB of address space that a document may take, besides those of the process at the start."""
    charset: Text = "windows-1252"
    """Charset of texts without a declared or detected one."""
    tika: Text | None = None
    """URL of an Apache Tika server, for documents that no library reads: http://localhost:9998."""

    @field_validator("charset")
    @classmethod
    def _is_known(cls, charset: str) -> str:
        try:
            "".encode(charset)
        except LookupError:
            raise ValueError(f"{charset} is not known; allowed: windows-1252, iso-8859-2, utf-8, ...") from None
        return charset

    @field_validator("tika")
    @classmethod
    def _is_address(cls, tika: str | None) -> str | None:
        if tika is not None:
            parts = urlsplit(tika)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{tika} is not a URL; allowed: http://HOST:PORT or https://HOST:PORT")
        return tika
