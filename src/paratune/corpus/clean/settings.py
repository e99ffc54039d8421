"""The settings of the cleaning: a section for each step that has any."""

from collections.abc import Collection
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
"""Of Portuguese."""
TOP_NGRAMS: list[Limit] = [0.2, 0.18, 0.16]
REPEATED_NGRAMS: list[Limit] = [0.15, 0.14, 0.13, 0.12, 0.11, 0.1]


class Lines(Section):
    """Which lines are cut out of documents."""

    min_pages: Annotated[int, Field(ge=2)] | None = 10
    """How many pages of a host have a line that is cut; null cuts none for that."""
    cookies: bool = True
    """Whether notices of cookies are cut."""
    menus: bool = True
    """Whether menus are cut."""
    min_words: Positive = 20
    """Least words that must be left of a document from which lines were cut."""


class Language(Section):
    """In which languages documents are kept."""

    keep: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: ["pt"])
    """ISO 639-1 codes of the languages to keep."""
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Least probability of the language, from 0 to 1."""


class VarietySource(Section):
    """Texts of one kind in both varieties, on which the classifier is trained."""

    name: Text
    """What it is called in the evaluation."""
    european: Annotated[list[Text], Field(min_length=1)]
    """Texts (UTF-8, a line each) and Parquet tables in European Portuguese; paths or patterns."""
    brazilian: Annotated[list[Text], Field(min_length=1)]
    """The same in Brazilian Portuguese."""
    columns: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: ["text"])
    """Columns of the tables that hold texts; those that a table has are read."""


class Variety(Section):
    """In which varieties documents in Portuguese are kept, by a classifier that is trained first."""

    sources: list[VarietySource] = Field(default_factory=list)
    """What it is trained on; none leaves the step out."""
    keep: Annotated[list[VarietyName], Field(min_length=1)] = Field(default_factory=lambda: list(KEPT_VARIETIES))
    """Varieties to keep."""
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Least probability of the variety, from 0.5 to 1."""


class Quality(Section):
    """What is asked of a document. A limit that is null asks nothing. Shares are from 0 to 1.

    Sources: G is Rae et al., Gopher, 2021, Table A1 and appendix A.1.1; F is Penedo et al., FineWeb, 2024, section 3.6;
    C4 is Raffel et al., T5, 2020, section 2.2; R is Laurençon et al., ROOTS, 2022, whose limits are set per language.
    """

    min_words: Positive | None = 50
    """Least words, of what is between white space and more than punctuation (G)."""
    max_words: Positive | None = 100_000
    """Most words (G)."""
    min_word_length: Limit = 3
    """Least mean length of a word in characters (G)."""
    max_word_length: Limit = 10
    """Most mean length of a word in characters (G)."""
    max_symbols: Limit = 0.1
    """Most hash signs for a word, and most ellipses for a word (G)."""
    max_bullet_lines: Limit = 0.9
    """Largest share of lines that begin with a bullet or a dash (G)."""
    max_ellipsis_lines: Limit = 0.3
    """Largest share of lines that end with an ellipsis (G)."""
    min_alphabetic_words: Limit = 0.8
    """Least share of words with a letter (G)."""
    min_letters: Limit = 0.6
    """Least share of letters among the characters, white space aside (R)."""
    stop_words: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: list(STOP_WORDS))
    """The most frequent words of the language, in lower case; Portuguese ones by default."""
    min_stop_words: Positive | None = 2
    """How many different ones must be there (G)."""
    min_stop_word_share: Limit = 0.1
    """Least share of them among the words (R)."""
    forbidden: list[Text] = Field(default_factory=lambda: ["lorem ipsum", "{"])
    """What must not stand anywhere, whatever its case (C4)."""
    min_punctuated_lines: Limit = 0.12
    """Least share of lines that end with a mark of punctuation: tables and menus have none (F)."""
    max_short_lines: Limit = 0.67
    """Largest share of lines of at most 30 characters: lists (F)."""
    max_lines_per_word: Limit = 0.3
    """Most line breaks for a word (F)."""
    max_repeated_lines: Limit = 0.3
    """Largest share of lines that have come before (G)."""
    max_repeated_line_characters: Limit = 0.2
    """Largest share of characters in such lines (G)."""
    max_top_ngrams: Annotated[list[Limit], Field(min_length=3, max_length=3)] = Field(
        default_factory=lambda: list(TOP_NGRAMS)
    )
    """Largest shares of characters in the most frequent sequence of 2, 3 and 4 words (G)."""
    max_repeated_ngrams: Annotated[list[Limit], Field(min_length=6, max_length=6)] = Field(
        default_factory=lambda: list(REPEATED_NGRAMS)
    )
    """Largest shares of characters in sequences of 5 to 10 words that have come before (G)."""


class Near(Section):
    """Which documents are near-duplicates, and how they are found."""

    shingle_words: Positive = 5
    """Words of a shingle; documents are compared as sets of these."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Least Jaccard similarity, as the signatures tell it."""
    bands: Positive = 20
    """Parts of a signature; documents are compared that agree in one of them."""
    rows: Positive = 6
    """Hash values of a part; a signature has bands times rows of them."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Of the hash functions."""


class Duplicates(Section):
    """Which documents are duplicates of others."""

    near: Near | None = Field(default_factory=Near)
    """Near-duplicates; null drops equal texts alone."""


class EvaluationSet(Section):
    """Texts by which models are evaluated."""

    name: Text
    """How it is called where its texts are counted."""
    files: Annotated[list[Text], Field(min_length=1)]
    """Parquet, CSV, TSV, JSON lines, JSON as SQuAD has it, or a text a line (.txt), also .gz; paths or patterns."""
    columns: list[Text] = Field(default_factory=list)
    """Columns that hold texts (of SQuAD title, context, question, answers); none for .txt."""


class Decontaminate(Section):
    """Which texts must not stand in documents."""

    sets: list[EvaluationSet] = Field(default_factory=list)
    """Evaluation sets; without any the step is left out."""
    words: Annotated[int, Field(ge=2, le=100)] = 13
    """Words of a sequence by which a text is found; shorter texts are found by all of their words."""
    min_words: Positive = 5
    """Words of a text below which it is not looked for."""
    drop: Literal["document", "lines"] = "document"
    """What is dropped: the document that holds a text, or the lines of it."""


class Personal(Section):
    """Which personal data is masked."""

    kinds: Annotated[list[PersonalKind], Field(min_length=1)] = Field(
        default_factory=lambda: list(get_args(PersonalKind))
    )
    """What is masked: addresses of e-mail, telephone numbers, Portuguese tax numbers, bank accounts."""
    region: Annotated[str, Field(pattern=r"^[A-Z]{2}$")] = "PT"
    """ISO 3166 code of the country of telephone numbers that are written without one."""


class Clean(Section):
    """What is dropped of the documents, and what is changed in them."""

    skip: list[StepName] = Field(default_factory=list)
    """Steps to leave out."""
    lines: Lines = Field(default_factory=Lines)
    """Which lines are cut."""
    language: Language = Field(default_factory=Language)
    """Which languages are kept."""
    variety: Variety = Field(default_factory=Variety)
    """Which varieties of Portuguese are kept."""
    quality: Quality = Field(default_factory=Quality)
    """What is asked of a document."""
    duplicates: Duplicates = Field(default_factory=Duplicates)
    """Which documents are dropped for others."""
    decontaminate: Decontaminate = Field(default_factory=Decontaminate)
    """Which texts must not stand in documents."""
    personal: Personal = Field(default_factory=Personal)
    """Which personal data is masked."""

    def without_effect(self, given: Collection[str]) -> list[tuple[str, str]]:
        """Return which of the sections that are given change nothing, each with what is wrong and what to do.

        Args:
            given: Names of the sections that somebody wrote, be it with the defaults.
        """
        given = [name for name in get_args(StepName) if name in given]
        found = [
            (f"clean.{name}", f"has no effect: clean.skip leaves {name} out; leave one of the two out")
            for name in given
            if name in self.skip
        ]
        for name, works_with in (("variety", "sources"), ("decontaminate", "sets")):
            section: Section = getattr(self, name)
            if name in given and name not in self.skip and not getattr(section, works_with):
                said = f"has no effect without {works_with}; name clean.{name}.{works_with}, or leave the section out"
                found.append((f"clean.{name}", said))
        return found
