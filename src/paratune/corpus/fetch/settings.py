"""Settings of the stage `fetch`."""

from pydantic import Field

from paratune.config.section import PositiveFloat, Section, Text
from paratune.corpus.web.settings import Endpoint


class Fetch(Section):
    """Sources of the content of captures: files on this machine first, then ranges, then replay."""

    warcs: list[Text] = Field(default_factory=list)
    """WARC or ARC files with captures of an index, besides index.warcs; paths or patterns."""
    ranges: Endpoint | None = None
    """URL of a folder with the WARC files on a server that supports byte ranges."""
    replay: Endpoint | None = None
    """URL of raw replay; requests are URL/<timestamp>id_/<url>. Arquivo.pt: https://arquivo.pt/noFrame/replay."""
    nearest: bool = False
    """Whether a capture of another time is accepted if the archive sends one; its own time is recorded."""
    max_payload_mib: PositiveFloat = 64.0
    """Maximum size of a document, stored or decompressed; larger ones are dropped."""
    licence: Text | None = None
    """Licence to record for documents without one."""
