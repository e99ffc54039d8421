"""Input and results of extraction: a document, its text, or the reason why there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A document to extract."""

    payload: bytes
    url: str
    mime: str | None
    """MIME type in the index."""
    content_type: str | None
    """HTTP header."""


@dataclass(frozen=True)
class TextLimits:
    """Limits of the length of texts, and the fallback charset."""

    min_characters: int
    max_characters: int
    charset: str
    """Charset of texts without a declared or detected one."""


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
    licence: str | None = None
    """URL that the document links as its licence."""
    robots: str | None = None
    """Directives for robots in the document."""


@dataclass(frozen=True)
class NoText:
    """The reason why a document has no text."""

    reason: str
    """A few words; documents are counted by reason."""
    detail: str
    """The offending value."""
    mime: str | None = None
    """MIME type by the first bytes, if known."""
