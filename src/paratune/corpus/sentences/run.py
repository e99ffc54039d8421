"""The stage `sentences`: splits documents, keeps each sentence once, and computes perplexities.

Each step is a stage with a separate folder, so that a new threshold needs only the last step:

    WORK/5_sentences/split/      sentences of each shard of documents
    WORK/5_sentences/repeated/   sentences that repeat an earlier one
    WORK/5_sentences/model/      n-gram models
    WORK/5_sentences/scored/     perplexities
    WORK/5_sentences/            shards, perplexity.json and perplexity.html
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paratune.base.atomic import write_text
from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.database import repeated_rows
from paratune.corpus.index.inputs import file_identity
from paratune.corpus.rows import SENTENCE_SCHEMA, DroppedRow
from paratune.corpus.sentences import rows
from paratune.corpus.sentences.clean import clean_text_files, model_file, train_models
from paratune.corpus.sentences.rows import read_sentences, repeated_in
from paratune.corpus.sentences.score import score_shard
from paratune.corpus.sentences.split import rejection_reason, split_sentences
from paratune.corpus.sentences.thresholds import evaluate_thresholds
from paratune.corpus.settings import Corpus, SentenceSettings
from paratune.corpus.shard import dropped_file, read_rows, writing
from paratune.corpus.stage import Stage, begin, is_finished, read_record, run_stage, stage_output, stage_tables
from paratune.errors import coded
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "5_sentences"
FORMAT = 1  # version of the rows; increased when the same input gives other rows
PERPLEXITY_FILE, PAGE_FILE, MODEL_FILE = "perplexity.json", "perplexity.html", "model.json"
RULE = ("min_words", "max_words", "min_letters", "max_capitals", "whole")
"""Settings that the step `split` depends on."""


def run_sentences(
    corpus: Corpus, workers: int, display: Display, page: Callable[[dict[str, Any]], str] | None = None
) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json) if it is finished.

    Args:
        page: Returns perplexity.html for the content of perplexity.json; this package does not import reports.

    Raises:
        DataError: A table or a training file is unreadable.
        CheckpointError: The documents are not finished, or the folder is not writable.
    """
    folder, settings, before = Path(corpus.work) / FOLDER, corpus.sentences, output_folder(corpus)
    documents, source = stage_tables(before), stage_output(before)
    learnt_from = file_identity(clean_text_files(settings))
    described = {**settings.model_dump(), "format": FORMAT, "learnt_from": learnt_from}
    work = partial(_finish_shard, folder, settings.max_perplexity)
    whole = Stage("sentences", folder, SENTENCE_SCHEMA, work, described, source)
    run = partial(run_stage, workers=workers, display=display)
    if is_finished(whole):
        return run(whole, [])
    begin(whole, keep=(rows.SPLIT_FOLDER, rows.REPEATED_FOLDER, rows.MODEL_FOLDER, rows.SCORED_FOLDER))

    rule = {name: described[name] for name in (*RULE, "format")}
    split = Stage("split", folder / rows.SPLIT_FOLDER, rows.SPLIT_SCHEMA, partial(split_shard, settings), rule, source)
    split_output = run(split, [(path,) for path in documents])["output"]
    tables, repeated_folder = stage_tables(split.folder), folder / rows.REPEATED_FOLDER
    find_repeated = partial(_find_repeated, repeated_folder)
    repeated = Stage("repeated", repeated_folder, rows.REPEATED_SCHEMA, find_repeated, None, split_output)
    run(repeated, [(tables,)])
    paths, models_id = _models(folder, settings, [split_output, learnt_from])
    # Perplexities depend only on the models and the sentences.
    score = partial(score_shard, paths, models_id, folder)
    scored = Stage("scored", folder / rows.SCORED_FOLDER, rows.SCORED_SCHEMA, score, models_id, split_output)
    run(scored, [(path, number) for number, path in enumerate(tables)])
    evaluation = evaluate_thresholds(folder, tables, stage_tables(scored.folder), settings)
    write_json(folder / PERPLEXITY_FILE, evaluation)
    if page is not None:
        with writing(path=folder / PAGE_FILE):
            write_text(folder / PAGE_FILE, page(evaluation))
    return run(whole, [(number,) for number in range(len(tables))])


def split_shard(settings: SentenceSettings, path: Path) -> Iterator[dict[str, Any] | DroppedRow]:
    """Yield the sentences of a table of documents, and drop those that do not look like one."""
    for document in read_rows(path):
        known = {"document_id": document["id"], "url": document["url"], "language_score": document["language_score"]}
        for position, text in enumerate(split_sentences(document["text"])):
            reason = rejection_reason(text, settings)
            if reason is not None:
                yield DroppedRow(document["url"], reason, text, document["id"])
                continue
            digest = hashlib.sha256(text.encode()).hexdigest()
            num_words = text.count(" ") + 1
            yield {**known, "position": position, "num_words": num_words, "text": text, "sha256": digest}


def _find_repeated(folder: Path, tables: Sequence[Path]) -> Iterator[dict[str, int]]:
    """Yield the rows of REPEATED_SCHEMA."""
    for shard, row in repeated_rows(folder, tables, "sha256"):
        yield {"shard": shard, "row": row}


def _models(folder: Path, settings: SentenceSettings, source: list[Any]) -> tuple[tuple[str, ...], str]:
    """Return the paths of the models, trained if necessary, and their fingerprint."""
    made_of = {"scorer": settings.scorer, "source": source}
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
            "sentences: too few for an n-gram model, no perplexities; set training texts in sentences.clean.files",
            extra=coded("corpus.no_perplexity"),
        )
    return tuple(str(folder / model_file(number)) for number in range(len(learnt))), fingerprint


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _finish_shard(folder: Path, max_perplexity: float | None, number: int) -> Iterator[dict[str, Any] | DroppedRow]:
    """Yield the sentences of a shard, and drop repeated ones and those with a high perplexity."""
    split, scored = (stage_tables(folder / name)[number] for name in (rows.SPLIT_FOLDER, rows.SCORED_FOLDER))
    repeated = repeated_in(folder, number)
    dropped = read_sentences(folder / rows.SPLIT_FOLDER / dropped_file(number))
    yield from (DroppedRow(row["url"], row["reason"], row["detail"], row["id"]) for row in dropped)
    perplexities = (row["perplexity"] for row in read_sentences(scored, ["perplexity"]))
    for place, row in enumerate(read_sentences(split)):
        if place in repeated:
            yield DroppedRow(row["url"], "duplicate", row["text"], row["document_id"])
            continue
        perplexity = next(perplexities)
        if max_perplexity is not None and perplexity is not None and perplexity > max_perplexity:
            yield DroppedRow(row["url"], "perplexity", f"{perplexity:.1f} {row['text']}", row["document_id"])
            continue
        yield {**{name: row[name] for name in SENTENCE_SCHEMA.names[:-1]}, "perplexity": perplexity}
