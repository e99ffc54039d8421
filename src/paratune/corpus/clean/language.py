"""The steps `language` and `variety`: drop documents in other languages, and in other varieties of Portuguese.

py3langid identifies the language: naive Bayes over byte n-grams, tempered by the square root of their number. The
variety is that of a logistic regression of scikit-learn over hashed n-grams, which is trained on configured texts. All
words with a capital letter are equal, and all numbers: place names show the subject of a text, not its variety.

WORK/4_clean/variety/model.safetensors   weights and calibration
WORK/4_clean/variety/evaluation.json     training texts and evaluation; written last
"""

import hashlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paratune.base.atomic import replace_file
from paratune.corpus.clean.step import Document, drop, require_unique_names, run_documents, unknown_value
from paratune.corpus.inputs import find_files, read_texts
from paratune.corpus.settings import Corpus, Language, Variety, VarietySource
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, read_rows, writing
from paratune.corpus.stage import RunStage, Stage, read_record, stage_output, stage_tables
from paratune.errors import CheckpointError, DataError, require
from paratune.records import file_sha256, write_json

LANGUAGE_FORMAT = 1  # version of the rows; increased when the same input gives other rows
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
            yield _kept(document, options, "language", *identify_language(document["text"]))


def _kept(document: Document, options: Language | Variety, kind: str, name: str, score: float) -> Document | DroppedRow:
    """Return a document with its language or variety, or drop it: another one, or one that is not sure."""
    if name not in options.keep:
        return drop(document, kind, f"{name} {score}")
    if score < options.min_score:
        return drop(document, f"{kind} unsure", f"{name} {score}")
    return {**document, kind: name, f"{kind}_score": score}


run_language = partial(run_documents, keep_languages, LANGUAGE_FORMAT, ("py3langid",))
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


if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

FORMAT = 2  # version of features and files; increased when the same text gives other features
FOLDER, MODEL_FILE, EVALUATION_FILE = "variety", "model.safetensors", "evaluation.json"
LANGUAGE = "pt"
EUROPEAN, BRAZILIAN = "pt-PT", "pt-BR"
NUM_FEATURES = 1 << 18
"""Features of characters, and as many of words."""
C = 10.0
"""Inverse strength of the regularisation, as in scikit-learn."""
MAX_STEPS = 50
"""Maximum iterations of L-BFGS; more change the scores in the third digit."""
MIN_WORDS = 4
"""Minimum number of words of a line."""
GROUP = 8
"""Lines of a group; a group is also used as a document."""
MIN_GROUPS, MAX_GROUPS = 10, 200
"""Groups of each variety of a source; of more groups, those with the smallest hashes are used."""
HELD_OUT = 10
"""One of so many groups is held out."""
_NAME = re.compile(r"\b[^\W\d_a-zß-öø-ÿ]\w*")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class VarietyModel:
    """A logistic regression over the features of a text, with a calibration of its scores."""

    weights: npt.NDArray[np.float32]
    """(2 * NUM_FEATURES + 1,); the last one is the bias. A score above 0 is for pt-PT."""
    calibration: npt.NDArray[np.float64]
    """(3,): the log-odds of pt-PT are c[0] * score + c[1] * score * log(characters) + c[2]."""

    def variety_of(self, text: str) -> tuple[str, float]:
        """Return pt-PT or pt-BR, with its probability, from 0.5 to 1."""
        score = (features([text]) @ self.weights[:-1].astype(np.float64))[0] + float(self.weights[-1])
        (share,) = probabilities(np.array([score]), np.array([len(text)]), self.calibration)
        european = round(float(share), NUM_DIGITS)
        return (EUROPEAN, european) if european >= 0.5 else (BRAZILIAN, round(1 - european, NUM_DIGITS))


def run_variety(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Train the classifier if necessary, and run the step.

    Returns:
        Totals; `evaluation`: see `train`.

    Raises:
        ConfigError: Two sources have the same name.
        DataError: A training file is missing or unreadable, or has too little text.
        CheckpointError: The classifier cannot be written or read.
    """
    options = corpus.clean.variety
    model = folder.parent / FOLDER
    evaluation = _trained(options, model)
    hashed = file_sha256(model / MODEL_FILE)
    settings = {"keep": options.keep, "min_score": options.min_score, "format": FORMAT, "model": hashed}
    work = partial(keep_varieties, options, model.resolve())
    stage = Stage("variety", folder, DOCUMENT_SCHEMA, work, settings, stage_output(before))
    return {**run(stage, [(path,) for path in stage_tables(before)]), "evaluation": evaluation}


def keep_varieties(options: Variety, folder: Path, path: Path) -> Iterator[Document | DroppedRow]:
    """Yield the documents of a table that are in one of the varieties or not in Portuguese, and drop the others."""
    model = load(folder)
    for document in read_rows(path):
        if document["language"] in (LANGUAGE, None):
            yield _kept(document, options, "variety", *model.variety_of(document["text"]))
        else:
            yield document


def _trained(options: Variety, folder: Path) -> dict[str, Any]:
    """Return the evaluation of the classifier; train it if there is none for these texts."""
    from safetensors.numpy import save_file

    require_unique_names("clean.variety.sources", options.sources)
    files = []
    for source in options.sources:
        paths = find_files([*source.brazilian, *source.european], f"clean.variety.sources: {source.name}")
        files.append([[path.as_posix(), file_sha256(path)] for path in paths])
    seen = {"format": FORMAT, "sources": [source.model_dump() for source in options.sources], "files": files}
    path = folder / EVALUATION_FILE
    if path.exists() and (record := read_record(path, "trained_on"))["trained_on"] == seen:
        return dict(record["evaluation"])
    log.info("variety: training the classifier on %d sources", len(options.sources))
    model, evaluation = train(read_sources(options.sources))
    with writing(folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with replace_file(folder / MODEL_FILE) as temporary:
            save_file({"weights": model.weights, "calibration": model.calibration}, temporary)
        write_json(path, {"trained_on": seen, "evaluation": evaluation})
    return evaluation


def read_sources(sources: Sequence[VarietySource]) -> "pd.DataFrame":
    """Return the training texts of sources.

    Lines in both varieties of a source are left out. A line of several sources counts for the first only, so that no
    test line of a source is in a training source.

    Returns:
        A row for each line, and for each group of lines, joined by spaces, with the columns source, is_european, length
        (line or document), text, and is_held_out.

    Raises:
        DataError: A file is missing, is unreadable or lacks a column, or there is too little text.
    """
    import pandas as pd

    rows: list[tuple[str, bool, str, str, bool]] = []
    seen: set[str] = set()
    for source in sources:
        key = f"clean.variety.sources: {source.name}"
        sides = []
        for patterns in (source.brazilian, source.european):
            texts_of_files = (read_texts(p, source.columns, of_tables=True) for p in find_files(patterns, key))
            words = (line.split() for texts in texts_of_files for text in texts for line in text.split("\n"))
            sides.append(list(dict.fromkeys(" ".join(line) for line in words if len(line) >= MIN_WORDS)))
        left_out = seen | (set(sides[0]) & set(sides[1]))
        for is_european, lines in enumerate(sides):
            kept = [line for line in lines if line not in left_out]
            cut = [tuple(kept[start : start + GROUP]) for start in range(0, len(kept) - GROUP + 1, GROUP)]
            # Only the hashes of groups decide which are used and held out.
            order = sorted(cut, key=lambda group: hashlib.sha256(" ".join(group).encode("utf-8", "replace")).digest())
            place = {group: number for number, group in enumerate(order[:MAX_GROUPS])}
            groups = [(group, place[group] % HELD_OUT == 0) for group in cut if group in place]
            if len(groups) < MIN_GROUPS:
                variety = ("brazilian", "european")[is_european]
                message = (
                    f"{key}, {variety} has fewer than {MIN_GROUPS * GROUP} lines of {MIN_WORDS} words that neither "
                )
                message += "the other variety nor a source before has; name more files"
                facts: dict[str, Any] = {"key": "clean.variety.sources", "name": source.name, "variety": variety}
                raise DataError(message, code="corpus.too_little_text", **facts)
            for group, is_held_out in groups:
                seen.update(group)
                texts = [*(("line", line) for line in group), ("document", " ".join(group))]
                rows += [(source.name, bool(is_european), length, text, is_held_out) for length, text in texts]
    return pd.DataFrame(rows, columns=["source", "is_european", "length", "text", "is_held_out"])


def load(folder: Path) -> VarietyModel:
    """Read a model.

    Raises:
        CheckpointError: There is no model.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return VarietyModel(**load_file(folder / MODEL_FILE))
    except (OSError, SafetensorError, TypeError) as error:
        message = f"{folder} has no classifier of varieties ({error}); delete it"
        raise CheckpointError(message, code="corpus.damaged", folder=folder) from error


def simplified(text: str) -> str:
    """Return a text in lower case without names and numbers, with a space between words and at both ends."""
    text = text[:MAX_CHARACTERS]
    # In titles and menus all words have capitals, which are not names.
    if 2 * len(_NAME.findall(text)) < len(text.split()):
        text = _NAME.sub("¤", text)
    return f" {' '.join(_NUMBER.sub('0', text).lower().split())} "


def features(texts: Sequence[str]) -> Any:
    """Return the features of texts: n-grams of 2 to 5 characters, and of 1 and 2 words.

    Returns:
        (N, 2 * NUM_FEATURES), sparse: 1 + log of each count, scaled so that the sum of squares of a text is 1.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.preprocessing import normalize

    make = partial(HashingVectorizer, n_features=NUM_FEATURES, alternate_sign=False, norm=None, preprocessor=simplified)
    vectorizers = make(analyzer="char", ngram_range=(2, 5)), make(ngram_range=(1, 2), token_pattern=r"\S+")
    counts = hstack([vectorizer.transform(texts) for vectorizer in vectorizers], format="csr")
    counts.data = 1 + np.log(counts.data)
    return normalize(counts, copy=False)


def probabilities(scores: Any, num_characters: Any, calibration: Any) -> Any:
    """Return the probabilities, (N,), that texts with these scores are European."""
    from scipy.special import expit

    slope, length_slope, bias = calibration
    return expit((slope + length_slope * np.log(np.maximum(1, num_characters))) * scores + bias)


def train(texts: "pd.DataFrame") -> tuple[VarietyModel, dict[str, Any]]:
    """Train a classifier on all texts, and evaluate classifiers that were trained on a part of them.

    Each source, variety and length (line, document) has the same weight, independent of its number of texts.

    Args:
        texts: See `read_sources`.

    Returns:
        The classifier, and its evaluation: the figures of each source, by length, of a classifier that was trained on
        the other sources; for a single source, on nine tenths of it.
    """
    import pandas as pd

    names = texts["source"].unique()
    left_out = [texts["source"] == name for name in names] if len(names) > 1 else [texts["is_held_out"]]
    # With one thread the order of sums does not depend on the machine.
    with require("threadpoolctl", extra="corpus").threadpool_limits(limits=1):
        matrix = features(texts["text"])
        parts = []
        for is_left_out in left_out:  # scored by a model that was trained on the others
            chosen = is_left_out.to_numpy()
            model = _fit(matrix[~chosen], texts[~chosen], C=C)
            parts.append(texts[chosen].assign(score=model.decision_function(matrix[chosen])))
        scored = pd.concat(parts)
        # Probabilities are fitted to scores (Platt, 1999), with a slope that grows with the length of a text.
        lengths = np.log(scored["text"].str.len())
        pairs = np.stack([scored["score"], scored["score"] * lengths], axis=1)
        fitted = _fit(pairs, scored, C=1e3)
        calibration = np.array([*fitted.coef_[0], fitted.intercept_[0]])
        whole = _fit(matrix, texts, C=C)
    weights = np.append(whole.coef_[0], whole.intercept_[0]).astype(np.float32)
    return VarietyModel(weights, calibration), _figures(scored, calibration)


def _fit(matrix: Any, texts: "pd.DataFrame", **options: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    sizes = texts.groupby(["source", "is_european", "length"])["text"].transform("size")
    row_weights = len(texts) / sizes / (1 / sizes).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # may stop early
        return LogisticRegression(max_iter=MAX_STEPS, **options).fit(
            matrix, texts["is_european"], sample_weight=row_weights
        )


def _figures(scored: "pd.DataFrame", calibration: Any) -> dict[str, dict[str, Any]]:
    """Return by source and length: number of texts and recall of each variety, and the mean of both recalls."""
    figures: dict[str, dict[str, Any]] = {}
    for (source, length), chosen in scored.groupby(["source", "length"], sort=False):
        labels = chosen["is_european"].to_numpy()
        european = probabilities(chosen["score"].to_numpy(), chosen["text"].str.len().to_numpy(), calibration)
        recalls = float((european[labels] >= 0.5).mean()), float((european[~labels] < 0.5).mean())
        figures.setdefault(str(source), {})[str(length)] = {
            "num_european": int(labels.sum()),
            "num_brazilian": int((~labels).sum()),
            "european": round(recalls[0], 4),
            "brazilian": round(recalls[1], 4),
            "balanced_accuracy": round(sum(recalls) / 2, 4),
        }
    return figures
