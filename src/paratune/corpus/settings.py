"""The settings of a corpus: what is read, what is kept of it, and in which folder the stages work. One YAML file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from paratune.config.layers import read_text
from paratune.config.options import options_of
from paratune.config.problems import Problem, SourceLocation, failure
from paratune.config.section import Positive, PositiveFloat, Section, Text
from paratune.config.validate import describe_value, validate_as
from paratune.config.yaml_tree import read_tree
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
"""Kinds of documents that hold running text."""


class Index(Section):
    """Which captures of an archive there are, and which of them are wanted."""

    files: list[Text] = Field(default_factory=list)
    """CDX, CDXJ or JSON-lines indexes, also .gz, and ZIPs of them; paths or patterns (`index/*.cdxj.gz`)."""
    warcs: list[Text] = Field(default_factory=list)
    """WARC or ARC files, also .gz; paths or patterns."""
    servers: list[Server] = Field(default_factory=list)
    """Servers that are asked: CDX servers, and the searches of Arquivo.pt."""
    mimes: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: list(MIMES))
    """MIME types to keep, as the index declares them."""
    statuses: Annotated[list[int], Field(min_length=1)] = Field(default_factory=lambda: [200])
    """HTTP status codes to keep."""
    unique: bool = True
    """Whether one capture is kept of those with the same digest: the first, in the order of the files."""
    max_unpacked_gib: PositiveFloat = 64.0
    """Most GiB that one compressed index may unpack to; a ZIP counts as one."""


class Corpus(Section):
    """A corpus and how it is made."""

    work: Text
    """Folder of all stages; made when it is not there."""
    workers: Positive = 1
    """Processes that work on shards at the same time; they change nothing of the result."""
    rows_per_shard: Positive = 10_000
    """Captures of one shard."""
    network: Network = Field(default_factory=Network)
    """How archives on the network are asked."""
    index: Index = Field(default_factory=Index)
    """Which captures there are, and which are wanted."""
    fetch: Fetch = Field(default_factory=Fetch)
    """Where the bytes of captures come from, and which are taken."""
    extract: Extract = Field(default_factory=Extract)
    """How texts are taken out of documents, and what one document may cost."""
    clean: Clean = Field(default_factory=Clean)
    """What is dropped of the documents, and what is changed in them."""
    sentences: SentenceSettings = Field(default_factory=SentenceSettings)
    """Which sentences are kept, and what says how well they read."""
    store: Store = Field(default_factory=Store)
    """In which forms the finished corpus is kept."""


def read_settings(path: Path) -> Corpus:
    """Read the settings of a corpus.

    Raises:
        ConfigError: They cannot be read, or have problems: all are in the text, each with its line.
    """
    tree = read_tree(read_text(path), path.name)
    problems = list(tree.problems)
    found = {} if tree.value is None else tree.value
    if not isinstance(found, dict):
        known = ", ".join(options_of(Corpus))
        problems.append(
            Problem(
                f"it is {describe_value(found)}; a corpus is a mapping of options ({known})", code="config.not_mapping"
            )
        )
        raise failure(path, problems, path.name)
    values, findings = validate_as(Corpus, found, "a corpus")
    problems += findings.problems
    corpus = None if problems else Corpus.model_validate(values)
    problems += [] if corpus is None else _check(corpus, found.get("clean") or {})
    if corpus is None or problems:
        raise failure(path, [_placed(problem, tree.places, path.name) for problem in problems], path.name)
    return corpus


def _check(corpus: Corpus, clean: dict[str, Any]) -> list[Problem]:
    """Return what is wrong between sections; `clean` is what of that section was written."""
    problems = []
    index = corpus.index
    if not (index.files or index.warcs or index.servers):
        what = "index has nothing to read; name index.files, index.warcs or index.servers"
        problems.append(Problem(what, ("index",), code="config.required"))
    asks = index.servers or corpus.fetch.ranges or corpus.fetch.replay
    if asks and corpus.network.contact is None:
        what = "network.contact is required where the network is asked: an address of mail or a page, for the archive"
        problems.append(Problem(what, ("network",), code="config.required"))
    problems += [
        Problem(f"{name} {said}", (name,), code="config.no_effect") for name, said in corpus.clean.without_effect(clean)
    ]
    return problems


def _placed(problem: Problem, places: dict[str, SourceLocation], file: str) -> Problem:
    if problem.place is not None or not problem.keys:
        return problem
    key = problem.keys[0]
    while key and key not in places:
        key = re.sub(r"(\[[0-9]+\]|\.?[^.\[\]]+)$", "", key)
    return replace(problem, place=places.get(key, SourceLocation(file, 1)))
