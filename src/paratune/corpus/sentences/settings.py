"""Settings of the sentences: which are kept, and what says how well they read."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paratune.config.section import Part, Positive, PositiveFloat, Section, Text


class CleanPart(Section):
    """The texts that the n-gram model learns from."""

    files: list[Text] = Field(default_factory=list)
    """Texts known to be good: .parquet with a column `text`, or .txt; paths or patterns. Documents of the corpus itself
    when none are given."""
    pick: Literal["best", "first"] = "best"
    """Of the corpus itself: documents whose language was most certain, or the first."""
    max_words: Positive = 5_000_000
    """Words to learn from, about; what is beyond is not read. Memory grows with them."""
    vocabulary: Annotated[int, Field(ge=1, le=2_000_000)] = 200_000
    """Words to know: the most frequent ones."""


class SentenceSettings(Section):
    """Which sentences are kept, and what says how well they read."""

    min_words: Positive = 4
    """Fewest words."""
    max_words: Positive = 120
    """Most words."""
    min_letters: Part = 0.6
    """Least share of letters among the characters that are no space."""
    max_capitals: Part = 0.5
    """Most capitals among the letters."""
    whole: bool = True
    """Whether a sentence begins with a capital, a digit or an opening mark before one, and ends with . ! ? or …"""
    scorer: Literal["ngram", "mlm", "none"] = "ngram"
    """What gives the perplexity: an n-gram model trained here, a masked language model, or nothing."""
    clean: CleanPart = Field(default_factory=CleanPart)
    """What the n-gram model learns from."""
    model: Text | None = None
    """Of scorer mlm: a run folder, a model folder or a hub name."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Of scorer mlm: where it computes."""
    max_perplexity: PositiveFloat | None = None
    """Sentences above are dropped; all are kept when it is not given, and perplexity.html shows what would be."""
    thresholds: list[PositiveFloat] = Field(default_factory=list)
    """Perplexities at which perplexity.html shows samples; those below which 50, 75, 90, 95 and 99% are when empty."""

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
