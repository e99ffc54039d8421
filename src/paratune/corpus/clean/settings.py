"""Settings of the cleaning: a section for each step."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from paratune.config.section import NonNegative, Positive, Section, Text

StepName = Literal["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]
PersonalKind = Literal["email", "phone", "nif", "iban"]
VarietyName = Literal["pt-PT", "pt-BR"]
KEPT_VARIETIES: list[VarietyName] = ["pt-PT"]
Limit = NonNegative | None
STOP_WORDS = [
    *("a", "ao", "as", "com", "como", "da", "das", "de", "do", "dos", "e", "em", "entre", "foi", "já", "mais", "mas"),
    *("na", "nas", "no", "nos", "não", "o", "os", "ou", "para", "pela", "pelo", "por", "que", "se", "sem", "ser"),
    *("seu", "sua", "são", "também", "um", "uma", "à", "é"),
]
"""Frequent Portuguese words."""
TOP_NGRAMS: list[Limit] = [0.2, 0.18, 0.16]
REPEATED_NGRAMS: list[Limit] = [0.15, 0.14, 0.13, 0.12, 0.11, 0.1]


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
    keep: Annotated[list[VarietyName], Field(min_length=1)] = Field(default_factory=lambda: list(KEPT_VARIETIES))
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
    max_top_ngrams: Annotated[list[Limit], Field(min_length=3, max_length=3)] = Field(
        default_factory=lambda: list(TOP_NGRAMS)
    )
    """Largest shares of characters in the most frequent sequence of 2, 3 and 4 words (G)."""
    max_repeated_ngrams: Annotated[list[Limit], Field(min_length=6, max_length=6)] = Field(
        default_factory=lambda: list(REPEATED_NGRAMS)
    )
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
    words: Annotated[int, Field(ge=2, le=100)] = 13
    """Words of a sequence that identifies a text; a shorter text is identified by all of its words."""
    min_words: Positive = 5
    """Minimum number of words of a text; shorter texts are ignored."""


class Personal(Section):
    """Which personal data is masked."""

    kinds: Annotated[list[PersonalKind], Field(min_length=1)] = Field(
        default_factory=lambda: list(get_args(PersonalKind))
    )
    """E-mail addresses, telephone numbers, Portuguese tax numbers (NIF), bank accounts (IBAN)."""
    region: Annotated[str, Field(pattern=r"^[A-Z]{2}$")] = "PT"
    """ISO 3166 code of the country of telephone numbers without a country code."""


class Clean(Section):
    """Which documents are dropped, and how they are changed."""

    skip: list[StepName] = Field(default_factory=list)
    """Steps to leave out."""
    lines: Lines = Field(default_factory=Lines)
    """Which lines are removed."""
    language: Language = Field(default_factory=Language)
    """Which languages are kept."""
    variety: Variety = Field(default_factory=Variety)
    """Which varieties of Portuguese are kept."""
    quality: Quality = Field(default_factory=Quality)
    """Limits for documents."""
    duplicates: Duplicates = Field(default_factory=Duplicates)
    """Which duplicates are dropped."""
    decontaminate: Decontaminate = Field(default_factory=Decontaminate)
    """Evaluation texts that must not occur in documents."""
    personal: Personal = Field(default_factory=Personal)
    """Which personal data is masked."""
