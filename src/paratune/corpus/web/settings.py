"""Settings of requests to archives on the network, and of the servers that list captures."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paratune.config.section import Duration, Positive, Section, Text
from paratune.corpus.rate import LONGEST_HOLD_S

Endpoint = Annotated[str, Field(pattern=r"""^https?://[!"$-.0->A-~]+(/[!"$->@-~]*)?$""")]
"""URL of a service, in ASCII, without user name and password."""


class Network(Section):
    """Requests to archives on the network."""

    contact: Annotated[str, Field(pattern=r"^[!-~][ -~]*$")] | None = None
    """Your e-mail address or web page, in ASCII, sent with each request, so that the archive can contact you."""
    requests_per_minute: Annotated[int, Field(ge=2)] = 200
    """Maximum number of requests to an archive in any minute, from all processes of this user on this machine.

    Arquivo.pt permanently blocks addresses with more than 250; the default allows for requests that arrive up to 15
    seconds late.
    """
    connections: Positive = 4
    """Parallel requests of one process."""
    tries: Positive = 6
    """Maximum number of attempts after status 429, 500, 502, 503 or 504, or a connection error."""
    first_wait_s: Duration = 2.0
    """Seconds before the second attempt, doubled for each further one. Retry-After of the archive has priority."""
    timeout_s: Duration = 60.0
    """Maximum seconds without data during a response."""
    deadline_s: Duration = 600.0
    """Maximum seconds for a whole response."""
    max_hold_s: Annotated[float, Field(gt=0, le=LONGEST_HOLD_S)] = 3600.0
    """Longest Retry-After to wait for, at most a day; a longer one ends the command, which can be repeated later."""
    limit_folder: Text | None = None
    """Folder of the files with which processes share the limit; by default in the cache of this user."""


Stamp = Annotated[int, Field(ge=1000, le=99991231235959)]
"""A moment in UTC of 4 to 14 digits: 1996, 199610, 19961013, ... 19961013180344."""
WindowLength = Literal["year", "month", "day", "whole"]
ARQUIVO = "https://arquivo.pt"


def first_moment(stamp: int) -> datetime:
    """Return the start of the period of a stamp.

    Raises:
        ValueError: The stamp is not a date.
    """
    digits = str(stamp)
    if len(digits) % 2:
        raise ValueError(f"{stamp} has {len(digits)} digits; write 1996, 199610, 19961013, and so on up to seconds")
    try:
        return datetime.strptime(digits + "00000101000000"[len(digits) :], "%Y%m%d%H%M%S")
    except ValueError:
        raise ValueError(
            f"{stamp} is not a date; write year, month, day, hour, minute, second without spaces"
        ) from None


def after(moment: datetime, num_digits: int) -> datetime:
    """Return the start of the next year (4 digits), month (6), day (8), hour, minute or second."""
    if num_digits == 4:
        return datetime(moment.year + 1, 1, 1)
    if num_digits == 6:
        return datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1)
    units = {8: timedelta(days=1), 10: timedelta(hours=1), 12: timedelta(minutes=1), 14: timedelta(seconds=1)}
    return moment + units[num_digits]


class Windowed(Section):
    """A period, requested in windows."""

    from_: Stamp | None = Field(default=None, alias="from")
    """Start, as 1996 or 19961013 or with hours, minutes and seconds."""
    to: Stamp | None = None
    """End, in the same form: 1999 is the end of that year."""
    window: WindowLength = "year"
    """Period of one request. Each window is a shard, which is kept when the command is interrupted. `whole` needs no
    from and to."""

    @model_validator(mode="after")
    def _check_span(self) -> "Windowed":
        if self.window != "whole" and (self.from_ is None or self.to is None):
            raise ValueError(f"window: {self.window} needs from and to")
        first, last = (None if stamp is None else first_moment(stamp) for stamp in (self.from_, self.to))
        if first is not None and last is not None and first > last:
            raise ValueError(f"from ({self.from_}) is after to ({self.to})")
        return self


class CdxServer(Windowed):
    """A CDX server: that of Arquivo.pt, of pywb, or of OpenWayback."""

    kind: Literal["cdx"] = "cdx"
    endpoint: Endpoint = f"{ARQUIVO}/wayback/cdx"
    """URL of the service."""
    urls: Annotated[list[Text], Field(min_length=1)]
    """URLs whose captures are requested, or, with `match`, sites."""
    match: Literal["exact", "prefix", "host", "domain"] = "exact"
    """Which URLs match: the same one, those that begin with it, its host, or its host and subdomains."""
    filters: list[Text] = Field(default_factory=list)
    """Filters in the server's syntax: "=status:200", "~mime:text/.*" for pywb; "statuscode:200" for OpenWayback."""


class TextSearchServer(Windowed):
    """The full-text search of Arquivo.pt."""

    kind: Literal["textsearch"] = "textsearch"
    endpoint: Endpoint = f"{ARQUIVO}/textsearch"
    """URL of the service."""
    queries: Annotated[list[Text], Field(min_length=1)]
    """Search words; phrases in quotes; excluded words with a leading hyphen."""
    site: Text | None = None
    """Search only in this site."""
    types: list[Text] = Field(default_factory=list)
    """Search only documents of these types, one request for each: html, pdf, doc, rtf, txt."""
    collections: list[Text] = Field(default_factory=list)
    """Search only in these collections: EAWP1, AWP17."""
    per_site: Positive | None = None
    """Maximum number of results per site in a window. By default, one result per page."""
    items_per_request: Annotated[int, Field(ge=1, le=500)] = 500
    """Results per request; Arquivo.pt returns at most 500."""


class VersionsServer(Windowed):
    """The URL search of Arquivo.pt: all versions of pages."""

    kind: Literal["versions"] = "versions"
    endpoint: Endpoint = f"{ARQUIVO}/textsearch"
    """URL of the service."""
    urls: Annotated[list[Text], Field(min_length=1)]
    """URLs of the pages."""
    items_per_request: Annotated[int, Field(ge=1, le=500)] = 500
    """Results per request; Arquivo.pt returns at most 500."""


Server = Annotated[CdxServer | TextSearchServer | VersionsServer, Field(discriminator="kind")]
