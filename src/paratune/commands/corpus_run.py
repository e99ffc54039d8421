"""Runs the stages of a corpus in their order, for `paratune corpus`."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paratune.base.atomic import delete_folder, delete_remains
from paratune.base.text import plain
from paratune.commands.corpus_executor import LOCAL_STAGES, executor_spread
from paratune.commands.corpus_report import write_report
from paratune.console import Display, outlive_readers, print_json, print_table, set_up_logging
from paratune.corpus.clean import run as clean
from paratune.corpus.executors import ShardExecutor
from paratune.corpus.extract import run as extract
from paratune.corpus.fetch import run as fetch
from paratune.corpus.finished import name_damaged_table
from paratune.corpus.index import run as index
from paratune.corpus.input_check import check_inputs
from paratune.corpus.sentences import run as sentences
from paratune.corpus.settings import Corpus, read_settings
from paratune.corpus.stage import STAGE_FILE, Workers
from paratune.corpus.store import run as store
from paratune.errors import EXIT_OK, CheckpointError, coded, did_you_mean, option_error, require_at_least
from paratune.reports.corpus import perplexity_page

log = logging.getLogger(__name__)

STAGES: dict[str, tuple[str, Callable[[Corpus, Workers, Display], dict[str, Any]]]] = {
    "index": (index.FOLDER, index.run_index),
    "fetch": (fetch.FOLDER, fetch.run_fetch),
    "extract": (extract.FOLDER, extract.run_extract),
    "clean": (clean.FOLDER, clean.run_clean),
    "sentences": (sentences.FOLDER, partial(sentences.run_sentences, page=perplexity_page)),
    "store": (store.FOLDER, store.run_store),
}
"""Name of a stage -> its folder and function, in order."""
STORE = "store"
"""The stage after which the report is written."""
LOCK_FILE = "lock"
LOCK_TIMEOUT_S = 0.2


@dataclass(frozen=True)
class Executor:
    """An executor of datatrove that makes the shards, instead of processes of this command."""

    name: str
    """local, slurm or ray."""
    tasks: int
    site: Path | None = None
    memory_gib: int | None = None


def build_corpus(
    path: Path, *, only: str | None, workers: int | None, as_json: bool, executor: Executor | None = None
) -> int:
    """Run the unfinished stages, and return the exit code.

    Args:
        only: The only stage to run, again from its start.
        executor: For stages that send no requests to an archive.

    Raises:
        ParatuneError: The configuration is wrong, a file cannot be read, or the folder is in use.
    """
    corpus = read_settings(path)
    if only is not None and only not in STAGES:
        reason = f"there is no such stage{did_you_mean(only, STAGES)} ({', '.join(STAGES)})"
        raise option_error("--only", only, reason, code="cli.unknown_name")
    require_at_least("--workers", workers)
    check_inputs(corpus, list(STAGES) if only is None else [only])
    outlive_readers()
    set_up_logging(speaks=True)
    work = Path(corpus.work)
    here = workers or corpus.workers
    spread: Workers = here if executor is None else _spread(work, executor, here)
    lock = _lock(work)
    try:
        delete_remains(work, is_locked=True)
        with name_damaged_table(work):
            totals = {}
            for name, (folder, run) in STAGES.items():
                if only in (None, name):
                    if only is not None and (work / folder / STAGE_FILE).exists():
                        delete_folder(work / folder)
                    totals[name] = run(corpus, here if name in LOCAL_STAGES else spread, Display(speaks=True))
        if STORE in totals:
            with name_damaged_table(work):
                write_report(work)
            if totals[STORE]["kept"] == 0:
                log.warning(
                    "the corpus is empty: no document was kept; paratune corpus stats %s shows why",
                    plain(path),
                    extra=coded("corpus.empty"),
                )
    finally:
        lock.release()
    if as_json:
        print_json(totals)
    else:
        _show(work, totals)
    return EXIT_OK


def _spread(work: Path, executor: Executor, workers: int) -> ShardExecutor:
    spread = executor_spread(
        work, executor.name, tasks=executor.tasks, workers=workers, site=executor.site, memory_gib=executor.memory_gib
    )
    log.info("%s run on this machine, because they may send requests to an archive", ", ".join(LOCAL_STAGES))
    return spread


def _lock(work: Path) -> FileLock:
    lock = FileLock(work / LOCK_FILE)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout as error:
        raise CheckpointError(
            f"{work} is in use by another process; change work, or wait for the process", code="run.in_use", folder=work
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{work} cannot be used: {error.strerror or error}; change work", code="corpus.not_writable", folder=work
        ) from error
    return lock


def _show(work: Path, totals: Mapping[str, dict[str, Any]]) -> None:
    rows = []
    for name, counts in totals.items():
        dropped = dict(counts.get("read", {}).get("dropped", {})) | counts["dropped"]
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        rows.append((name, counts["shards"], counts["kept"], reasons, work / STAGES[name][0]))
    print_table(("stage", "shards", "kept", "dropped", "folder"), rows, right=("shards", "kept"))
