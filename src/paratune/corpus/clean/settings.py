"""The settings of the cleaning: a section for each step that has any."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from paratune.config.section import Section, Text

StepName = Literal["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]
PersonalKind = Literal["email", "phone", "nif", "iban"]


class Language(Section):
    """In which languages documents are kept."""

    keep: Annotated[list[Text], Field(min_length=1)] = Field(default_factory=lambda: ["pt"])
    """ISO 639-1 codes of the languages to keep."""
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Least probability of the language, from 0 to 1."""


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
    language: Language = Field(default_factory=Language)
    """Which languages are kept."""
    personal: Personal = Field(default_factory=Personal)
    """Which personal data is masked."""
