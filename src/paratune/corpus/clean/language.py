"""The step `language`: identifies the language of documents with py3langid and drops those in other languages.

The probability is that of py3langid: naive Bayes over byte n-grams, tempered by the square root of their number.
"""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from paratune.corpus.clean.settings import Language
from paratune.corpus.clean.step import Document, drop, run_documents, unknown_value
from paratune.corpus.rows import DroppedRow
from paratune.corpus.shard import read_rows
from paratune.errors import require

FORMAT = 1  # version of the rows; increased when the same input gives other rows
NUM_DIGITS = 4
"""Decimal places of the probability."""
MAX_CHARACTERS = 10_000
"""Characters at the start of a document that are read."""


def check_languages(options: Language) -> None:
    """Check that the languages are known.

    Raises:
        ConfigError: A language is unknown.
        MissingDependency: py3langid is not installed.
    """
    known = _identifier().labels
    for code in options.keep:
        if code not in known:
            raise unknown_value("clean.language.keep", code, known, ", ".join(known))


def keep_languages(options: Language, path: Path) -> Iterator[Document | DroppedRow]:
    """Yield the documents of a table that are in one of the languages, and drop the others."""
    # With one thread the order of sums does not depend on the machine.
    with require("threadpoolctl", extra="corpus").threadpool_limits(limits=1, user_api="blas"):
        for document in read_rows(path):
            language, score = identify_language(document["text"])
            if language not in options.keep:
                yield drop(document, "language", f"{language} {score}")
            elif score < options.min_score:
                yield drop(document, "language unsure", f"{language} {score}")
            else:
                yield {**document, "language": language, "language_score": score}


run_language = partial(run_documents, keep_languages, FORMAT, ("py3langid",))
"""Runs the step."""


def identify_language(text: str) -> tuple[str, float]:
    """Return the ISO 639 code of the language of a text and its probability, from 0 to 1.

    The probability of a short text is low; that of an empty one is 1 / number of languages.
    """
    language, score = _identifier().classify(text[:MAX_CHARACTERS])
    return language, round(score, NUM_DIGITS)


@cache
def _identifier() -> Any:
    module = require("py3langid.langid", extra="corpus")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
