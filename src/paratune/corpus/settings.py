"""Reads the settings of a corpus, a YAML file with a section for each stage."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from paratune.config.problems import Problem
from paratune.config.section import Part, Positive, PositiveFloat, Section, Share, Text
from paratune.config.section_file import read_section_file
from paratune.corpus.clean.settings import Clean, StepName
from paratune.corpus.web.settings import Endpoint, Network, Server

MIMES = [
    "text/html",
    "application/xhtml+xml",
    "text/plain",
    "application/pdf",
    "application/rtf",
    "text/rtf",
    "application/msword",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.oasis.opendocument.text",
]
"""MIME types of documents with running text."""


class Index(Section):
    """Sources of captures, and filters for them."""

    files: list[Text] = Field(default_factory=list)
    """CDX, CDXJ or JSON-lines indexes, also .gz, and ZIPs of them; paths or patterns (`index/*.cdxj.gz`)."""
    warcs: list[Text] = Field(default_factory=list)
    """WARC or ARC files, also .gz; paths or patterns."""
    servers: list[Server] = Field(default_factory=list)
    """CDX servers, and the searches of Arquivo.pt."""
    mimes: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: list(MIMES))
    """MIME types to keep, as declared in the index."""
    statuses: Annotated[list[int], Field(min_length=1)] = Field(default_factory=lambda: [200])
    """HTTP status codes to keep."""
    unique: bool = True
    """Whether only the first of the captures with the same digest is kept, in the order of the files."""
    max_unpacked_gib: PositiveFloat = 64.0
    """Maximum size in GiB of an unpacked index; a ZIP counts as one."""


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

    @field_validator("charset")
    @classmethod
    def _is_known(cls, charset: str) -> str:
        try:
            "".encode(charset)
        except LookupError:
            raise ValueError(f"{charset} is not known; allowed: windows-1252, iso-8859-2, utf-8, ...") from None
        return charset


class CleanPart(Section):
    """Training texts of the n-gram model."""

    files: list[Text] = Field(default_factory=list)
    """Texts of good quality: tables with a column `text`, or .txt; paths or patterns. By default, the documents of the
    corpus with the highest language score."""
    max_words: Positive = 5_000_000
    """Approximate maximum number of training words. Memory grows with it."""
    vocabulary: Annotated[int, Field(ge=1, le=2_000_000)] = 200_000
    """Size of the vocabulary: the most frequent words."""


class SentenceSettings(Section):
    """Which sentences are kept, and what computes their perplexity."""

    min_words: Positive = 4
    """Minimum number of words."""
    max_words: Positive = 120
    """Maximum number of words."""
    min_letters: Part = 0.6
    """Smallest share of letters among the characters other than spaces."""
    max_capitals: Part = 0.5
    """Largest share of capitals among the letters."""
    whole: bool = True
    """Whether a sentence must begin with a capital or a digit, after any opening marks, and end with . ! ? or …"""
    scorer: Literal["ngram", "none"] = "ngram"
    """What computes the perplexity: an n-gram model that is trained first, or nothing."""
    clean: CleanPart = Field(default_factory=CleanPart)
    """Training texts of the n-gram model."""
    max_perplexity: PositiveFloat | None = None
    """Sentences with a higher perplexity are dropped. By default all are kept; perplexity.html shows the effect."""
    thresholds: list[PositiveFloat] = Field(default_factory=list)
    """Perplexities at which perplexity.html shows samples; by default the quantiles 50, 75, 90, 95 and 99%."""

    @model_validator(mode="after")
    def _fits(self) -> "SentenceSettings":
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is above max_words {self.max_words}")
        if self.scorer == "none" and (self.clean != CleanPart() or self.max_perplexity is not None or self.thresholds):
            raise ValueError("clean, max_perplexity and thresholds have no effect with scorer none; leave them out")
        return self


class Store(Section):
    """The finished corpus: tables, and texts for training."""

    validation: Share = 0.01
    """Share of the documents in the validation split, chosen by the SHA-256 of their text."""
    unit: Literal["documents", "sentences"] = "documents"
    """Unit of a row of the texts for training."""


class Corpus(Section):
    """A corpus: work folder, and a section for each stage."""

    work: Text
    """Folder of all stages; created if missing."""
    workers: Positive = 1
    """Processes that work on shards in parallel; does not change the result."""
    rows_per_shard: Positive = 10_000
    """Captures per shard."""
    network: Network = Field(default_factory=Network)
    """Requests to archives on the network."""
    index: Index = Field(default_factory=Index)
    """Sources of captures, and filters for them."""
    fetch: Fetch = Field(default_factory=Fetch)
    """Sources of the content of captures, and its limits."""
    extract: Extract = Field(default_factory=Extract)
    """Extraction of texts, and its limits per document."""
    clean: Clean = Field(default_factory=Clean)
    """Steps that drop or change documents."""
    sentences: SentenceSettings = Field(default_factory=SentenceSettings)
    """Which sentences are kept, and what computes their perplexity."""
    store: Store = Field(default_factory=Store)
    """Formats of the finished corpus."""


def read_settings(path: Path) -> Corpus:
    """Return the settings of a corpus.

    Raises:
        ConfigError: The file is unreadable, or has problems, which are listed with their lines.
    """
    return read_section_file(path, Corpus, "a corpus", _check)


def _check(values: dict[str, Any], options: dict[str, Any], is_valid: bool) -> list[Problem]:
    """Return the problems between sections."""
    if not is_valid:
        return []
    corpus = Corpus.model_validate(values)
    problems = []
    index = corpus.index
    if not (index.files or index.warcs or index.servers):
        message = "index has no source; set index.files, index.warcs or index.servers"
        problems.append(Problem(message, ("index",), code="config.required"))
    uses_network = index.servers or corpus.fetch.ranges or corpus.fetch.replay
    if uses_network and corpus.network.contact is None:
        message = "network.contact is required for requests to archives: your e-mail address or web page"
        problems.append(Problem(message, ("network",), code="config.required"))
    for name in (name for name in get_args(StepName) if name in (options.get("clean") or {})):
        key, needed = f"clean.{name}", {"variety": "sources", "decontaminate": "sets"}.get(name)
        message = ""
        if name in corpus.clean.skip:
            message = f"{key} has no effect: clean.skip contains {name}; remove one of them"
        elif needed is not None and not getattr(getattr(corpus.clean, name), needed):
            message = f"{key} has no effect without {needed}; name {key}.{needed}, or leave the section out"
        if message:
            problems.append(Problem(message, (key,), code="config.no_effect"))
    return problems
