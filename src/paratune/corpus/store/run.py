"""The stage `store`: tables with sources, one database, and exported texts for training.

WORK/6_store/documents/      a stage, see `paratune.corpus.stage`: part-00000.parquet, ...
WORK/6_store/sentences/      another stage
WORK/6_store/texts/          see `paratune.corpus.store.texts`
WORK/6_store/corpus.duckdb   see `paratune.corpus.store.database`
WORK/6_store/stage.json      totals; written last
"""

import hashlib
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.clean.run import output_folder
from paratune.corpus.finished import finished_stages
from paratune.corpus.rows import STORED_DOCUMENT_SCHEMA, STORED_SENTENCE_SCHEMA
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import writing
from paratune.corpus.stage import (
    STAGE_FILE,
    RunStage,
    Stage,
    finished_record,
    refuse_other_files,
    run_stage,
    stage_output,
    stage_tables,
    write_begun,
)
from paratune.corpus.store import database, texts
from paratune.corpus.store.tables import stored_documents, stored_sentences
from paratune.errors import CheckpointError, ConfigError, coded, require_installed
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "6_store"
DOCUMENTS, SENTENCES = "documents", "sentences"
BEFORE_SENTENCES = "5_sentences"
FORMAT = 1  # version of the files; increased when the same input gives other files


def run_store(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the stage, or return its totals if it is finished.

    Returns:
        stage, kept (documents), sentences, dropped (nothing), texts (number by split) and output.

    Raises:
        ConfigError: The unit is sentences, and the corpus has none.
        CheckpointError: A previous stage is not finished, the sentences were made of other documents, or the folder is
            not writable.
        MissingDependency: The database is configured and DuckDB is not installed.
    """
    if corpus.store.database:
        require_installed("duckdb", extra="corpus")
    work = Path(corpus.work)
    folder = work / FOLDER
    if corpus.store.unit == SENTENCES and not _has_sentences(work):
        message = "store.unit is sentences, but the corpus has none; set store.unit: documents"
        raise ConfigError(message, code="config.conflict", key="store.unit")
    refuse_other_files(folder)
    write_begun(folder, {"format": FORMAT})
    run = partial(run_stage, workers=workers, display=display)
    documents = _documents(corpus, run)
    sentences = _sentences(corpus, documents, run) if _has_sentences(work) else None
    made = _fingerprint(corpus, [documents, sentences])
    if (folder / STAGE_FILE).exists() and finished_record(folder)["made"] == made:
        log.info("store: already finished")
        return finished_record(folder)
    (folder / STAGE_FILE).unlink(missing_ok=True)
    with writing(folder=folder):
        counts = _write_forms(corpus, folder, has_sentences=sentences is not None)
    totals = {
        "stage": "store",
        "made": made,
        "shards": documents["shards"],
        "kept": documents["kept"],
        "sentences": None if sentences is None else sentences["kept"],
        "dropped": {},
        "texts": counts,
        "output": documents["output"],
    }
    write_json(folder / STAGE_FILE, totals)
    return totals


def _has_sentences(work: Path) -> bool:
    return (work / BEFORE_SENTENCES / STAGE_FILE).exists()


def _documents(corpus: Corpus, run: RunStage) -> dict[str, Any]:
    before = output_folder(corpus)
    settings = {"validation": corpus.store.validation, "format": FORMAT}
    folder = Path(corpus.work) / FOLDER / DOCUMENTS
    work = partial(stored_documents, corpus.store.validation)
    stage = Stage("store documents", folder, STORED_DOCUMENT_SCHEMA, work, settings, stage_output(before))
    return run(stage, [(table,) for table in stage_tables(before)])


def _sentences(corpus: Corpus, documents: dict[str, Any], run: RunStage) -> dict[str, Any]:
    work = Path(corpus.work)
    before, folder = work / BEFORE_SENTENCES, work / FOLDER
    tables, document_tables = stage_tables(before), stage_tables(folder / DOCUMENTS)
    made_of = finished_record(before)["input"]
    if made_of != stage_output(output_folder(corpus)) or len(tables) != len(document_tables):
        message = f"{before} was made of other documents; run the stage sentences again"
        raise CheckpointError(message, code="corpus.not_finished", path=before)
    source = [stage_output(before), documents["output"]]
    stage = Stage(
        "store sentences", folder / SENTENCES, STORED_SENTENCE_SCHEMA, stored_sentences, {"format": FORMAT}, source
    )
    return run(stage, list(zip(tables, document_tables, strict=True)))


def _fingerprint(corpus: Corpus, tables: list[dict[str, Any] | None]) -> str:
    """Return the SHA-256 of the sources of texts and database."""
    outputs = [totals and totals["output"] for totals in tables]
    stages = [[stage.name, stage.totals["output"]] for stage in finished_stages(Path(corpus.work))]
    made = [FORMAT, corpus.store.model_dump(mode="json"), outputs, stages]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _write_forms(corpus: Corpus, folder: Path, *, has_sentences: bool) -> dict[str, int]:
    """Write texts and database; return the number of texts by split."""
    documents = stage_tables(folder / DOCUMENTS)
    sentences = stage_tables(folder / SENTENCES) if has_sentences else []
    tables = documents if corpus.store.unit == DOCUMENTS else sentences
    log.info("store: writing texts and database")
    counts = texts.write_texts(folder, tables, unit=corpus.store.unit, formats=corpus.store.exports)
    for split, count in counts.items():
        if not count and corpus.store.exports:
            log.warning(
                "store: the split %s is empty and has no file", split, extra=coded("corpus.empty_split", split=split)
            )
    (folder / database.FILE).unlink(missing_ok=True)
    if corpus.store.database:
        database.write_database(folder, documents, sentences, finished_stages(Path(corpus.work)))
    return counts
