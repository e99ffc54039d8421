"""One document before it is read, and what comes out of it: its text, or why there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """What is known of a document before it is read."""

    payload: bytes
    url: str
    mime: str | None
    """As the index has it."""
    content_type: str | None
    """The header of HTTP."""


@dataclass(frozen=True)
class Kept:
    """What is kept of texts."""

    min_characters: int
    max_characters: int
    charset: str
    """Of what declares none and of which none can be told."""


@dataclass(frozen=True)
class Extracted:
    """The text of a document."""

    mime: str
    """As its first bytes say."""
    text: str
    """Paragraphs, a line each."""
    extractor: str
    """Library that read it."""
    title: str | None = None
    charset: str | None = None
    """Of the encoding standard (windows-1252), of texts and HTML."""
    licence: str | None = None
    """Address that the document itself links as its licence."""
    robots: str | None = None
    """What the document itself says to robots."""


@dataclass(frozen=True)
class Refused:
    """A document of which no text is kept."""

    reason: str
    """A few words that are counted."""
    detail: str
    """What was found."""
    mime: str | None = None
    """As its first bytes say, where they were read."""
