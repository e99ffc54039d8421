"""The step `variety`: identifies the variety of Portuguese documents and drops those in other varieties.

WORK/4_clean/variety/   classifier, with evaluation.json: training texts and evaluation
"""

import hashlib
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from paratune.corpus.clean.settings import Variety
from paratune.corpus.clean.step import Document, drop, require_unique_names, run_documents
from paratune.corpus.clean.variety.model import FORMAT, MODEL_FILE, WEIGHTS_FILE, load, save
from paratune.corpus.clean.variety.texts import groups_by_source, source_files
from paratune.corpus.clean.variety.train import train
from paratune.corpus.rows import DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import read_rows, writing
from paratune.corpus.stage import RunStage, read_record
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "variety"
EVALUATION_FILE = "evaluation.json"
LANGUAGE = "pt"


def run_variety(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Train the classifier if necessary, and run the step.

    Returns:
        Totals; `evaluation`: see `paratune.corpus.clean.variety.train`.

    Raises:
        ConfigError: Two sources have the same name.
        DataError: A training file is missing or unreadable, or has too little text.
        CheckpointError: The classifier cannot be written or read.
    """
    options = corpus.clean.variety
    model = folder.parent / FOLDER
    evaluation = _trained(options, model)
    hashes = [hashlib.sha256((model / name).read_bytes()).hexdigest() for name in (WEIGHTS_FILE, MODEL_FILE)]
    settings = {"keep": options.keep, "min_score": options.min_score, "format": FORMAT, "model": hashes}
    chosen = (options, model.resolve())
    totals = run_documents(folder, before, keep_varieties, chosen, settings, run)
    return {**totals, "evaluation": evaluation}


def keep_varieties(chosen: tuple[Variety, Path], path: Path) -> Iterator[Document | DroppedRow]:
    """Yield the documents of a table that are in one of the varieties or not in Portuguese, and drop the others."""
    options, folder = chosen
    model = _model(folder)
    for document in read_rows(path):
        if document["language"] not in (LANGUAGE, None):
            yield document
            continue
        variety, score = model.variety_of(document["text"])
        if variety not in options.keep:
            yield drop(document, "variety", f"{variety} {score}")
        elif score < options.min_score:
            yield drop(document, "variety unsure", f"{variety} {score}")
        else:
            yield {**document, "variety": variety, "variety_score": score}


@cache
def _model(folder: Path) -> Any:
    return load(folder)


def _trained(options: Variety, folder: Path) -> dict[str, Any]:
    """Return the evaluation of the classifier; train it if there is none for these texts."""
    require_unique_names("clean.variety.sources", options.sources)
    sources = [source_files(source) for source in options.sources]
    seen = {"format": FORMAT, "sources": [source.identity() for source in sources]}
    path = folder / EVALUATION_FILE
    if path.exists() and (record := read_record(path, "trained_on"))["trained_on"] == seen:
        return dict(record["evaluation"])
    log.info("variety: training the classifier on %d sources", len(sources))
    model, evaluation = train(groups_by_source(sources))
    with writing(folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        save(model, folder)
        write_json(path, {"trained_on": seen, "evaluation": evaluation})
    _model.cache_clear()
    return evaluation
