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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import write_text
from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.database import connection, parquet, repeated_rows
from paratune.corpus.inputs import file_identity
from paratune.corpus.sentences.ngram import (
    MODEL_FILE,
    clean_text_files,
    corpus_half,
    load_ngram,
    ngram_perplexity,
    train_models,
)
from paratune.corpus.sentences.split import rejection_reason, split_sentences
from paratune.corpus.settings import Corpus, SentenceSettings
from paratune.corpus.shard import SENTENCE_SCHEMA, DroppedRow, part_file, read_rows, reading, text_columns, writing
from paratune.corpus.stage import Stage, Workers, begin, is_finished, read_record, run_stage, stage_output, stage_tables
from paratune.errors import coded
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "5_sentences"
FORMAT = 3  # version of the rows; increased when the same input gives other rows
SPLIT_FOLDER, REPEATED_FOLDER, MODEL_FOLDER, SCORED_FOLDER = "split", "repeated", "model", "scored"
MODELS_FILE, PERPLEXITY_FILE, PAGE_FILE = "model.json", "perplexity.json", "perplexity.html"
RULE = ("min_words", "max_words", "min_letters", "max_capitals", "whole")
"""Settings that the step `split` depends on."""
SPLIT_SCHEMA = pa.schema(
    text_columns("document_id", "url")
    | {"language_score": pa.float32(), "position": pa.int32(), "num_words": pa.int32()}
    | text_columns("text", "sha256")
)
"""Sentences as in SENTENCE_SCHEMA, with columns of their document; `num_words` counts words between white space."""
REPEATED_SCHEMA = pa.schema([("shard", pa.int64()), ("row", pa.int64())])
"""Shard of `split` and row in it of each sentence that repeats an earlier one, in order."""
SCORED_SCHEMA = pa.schema([("row", pa.int64()), ("perplexity", pa.float32())])
"""Row of each sentence that repeats no earlier one in its shard of `split`, and its perplexity."""

read_sentences = partial(read_rows, batch_size=2_000)
"""Yields the rows of a table of sentences."""


Page = Callable[[dict[str, Any]], str]
"""Returns perplexity.html from the content of perplexity.json."""


def run_sentences(corpus: Corpus, workers: Workers, display: Display, *, page: Page | None = None) -> dict[str, Any]:
    """Run the stage, or return its totals (stage.json) if it is finished.

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
    begin(whole, keep=(SPLIT_FOLDER, REPEATED_FOLDER, MODEL_FOLDER, SCORED_FOLDER))

    rule = {name: described[name] for name in (*RULE, "format")}
    split = Stage("split", folder / SPLIT_FOLDER, SPLIT_SCHEMA, partial(split_shard, settings), rule, source)
    split_output = run(split, [(path,) for path in documents])["output"]
    tables, repeated_folder = stage_tables(split.folder), folder / REPEATED_FOLDER
    find_repeated = partial(_find_repeated, repeated_folder)
    repeated = Stage("repeated", repeated_folder, REPEATED_SCHEMA, find_repeated, None, split_output)
    run(repeated, [(tables,)])
    paths, models_id = _models(folder / MODEL_FOLDER, tables, settings, [split_output, learnt_from])
    # Perplexities depend only on the models and the sentences.
    score = partial(score_shard, paths, models_id, folder)
    scored = Stage("scored", folder / SCORED_FOLDER, SCORED_SCHEMA, score, models_id, split_output)
    run(scored, [(path, number) for number, path in enumerate(tables)])
    if tables:
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
    for shard, row in repeated_rows(folder, tables, "sha256"):
        yield {"shard": shard, "row": row}


def _repeated_in(folder: Path, shard: int) -> set[int]:
    """Return the rows of a shard of `split` that repeat an earlier sentence; `folder` is that of the stage."""
    (path,) = stage_tables(folder / REPEATED_FOLDER)
    with reading(path):
        table = pq.read_table(path, columns=["row"], filters=[("shard", "=", shard)], partitioning=None)
    return set(table["row"].to_pylist())


def _models(
    folder: Path, split: Sequence[Path], settings: SentenceSettings, source: list[Any]
) -> tuple[tuple[str, ...], str]:
    """Return the paths of the models, trained if necessary, and their fingerprint."""
    made_of: dict[str, Any] = {"scorer": settings.scorer, "source": source}
    if settings.scorer == "ngram":
        made_of["clean"] = settings.clean.model_dump()
    fingerprint = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    if settings.scorer == "none":
        return (), fingerprint
    path = folder / MODELS_FILE
    if not path.exists() or read_record(path, "fingerprint")["fingerprint"] != fingerprint:
        with writing("made", folder=folder):
            folder.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
        log.info("sentences: training the n-gram model")
        models = train_models(folder, split, stage_tables(folder.parent / REPEATED_FOLDER), settings)
        write_json(path, {"fingerprint": fingerprint, "models": models})
    learnt = read_record(path, "models")["models"]
    if not learnt:
        message = "sentences: too few for an n-gram model, no perplexities; set training texts in sentences.clean.files"
        log.warning(message, extra=coded("corpus.no_perplexity"))
    return tuple(str(folder / MODEL_FILE.format(number)) for number in range(len(learnt))), fingerprint


def score_shard(
    models: Sequence[str], fingerprint: str, folder: Path, path: Path, number: int
) -> Iterator[dict[str, Any]]:
    """Yield row and perplexity of each sentence that repeats no earlier one.

    Args:
        models: ARPA files: one for all sentences, or one trained on each half; without any, perplexities are None.
        fingerprint: Fingerprint of the models.
        folder: Folder of the stage.
        path: Table number `number` of split sentences.
    """
    repeated = _repeated_in(folder, number)
    ngrams = [load_ngram(model, fingerprint) for model in models]
    for row, sentence in enumerate(read_sentences(path, ["document_id", "text"])):
        if row not in repeated:
            # The model of half 0 scores half 1, and the other way round.
            other = corpus_half(sentence["document_id"]) - 1 if len(ngrams) > 1 else 0
            yield {"row": row, "perplexity": ngram_perplexity(ngrams[other], sentence["text"]) if ngrams else None}


def _finish_shard(folder: Path, max_perplexity: float | None, number: int) -> Iterator[dict[str, Any] | DroppedRow]:
    """Yield the sentences of a shard, and drop repeated ones and those with a high perplexity."""
    split, scored = (stage_tables(folder / name)[number] for name in (SPLIT_FOLDER, SCORED_FOLDER))
    repeated = _repeated_in(folder, number)
    dropped = read_sentences(folder / SPLIT_FOLDER / part_file(number, "dropped"))
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


QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
NUM_SAMPLES = 6
"""Sentences on each side of a threshold, the nearest ones."""


def evaluate_thresholds(
    folder: Path, split: Sequence[Path], scored: Sequence[Path], settings: SentenceSettings
) -> dict[str, Any]:
    """Return the content of perplexity.json.

    Args:
        folder: Folder for temporary files.
        scored: At least one table.
        settings: Settings with the thresholds; quantiles by default.

    Returns:
        scorer, num_sentences, num_unknown (sentences without a perplexity), max_perplexity, quantiles (within 0.2%),
        histogram (edges and counts, from 1, ten bins per decade); for each threshold number and share of the sentences
        above it, and the sentences nearest to it: below (or equal) and above.
    """
    with connection(folder) as db:
        db.execute(f"CREATE VIEW scored AS SELECT perplexity, file_index AS shard, row FROM {parquet(scored)}")
        ((num, num_known),) = db.execute("SELECT count(*), count(perplexity) FROM scored").fetchall()
        # By thousandths of a decade: all exact values would be in memory at once. A damaged score may be infinite.
        place = "floor(1000 * log10(least(greatest(perplexity::DOUBLE, 1), 1e10)))::INTEGER"
        counts = db.execute(
            f"SELECT {place}, count(*) FROM scored WHERE perplexity IS NOT NULL GROUP BY 1 ORDER BY 1"
        ).fetchall()
        seen = [*accumulate(count for _, count in counts)]
        quantiles = {}
        for share in QUANTILES if counts else ():
            # The upper edge of the bin of this rank, to three digits.
            upper = next(place for (place, _), rank in zip(counts, seen, strict=True) if rank >= share * num_known) + 1
            quantiles[f"{share:g}"] = float(f"{10 ** (upper / 1000):.3g}")
        wanted = {*(settings.thresholds or quantiles.values()), settings.max_perplexity} - {None}
        thresholds = [_evaluated(db, split, threshold, num_known) for threshold in sorted(wanted) if counts]
    bars = Counter[int]()
    for place, count in counts:
        bars[place // 100] += count
    tenths = range(min(bars), max(bars) + 1) if bars else range(0)
    return {
        "scorer": settings.scorer,
        "num_sentences": num,
        "num_unknown": num - num_known,
        "max_perplexity": settings.max_perplexity,
        "quantiles": quantiles,
        "histogram": {
            "edges": [float(f"{10 ** (tenth / 10):.4g}") for tenth in (*tenths, tenths.stop) if bars],
            "counts": [bars[tenth] for tenth in tenths],
        },
        "thresholds": thresholds,
    }


def _evaluated(db: Any, split: Sequence[Path], threshold: float, num_known: int) -> dict[str, Any]:
    # Compared as FLOAT, the type in the table.
    ((num_above,),) = db.execute("SELECT count(*) FROM scored WHERE perplexity > ?::FLOAT", [threshold]).fetchall()
    samples = {}
    for side, is_on_side, order in (("below", "<=", "DESC"), ("above", ">", "ASC")):
        rows = db.execute(
            f"""
            WITH nearest AS (
                SELECT * FROM scored WHERE perplexity {is_on_side} ?::FLOAT
                ORDER BY perplexity {order}, shard, row LIMIT {NUM_SAMPLES}
            )
            SELECT perplexity, text, url FROM nearest
            JOIN {parquet(split)} sentences ON sentences.file_index = shard AND sentences.file_row_number = row
            ORDER BY perplexity, shard, row
            """,
            [threshold],
        ).fetchall()
        samples[side] = [{"perplexity": value, "text": text, "url": url} for value, text, url in rows]
    return {"perplexity": threshold, "num_above": num_above, "share_above": num_above / num_known, **samples}
