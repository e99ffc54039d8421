"""Settings of the stage `sentences`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paratune.config.section import Part, Positive, PositiveFloat, Section, Text


class CleanPart(Section):
    """Training texts of the n-gram model."""

    files: list[Text] = Field(default_factory=list)
    """Texts of good quality: .parquet with a column `text`, or .txt; paths or patterns. By default, documents of the
    corpus."""
    pick: Literal["best", "first"] = "best"
    """Documents of the corpus to use: those with the highest language score, or the first."""
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
    scorer: Literal["ngram", "mlm", "none"] = "ngram"
    """What computes the perplexity: an n-gram model that is trained first, a masked language model, or nothing."""
    clean: CleanPart = Field(default_factory=CleanPart)
    """Training texts of the n-gram model."""
    model: Text | None = None
    """Model of scorer mlm: a run folder, a model folder or a hub name."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of scorer mlm."""
    max_perplexity: PositiveFloat | None = None
    """Sentences with a higher perplexity are dropped. By default all are kept; perplexity.html shows the effect."""
    thresholds: list[PositiveFloat] = Field(default_factory=list)
    """Perplexities at which perplexity.html shows samples; by default the quantiles 50, 75, 90, 95 and 99%."""

    @model_validator(mode="after")
    def _fits(self) -> "SentenceSettings":
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is above max_words {self.max_words}")
        if (self.scorer == "mlm") != (self.model is not None):
            raise ValueError("model names the masked language model of scorer mlm: give both, or neither")
        if self.scorer != "ngram" and self.clean != CleanPart():
            raise ValueError(f"clean has no effect with scorer {self.scorer}; leave it out")
        if self.scorer != "mlm" and self.device != "auto":
            raise ValueError(f"device has no effect with scorer {self.scorer}; leave it out")
        if self.scorer == "none" and (self.max_perplexity is not None or self.thresholds):
            raise ValueError("max_perplexity and thresholds need a scorer: ngram or mlm")
        return self
