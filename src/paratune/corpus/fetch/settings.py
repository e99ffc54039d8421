"""Where the bytes of captures come from, and which are taken."""

from pydantic import Field

from paratune.config.section import PositiveFloat, Section, Text
from paratune.corpus.web.settings import Endpoint


class Fetch(Section):
    """Where the bytes of captures come from: files of this machine first, then ranges, then replay."""

    warcs: list[Text] = Field(default_factory=list)
    """WARC or ARC files in which captures of an index lie, beside index.warcs; paths or patterns."""
    ranges: Endpoint | None = None
    """Address under which a server holds the WARC files by their names, and gives ranges of bytes."""
    replay: Endpoint | None = None
    """Address of raw replay: what is asked for is ADDRESS/<timestamp>id_/<url>. Arquivo.pt:
    https://arquivo.pt/noFrame/replay."""
    nearest: bool = False
    """Whether a capture of another time stands in when the archive replays that instead; its own time is written."""
    max_payload_mib: PositiveFloat = 64.0
    """Largest document, as it is stored and unpacked; what is larger is dropped."""
    licence: Text | None = None
    """What is written as the licence of documents that name none."""
