"""Reads the settings of a corpus, a YAML file with a section for each stage."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from paratune.config.problems import Problem
from paratune.config.section import Positive, PositiveFloat, Section, Text
from paratune.config.section_file import read_section_file
from paratune.corpus.clean.settings import Clean
from paratune.corpus.extract.settings import Extract
from paratune.corpus.fetch.settings import Fetch
from paratune.corpus.index.settings import Server
from paratune.corpus.sentences.settings import SentenceSettings
from paratune.corpus.store.settings import Store
from paratune.corpus.web.settings import Network

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
    problems += [
        Problem(f"{name} {problem}", (name,), code="config.no_effect")
        for name, problem in corpus.clean.without_effect(options.get("clean") or {})
    ]
    return problems
