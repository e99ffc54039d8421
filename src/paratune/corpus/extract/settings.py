"""The settings of the stage that takes texts out of documents."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from paratune.config.section import Positive, PositiveFloat, Section, Text


class Extract(Section):
    """How texts are taken out of documents, and what one document may cost."""

    min_characters: Annotated[int, Field(ge=1)] = 50
    """Characters below which a text is dropped as short."""
    max_characters: Positive = 10_000_000
    """Characters above which a text is dropped as long."""
    max_mib: PositiveFloat = 64.0
    """MiB above which a document is dropped unread."""
    time_s: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds of processor time that a document may take; of the clock, ten times as many."""
    memory_mib: Annotated[int, Field(ge=128)] = 1024
    """MiB of address space that a document may take beyond what its process has at the start."""
    charset: Text = "windows-1252"
    """Charset of texts that declare none and of which none can be told."""
    tika: Text | None = None
    """Address of an Apache Tika server, for the kinds of documents that nothing else reads: http://localhost:9998."""

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
                raise ValueError(f"{tika} is no address; allowed: http://HOST:PORT or https://HOST:PORT")
        return tika
