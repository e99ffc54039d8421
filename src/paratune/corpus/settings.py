"""Settings of a corpus: a YAML file with a section for each stage."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from paratune.config.problems import Problem
from paratune.config.section import Duration, NonNegative, Part, Positive, PositiveFloat, Section, Share, Text
from paratune.config.validate import read_section_file

LONGEST_HOLD_S = 86_400.0
"""One day: the longest time for which an archive can stop requests. A longer Retry-After counts as one day."""
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
        message = f"{stamp} is not a date; write year, month, day, hour, minute, second without spaces"
        raise ValueError(message) from None


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


StepName = Literal["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]
PersonalKind = Literal["email", "phone", "nif", "iban"]
VarietyName = Literal["pt-PT", "pt-BR"]
Limit = NonNegative | None
STOP_WORDS = [
    *("a", "ao", "as", "com", "como", "da", "das", "de", "do", "dos", "e", "em", "entre", "foi", "já", "mais", "mas"),
    *("na", "nas", "no", "nos", "não", "o", "os", "ou", "para", "pela", "pelo", "por", "que", "se", "sem", "ser"),
    *("seu", "sua", "são", "também", "um", "uma", "à", "é"),
]
"""Frequent Portuguese words."""


class Lines(Section):
    """Which lines are removed from documents."""

    min_pages: Annotated[int, Field(ge=2)] | None = 10
    """A line is removed if at least so many pages of a host have it; null keeps such lines."""
    cookies: bool = True
    """Whether cookie notices are removed."""
    menus: bool = True
    """Whether menus are removed."""
    min_words: Positive = 20
    """Minimum number of words left in a document after lines are removed."""


class Language(Section):
    """The languages of documents to keep."""

    keep: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: ["pt"])
    """ISO 639-1 codes of the languages to keep."""
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Minimum probability of the language, from 0 to 1."""


class VarietySource(Section):
    """Training texts for the classifier, of one kind in both varieties."""

    name: Text
    """Name of the source in the evaluation."""
    european: Annotated[list[Text], Field(min_length=1)]
    """Texts in European Portuguese: .txt with a text per line, Parquet, CSV, TSV or JSON lines; paths or patterns."""
    brazilian: Annotated[list[Text], Field(min_length=1)]
    """The same in Brazilian Portuguese."""
    columns: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: ["text"])
    """Columns with texts, which every table has; .txt has none."""


class Variety(Section):
    """The varieties of Portuguese to keep, by a classifier that is trained first."""

    sources: list[VarietySource] = Field(default_factory=list)
    """Training texts; without them the step is left out."""
    keep: list[VarietyName] = Field(default=["pt-PT"], min_length=1)
    """Varieties to keep."""
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Minimum probability of the variety, from 0.5 to 1."""


class Quality(Section):
    """Limits for documents; null switches a limit off. Shares are from 0 to 1.

    Sources: G is Rae et al., Gopher, 2021, Table A1 and appendix A.1.1; F is Penedo et al., FineWeb, 2024, section 3.6;
    C4 is Raffel et al., T5, 2020, section 2.2; R is Laurençon et al., ROOTS, 2022, whose limits are set per language.
    """

    min_words: Positive | None = 50
    """Minimum number of words: parts between white space that are not only punctuation (G)."""
    max_words: Positive | None = 100_000
    """Maximum number of words (G)."""
    min_word_length: Limit = 3
    """Minimum mean length of a word in characters (G)."""
    max_word_length: Limit = 10
    """Maximum mean length of a word in characters (G)."""
    max_symbols: Limit = 0.1
    """Maximum number of hash signs per word, and of ellipses per word (G)."""
    max_bullet_lines: Limit = 0.9
    """Largest share of lines that begin with a bullet or a dash (G)."""
    max_ellipsis_lines: Limit = 0.3
    """Largest share of lines that end with an ellipsis (G)."""
    min_alphabetic_words: Limit = 0.8
    """Smallest share of words with a letter (G)."""
    min_letters: Limit = 0.6
    """Smallest share of letters among the characters without white space (R)."""
    stop_words: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: list(STOP_WORDS))
    """The most frequent words of the language, in lower case; Portuguese by default."""
    min_stop_words: Positive | None = 2
    """Minimum number of different stop words (G)."""
    min_stop_word_share: Limit = 0.1
    """Smallest share of stop words among the words (R)."""
    forbidden: list[Text] = Field(default_factory=lambda: ["lorem ipsum", "{"])
    """Phrases that must not occur, ignoring case (C4)."""
    min_punctuated_lines: Limit = 0.12
    """Smallest share of lines that end with punctuation, which tables and menus lack (F)."""
    max_short_lines: Limit = 0.67
    """Largest share of lines of at most 30 characters: lists (F)."""
    max_lines_per_word: Limit = 0.3
    """Maximum number of line breaks per word (F)."""
    max_repeated_lines: Limit = 0.3
    """Largest share of lines that repeat an earlier line (G)."""
    max_repeated_line_characters: Limit = 0.2
    """Largest share of characters in such lines (G)."""
    max_top_ngrams: list[Limit] = Field(default=[0.2, 0.18, 0.16], min_length=3, max_length=3)
    """Largest shares of characters in the most frequent sequence of 2, 3 and 4 words (G)."""
    max_repeated_ngrams: list[Limit] = Field(default=[0.15, 0.14, 0.13, 0.12, 0.11, 0.1], min_length=6, max_length=6)
    """Largest shares of characters in sequences of 5 to 10 words that repeat an earlier one (G)."""


class Duplicates(Section):
    """Which documents are dropped as duplicates."""

    shingle_words: Positive = 5
    """Words of a shingle; documents are compared as sets of shingles."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Minimum Jaccard similarity of near-duplicates, estimated from signatures."""
    bands: Positive = 20
    """Bands of a signature; documents are compared if they agree in at least one band."""
    rows: Positive = 6
    """Hash values of a band; a signature has bands times rows values."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the hash functions."""


class EvaluationSet(Section):
    """Texts by which models are evaluated."""

    name: Text
    """Name of the set in totals and tables."""
    files: Annotated[list[Text], Field(min_length=1)]
    """Parquet, CSV, TSV, JSON lines, SQuAD's JSON, or .txt with a text per line, also .gz; paths or patterns."""
    columns: list[Text] = Field(default_factory=list)
    """Columns with texts (SQuAD: title, context, question, answers); none for .txt."""


class Decontaminate(Section):
    """Evaluation texts that must not occur in documents."""

    sets: list[EvaluationSet] = Field(default_factory=list)
    """Evaluation sets; without them the step is left out."""
    words: Annotated[int, Field(ge=2, le=100)] | None = None
    """Words of a sequence that identifies a text; a shorter text is identified by all of its words. By default 13, and
    8 for texts of fewer than 26 words, of which a single changed word may leave no 13 in a row."""
    min_words: Positive = 5
    """Minimum number of words of a text; shorter texts are ignored."""


class Personal(Section):
    """Which personal data is masked."""

    kinds: list[PersonalKind] = Field(default=["email", "phone", "nif", "iban"], min_length=1)
    """E-mail addresses, telephone numbers, Portuguese tax numbers (NIF), bank accounts (IBAN)."""
    region: Annotated[str, Field(pattern=r"^[A-Z]{2}$")] = "PT"
    """ISO 3166 code of the country of telephone numbers without a country code."""


class Clean(Section):
    """Which documents are dropped, and how they are changed."""

    skip: list[StepName] = Field(default_factory=list)
    """Steps to leave out."""
    lines: Lines = Field(default_factory=Lines)
    language: Language = Field(default_factory=Language)
    variety: Variety = Field(default_factory=Variety)
    quality: Quality = Field(default_factory=Quality)
    duplicates: Duplicates = Field(default_factory=Duplicates)
    decontaminate: Decontaminate = Field(default_factory=Decontaminate)
    personal: Personal = Field(default_factory=Personal)

    def runs(self, step: str) -> bool:
        """Return whether a step runs: it is not skipped, and its input is configured."""
        needed = {"variety": self.variety.sources, "decontaminate": self.decontaminate.sets}
        return step not in self.skip and bool(needed.get(step, True))


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
    other_digest: Literal["drop", "keep"] = "drop"
    """What happens to a capture whose bytes do not have the SHA-1 of the index: it is dropped, or kept and counted."""
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
    comments: bool = False
    """Whether the comments of readers follow the text of a page (forums, blogs)."""
    max_mib: PositiveFloat = 64.0
    """Size in MiB above which a document is dropped."""
    time_s: Annotated[int, Field(ge=1, le=86_400)] = 60
    """CPU seconds that a document may take; ten times as many of wall time."""
    memory_mib: Annotated[int, Field(ge=128)] = 1024
    """MiB of address space that a document may take, besides those of the process at the start."""


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


class Tokens(Section):
    """Tokens of the texts, from which a masked language model is trained without the texts in memory."""

    tokenizer: Text
    """Folder of the tokenizer. Tokens are made once it exists: it is usually trained on the texts of this corpus."""
    max_length: Positive = 512
    """As `data.max_length` of the training: tokens of a window, special ones included."""
    windows: Literal["joined", "separate", "documents"] = "joined"
    """As `task.windows` of the training; the last window of each shard has the rest of its documents."""
    whole_words: bool = False
    """As `task.whole_words` of the training."""


class Store(Section):
    """The finished corpus: tables, and texts for training."""

    validation: Share = 0.01
    """Share of the documents in the validation split, chosen by the SHA-256 of their text."""
    unit: Literal["documents", "sentences"] = "documents"
    """Unit of a row of the texts for training."""
    tokens: Tokens | None = None
    """What else is written: tokens of the same texts; null: none."""


class Corpus(Section):
    """A corpus: work folder, and a section for each stage."""

    work: Text
    """Folder of all stages; created if missing."""
    workers: Positive = 1
    """Processes that work on shards in parallel; does not change the result."""
    rows_per_shard: Positive = 10_000
    """Captures per shard."""
    network: Network = Field(default_factory=Network)
    index: Index = Field(default_factory=Index)
    fetch: Fetch = Field(default_factory=Fetch)
    extract: Extract = Field(default_factory=Extract)
    clean: Clean = Field(default_factory=Clean)
    sentences: SentenceSettings = Field(default_factory=SentenceSettings)
    store: Store = Field(default_factory=Store)


def read_settings(path: Path) -> Corpus:
    """Return the settings of a corpus.

    Raises:
        ConfigError: The file is unreadable, or has problems, which are listed with their lines.
    """
    return read_section_file(path, Corpus, "a corpus", _check)


def _check(values: dict[str, Any], options: dict[str, Any], is_valid: bool) -> list[Problem]:
    if not is_valid:
        return []
    corpus = Corpus.model_validate(values)
    problems = []
    index = corpus.index
    if not (index.files or index.warcs or index.servers):
        message = "index has no source; set index.files, index.warcs or index.servers"
        problems.append(Problem(message, ("index",), code="config.required"))
    paths = {"work": [corpus.work], "index.files": index.files, "index.warcs": index.warcs}
    paths["fetch.warcs"] = corpus.fetch.warcs
    paths["store.tokens.tokenizer"] = [corpus.store.tokens.tokenizer] if corpus.store.tokens else []
    for key, url in ((key, path) for key, named in paths.items() for path in named if "://" in path):
        message = f"{key}: {url} is a URL; mount the store or download it, and set a path (/mnt/archive)"
        problems.append(Problem(message, (key,), code="config.invalid_value"))
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
