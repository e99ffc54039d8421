"""Servers that are asked which captures they hold."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paratune.config.section import Positive, Section, Text
from paratune.corpus.web.settings import Endpoint

Stamp = Annotated[int, Field(ge=1000, le=99991231235959)]
"""A moment in UTC of 4 to 14 digits: 1996, 199610, 19961013, ... 19961013180344."""
WindowLength = Literal["year", "month", "day", "whole"]
ARQUIVO = "https://arquivo.pt"


def first_moment(stamp: int) -> datetime:
    """Return the beginning of what a stamp means.

    Raises:
        ValueError: It means no moment.
    """
    digits = str(stamp)
    if len(digits) % 2:
        raise ValueError(f"{stamp} has {len(digits)} digits; write 1996, 199610, 19961013, and so on up to seconds")
    try:
        return datetime.strptime(digits + "00000101000000"[len(digits) :], "%Y%m%d%H%M%S")
    except ValueError:
        raise ValueError(f"{stamp} is no moment; write year, month, day, hour, minute, second without spaces") from None


def after(moment: datetime, num_digits: int) -> datetime:
    """Return the beginning of the next year (4 digits), month (6), day (8), hour, minute or second."""
    if num_digits == 4:
        return datetime(moment.year + 1, 1, 1)
    if num_digits == 6:
        return datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1)
    units = {8: timedelta(days=1), 10: timedelta(hours=1), 12: timedelta(minutes=1), 14: timedelta(seconds=1)}
    return moment + units[num_digits]


class Windowed(Section):
    """A span of time, asked for piece by piece."""

    from_: Stamp | None = Field(default=None, alias="from")
    """First moment, as 1996 or 19961013 or with hours, minutes and seconds."""
    to: Stamp | None = None
    """Last moment, in the same form: 1999 is the end of that year."""
    window: WindowLength = "year"
    """What is asked for at once; each is a shard, which is kept when the command is killed. `whole` needs no from and
    to."""

    @model_validator(mode="after")
    def _check_span(self) -> "Windowed":
        if self.window != "whole" and (self.from_ is None or self.to is None):
            raise ValueError(f"window: {self.window} needs from and to")
        first, last = (None if each is None else first_moment(each) for each in (self.from_, self.to))
        if first is not None and last is not None and first > last:
            raise ValueError(f"from ({self.from_}) is after to ({self.to})")
        return self


class CdxServer(Windowed):
    """A CDX server: that of Arquivo.pt, of pywb, or of OpenWayback."""

    kind: Literal["cdx"] = "cdx"
    endpoint: Endpoint = f"{ARQUIVO}/wayback/cdx"
    """Address of the service."""
    urls: Annotated[list[Text], Field(min_length=1)]
    """Addresses whose captures are asked for, or, with `match`, sites."""
    match: Literal["exact", "prefix", "host", "domain"] = "exact"
    """What an address stands for: itself, all that begins with it, its host, or its host and those below."""
    filters: list[Text] = Field(default_factory=list)
    """Filters in the server's own form: "=status:200", "~mime:text/.*" for pywb; "statuscode:200" for OpenWayback."""


class TextSearchServer(Windowed):
    """The full-text search of Arquivo.pt."""

    kind: Literal["textsearch"] = "textsearch"
    endpoint: Endpoint = f"{ARQUIVO}/textsearch"
    """Address of the service."""
    queries: Annotated[list[Text], Field(min_length=1)]
    """Words to search for; in quotes, phrases; with a hyphen before, words that must not be there."""
    site: Text | None = None
    """Search in this site alone."""
    types: list[Text] = Field(default_factory=list)
    """Search documents of these types alone, each by itself: html, pdf, doc, rtf, txt."""
    collections: list[Text] = Field(default_factory=list)
    """Search in these collections alone: EAWP1, AWP17."""
    per_site: Positive | None = None
    """Most answers of one site, out of all answers of a window. Without it, of one page one."""
    items_per_request: Annotated[int, Field(ge=1, le=500)] = 500
    """Answers of one request; Arquivo.pt gives at most 500."""


class VersionsServer(Windowed):
    """The search by URL of Arquivo.pt: all versions of pages."""

    kind: Literal["versions"] = "versions"
    endpoint: Endpoint = f"{ARQUIVO}/textsearch"
    """Address of the service."""
    urls: Annotated[list[Text], Field(min_length=1)]
    """Addresses of the pages."""
    items_per_request: Annotated[int, Field(ge=1, le=500)] = 500
    """Answers of one request; Arquivo.pt gives at most 500."""


Server = Annotated[CdxServer | TextSearchServer | VersionsServer, Field(discriminator="kind")]
