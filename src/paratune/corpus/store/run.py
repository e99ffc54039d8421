"""The stage `store`: tables with sources, and exported texts for training.

WORK/6_store/documents/   a stage, see `paratune.corpus.stage`: part-00000.parquet, ...
WORK/6_store/sentences/   another stage
WORK/6_store/texts/       see `write_texts`
WORK/6_store/stage.json   totals; written last
"""

import hashlib
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.clean.run import output_folder
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
from paratune.corpus.store.tables import stored_documents, stored_sentences, write_texts
from paratune.errors import CheckpointError, ConfigError, coded
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
    """
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
    outputs = [totals and totals["output"] for totals in (documents, sentences)]
    described = json.dumps([FORMAT, corpus.store.model_dump(mode="json"), outputs], sort_keys=True)
    made = hashlib.sha256(described.encode()).hexdigest()
    if (folder / STAGE_FILE).exists() and finished_record(folder)["made"] == made:
        log.info("store: already finished")
        return finished_record(folder)
    (folder / STAGE_FILE).unlink(missing_ok=True)
    unit = corpus.store.unit
    log.info("store: writing texts")
    with writing(folder=folder):
        counts = write_texts(folder, stage_tables(folder / unit), key="id" if unit == DOCUMENTS else "document_id")
    for split, count in counts.items():
        if not count:
            log.warning(
                "store: the split %s is empty and has no file", split, extra=coded("corpus.empty_split", split=split)
            )
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
