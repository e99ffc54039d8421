"""The stage `sentences`: documents are split, each sentence is kept once, and told how well it reads.

Each of its steps is a stage of its own in the folder, so that a changed threshold asks for nothing but the last:

    WORK/5_sentences/split/      sentences of each shard of documents that look like one
    WORK/5_sentences/repeated/   which of them an earlier document has
    WORK/5_sentences/model/      the n-gram models
    WORK/5_sentences/scored/     perplexities
    WORK/5_sentences/            the shards, perplexity.json and perplexity.html
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paratune.base.atomic import write_text
from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.clean.step import read_documents
from paratune.corpus.once import find_repeated, repeated_rows
from paratune.corpus.rows import SENTENCE_SCHEMA, Lost
from paratune.corpus.sentences import rows
from paratune.corpus.sentences.clean import files_of, model_file, train_models
from paratune.corpus.sentences.rows import read_rows
from paratune.corpus.sentences.score import LoadScorer, Unscored, score_shard
from paratune.corpus.sentences.settings import SentenceSettings
from paratune.corpus.sentences.split import reason_against, sentences_of
from paratune.corpus.sentences.thresholds import look_at_thresholds
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import dropped_file, writing
from paratune.corpus.stage import Stage, begin, is_finished, output_of, parts, read_record, run_stage
from paratune.errors import coded
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "5_sentences"
FORMAT = 1
"""Of the rows: raised when the same input gives others than before."""
PERPLEXITY_FILE, PAGE_FILE, MODEL_FILE = "perplexity.json", "perplexity.html", "model.json"
RULE = ("min_words", "max_words", "min_letters", "max_capitals", "whole")
"""Settings that say what looks like a sentence."""


@dataclass(frozen=True)
class Brought:
    """What the stage needs and its room may not import."""

    load_masked_lm: LoadScorer | None = None
    """Makes a scorer of a masked language model."""
    page: Callable[[dict[str, Any]], str] | None = None
    """Makes perplexity.html of what perplexity.json holds."""


def run_sentences(corpus: Corpus, workers: int, display: Display, brought: Brought = Brought()) -> dict[str, Any]:
    """Run the stage, or return what it found before.

    Args:
        corpus: The settings.
        workers: Processes; they change nothing of the result.
        display: Shows how far it is.
        brought: What it needs from elsewhere.

    Returns:
        Its totals, as in stage.json.

    Raises:
        DataError: A shard or a file to learn from cannot be read.
        CheckpointError: The documents are not finished, or the folder cannot be written.
    """
    folder, settings, before = Path(corpus.work) / FOLDER, corpus.sentences, output_folder(corpus)
    documents, source = parts(before), output_of(before)
    learnt_from = _identity(settings)
    described = {**settings.model_dump(), "format": FORMAT, "learnt_from": learnt_from}
    whole = Stage("sentences", folder, SENTENCE_SCHEMA, _finish_shard, described, source)
    if is_finished(whole):
        return run_stage(whole, [], workers=workers, display=display)
    begin(whole, keep=(rows.SPLIT_FOLDER, rows.REPEATED_FOLDER, rows.MODEL_FOLDER, rows.SCORED_FOLDER))
    run = partial(run_stage, workers=workers, display=display)

    rule = {name: described[name] for name in (*RULE, "format")}
    split = Stage("split", folder / rows.SPLIT_FOLDER, rows.SPLIT_SCHEMA, partial(split_shard, settings), rule, source)
    found = run(split, documents)["output"]
    tables, repeated = parts(split.folder), folder / rows.REPEATED_FOLDER
    again = find_repeated(repeated, tables, _keys, settings=None, source=found, workers=workers, display=display)
    models, made_of = _models(folder, settings, [found, again, learnt_from])
    unscored = [
        Unscored(path, repeated, number, settings.scorer, models, made_of, settings.device, brought.load_masked_lm)
        for number, path in enumerate(tables)
    ]
    # How it is reckoned is a matter of the models alone, and of what they are given.
    scored = Stage("scored", folder / rows.SCORED_FOLDER, rows.SCORED_SCHEMA, score_shard, made_of, [found, again])
    run(scored, unscored)
    _show(folder, look_at_thresholds(tables, parts(scored.folder), settings), brought)
    return run(whole, [(folder, number, settings.max_perplexity) for number in range(len(tables))])


def _identity(settings: SentenceSettings) -> list[list[Any]]:
    """Return what tells whether the files to learn from, or those of the model, are still the same."""
    if settings.scorer == "mlm":
        folder = Path(str(settings.model))
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    else:
        files = files_of(settings)
    found = [(path, path.stat()) for path in files]
    return [[path.as_posix(), stat.st_size, stat.st_mtime_ns] for path, stat in found]


def split_shard(settings: SentenceSettings, path: Path) -> Iterator[dict[str, Any] | Lost]:
    """Yield the sentences of a shard of documents, and why some are not kept."""
    for document in read_documents(path):
        known = {"document_id": document["id"], "url": document["url"], "language_score": document["language_score"]}
        for position, text in enumerate(sentences_of(document["text"])):
            reason = reason_against(text, settings)
            if reason is not None:
                yield Lost(document["url"], reason, text, document["id"])
                continue
            digest = hashlib.sha256(text.encode()).hexdigest()
            num_words = text.count(" ") + 1
            yield {**known, "position": position, "num_words": num_words, "text": text, "sha256": digest}


def _keys(path: Path) -> Iterator[bytes]:
    return (bytes.fromhex(row["sha256"]) for row in read_rows(path, ["sha256"]))


def _models(folder: Path, settings: SentenceSettings, source: list[Any]) -> tuple[tuple[str, ...], str]:
    """Return the models that score, trained where they are not there, and their fingerprint."""
    made_of = {"scorer": settings.scorer, "source": source}
    if settings.scorer == "mlm":
        return (str(settings.model),), _digest({**made_of, "model": settings.model, "device": settings.device})
    if settings.scorer == "none":
        return (), _digest(made_of)
    folder = folder / rows.MODEL_FOLDER
    fingerprint = _digest({**made_of, "clean": settings.clean.model_dump()})
    path = folder / MODEL_FILE
    if not path.exists() or read_record(path, "fingerprint")["fingerprint"] != fingerprint:
        with writing("made", folder=folder):
            folder.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
        log.info("sentences: training the n-gram model")
        write_json(path, {"fingerprint": fingerprint, "models": train_models(folder, folder.parent, settings)})
    learnt = read_record(path, "models")["models"]
    if not learnt:
        log.warning(
            "sentences: too few for an n-gram model; name texts in sentences.clean.files. No perplexities.",
            extra=coded("corpus.no_perplexity"),
        )
    return tuple(str(folder / model_file(number)) for number in range(len(learnt))), fingerprint


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _show(folder: Path, found: dict[str, Any], brought: Brought) -> None:
    write_json(folder / PERPLEXITY_FILE, found)
    if brought.page is None:
        return
    path = folder / PAGE_FILE
    with writing(path=path):
        write_text(path, brought.page(found))


def _finish_shard(each: tuple[Path, int, float | None]) -> Iterator[dict[str, Any] | Lost]:
    """Yield the sentences of a shard that are kept, and why the others are not."""
    folder, number, most = each
    (split, scored), repeated = (
        [parts(folder / name)[number] for name in (rows.SPLIT_FOLDER, rows.SCORED_FOLDER)],
        repeated_rows(folder / rows.REPEATED_FOLDER, number),
    )
    dropped = read_rows(folder / rows.SPLIT_FOLDER / dropped_file(number))
    yield from (Lost(row["url"], row["reason"], row["detail"], row["id"]) for row in dropped)
    perplexities = (row["perplexity"] for row in read_rows(scored, ["perplexity"]))
    for place, row in enumerate(read_rows(split)):
        if place in repeated:
            yield Lost(row["url"], "duplicate", row["text"], row["document_id"])
            continue
        perplexity = next(perplexities)
        if most is not None and perplexity is not None and perplexity > most:
            yield Lost(row["url"], "perplexity", f"{perplexity:.1f} {row['text']}", row["document_id"])
            continue
        yield {**{name: row[name] for name in SENTENCE_SCHEMA.names[:-1]}, "perplexity": perplexity}
