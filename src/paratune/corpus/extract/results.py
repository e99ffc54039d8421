"""Results of extraction: the text of a document, or the reason why there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExtractedText:
    """The text of a document."""

    mime: str
    """MIME type by the first bytes."""
    text: str
    """A paragraph per line."""
    extractor: str
    """Library that extracted it."""
    title: str | None = None
    charset: str | None = None
    """Name in the Encoding standard (windows-1252), for plain text and HTML."""


@dataclass(frozen=True)
class NoText:
    """The reason why a document has no text."""

    reason: str
    """A few words; documents are counted by reason."""
    detail: str
    """The offending value."""
