"""The step: documents with their variety of Portuguese, without those of the other.

WORK/4_clean/variety/   the classifier, with evaluation.json: what it was trained on, and how well it does
"""

import hashlib
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.clean.settings import Variety
from paratune.corpus.clean.step import Document, Shard, lost, read_documents, run_documents
from paratune.corpus.clean.variety.model import FORMAT, MODEL_FILE, WEIGHTS_FILE, load, save
from paratune.corpus.clean.variety.texts import files_of, groups_by_source
from paratune.corpus.clean.variety.train import train
from paratune.corpus.rows import Lost
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import writing
from paratune.corpus.stage import read_record
from paratune.errors import ConfigError
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "variety"
EVALUATION_FILE = "evaluation.json"
LANGUAGE = "pt"


def run_variety(corpus: Corpus, before: Path, folder: Path, workers: int, display: Display) -> dict[str, Any]:
    """Train the classifier if that is not done, and run the step.

    Returns:
        The totals of the step, and `evaluation`, see `paratune.corpus.clean.variety.train`.

    Raises:
        ConfigError: Two sources have one name.
        DataError: A file that is trained on is missing, cannot be read, or is of both varieties.
        CheckpointError: The classifier cannot be written or read.
    """
    options = corpus.clean.variety
    model = folder.parent / FOLDER
    evaluation = _trained(options, model)
    hashes = [hashlib.sha256((model / name).read_bytes()).hexdigest() for name in (WEIGHTS_FILE, MODEL_FILE)]
    settings = {"keep": options.keep, "min_score": options.min_score, "format": FORMAT, "model": hashes}
    chosen = (options, model.resolve())
    totals = run_documents(folder, before, keep_varieties, chosen, settings, workers=workers, display=display)
    return {**totals, "evaluation": evaluation}


def keep_varieties(shard: Shard) -> Iterator[Document | Lost]:
    """Yield the documents of a shard in one of the varieties, or not in Portuguese, and why others are not."""
    options: Variety
    options, folder = shard.options
    model = _model(folder)
    for document in read_documents(shard.path):
        if document["language"] not in (LANGUAGE, None):
            yield document
            continue
        variety, score = model.variety_of(document["text"])
        if variety not in options.keep:
            yield lost(document, "variety", f"{variety} {score}")
        elif score < options.min_score:
            yield lost(document, "variety unsure", f"{variety} {score}")
        else:
            yield {**document, "variety": variety, "variety_score": score}


@cache
def _model(folder: Path) -> Any:
    return load(folder)


def _trained(options: Variety, folder: Path) -> dict[str, Any]:
    """Return the evaluation of the classifier, which is trained if there is none of these texts."""
    names = [source.name for source in options.sources]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"clean.variety.sources: {', '.join(names)}; each must have a name of its own",
            code="config.named_twice",
            key="clean.variety.sources",
        )
    sources = [files_of(source) for source in options.sources]
    seen = {"format": FORMAT, "sources": [source.identity() for source in sources]}
    path = folder / EVALUATION_FILE
    if path.exists() and (found := read_record(path, "trained_on"))["trained_on"] == seen:
        return dict(found["evaluation"])
    log.info("variety: the classifier is trained, on %d sources", len(names))
    model, evaluation = train(groups_by_source(sources))
    with writing(folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        save(model, folder)
        write_json(path, {"trained_on": seen, "evaluation": evaluation})
    _model.cache_clear()
    return evaluation
