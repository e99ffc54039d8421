"""In which language a document is, by py3langid; those in other languages are dropped.

The probability is that of py3langid: its naive Bayes over byte n-grams, tempered by the square root of their number.
"""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.clean.settings import Language
from paratune.corpus.clean.step import Document, Shard, lost, read_documents, run_documents
from paratune.corpus.rows import Lost
from paratune.corpus.settings import Corpus
from paratune.errors import ConfigError, did_you_mean, require

FORMAT = 1
"""Of the rows: raised when the same input gives others than before."""
NUM_DIGITS = 4
"""Of the probability, behind the point."""
MAX_CHARACTERS = 10_000
"""Of the beginning of a document, which are looked at."""


def run_language(corpus: Corpus, before: Path, folder: Path, workers: int, display: Display) -> dict[str, Any]:
    """Run the step: documents with their language, without those in others.

    Raises:
        ConfigError: A language is not one that can be told.
        MissingDependency: py3langid is not installed.
    """
    options = corpus.clean.language
    check_languages(options)
    settings = {**options.model_dump(), "format": FORMAT, "py3langid": version("py3langid")}
    return run_documents(folder, before, keep_languages, options, settings, workers=workers, display=display)


def check_languages(options: Language) -> None:
    """Check that the languages can be told.

    Raises:
        ConfigError: One cannot.
        MissingDependency: py3langid is not installed.
    """
    known = _identifier().labels
    for code in options.keep:
        if code not in known:
            raise ConfigError(
                f"clean.language.keep: {code} is not known{did_you_mean(code, known)}; {', '.join(known)}",
                code="config.invalid_value",
                key="clean.language.keep",
                value=code,
            )


def keep_languages(shard: Shard) -> Iterator[Document | Lost]:
    """Yield the documents of a shard in one of the languages, and why others are not."""
    options: Language = shard.options
    # With one thread sums are taken in the same order, whatever the number of threads of this machine.
    with require("threadpoolctl", extra="corpus").threadpool_limits(limits=1, user_api="blas"):
        for document in read_documents(shard.path):
            language, score = language_of(document["text"])
            if language not in options.keep:
                yield lost(document, "language", f"{language} {score}")
            elif score < options.min_score:
                yield lost(document, "language unsure", f"{language} {score}")
            else:
                yield {**document, "language": language, "language_score": score}


def language_of(text: str) -> tuple[str, float]:
    """Return the ISO 639 code of the language of a text and its probability, from 0 to 1.

    The probability of a few words is low, and that of none is 1 over the number of languages.
    """
    language, score = _identifier().classify(text[:MAX_CHARACTERS])
    return language, round(score, NUM_DIGITS)


@cache
def _identifier() -> Any:
    module = require("py3langid.langid", extra="corpus")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
