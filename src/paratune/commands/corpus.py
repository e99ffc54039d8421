"""`paratune corpus`: the stages of a corpus, one after the other."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paratune.base.atomic import delete_folder, delete_remains
from paratune.base.text import plain
from paratune.commands import corpus_sentences
from paratune.commands.corpus_executor import AT_HOME, spread_of
from paratune.commands.corpus_progress import ProgressPage
from paratune.commands.corpus_report import write_report
from paratune.console import Display, outlive_readers, print_json, print_result, set_up_logging
from paratune.corpus.clean import run as clean
from paratune.corpus.extract import run as extract
from paratune.corpus.fetch import run as fetch
from paratune.corpus.index import run as index
from paratune.corpus.made import naming_damage
from paratune.corpus.named import check_named
from paratune.corpus.sentences import run as sentences
from paratune.corpus.settings import Corpus, read_settings
from paratune.corpus.spread import ExecutorSpread
from paratune.corpus.stage import STAGE_FILE, spread_by
from paratune.corpus.store import run as store
from paratune.errors import EXIT_OK, CheckpointError, coded, did_you_mean, option_error

log = logging.getLogger(__name__)

STAGES: dict[str, tuple[str, Callable[[Corpus, int, Display], dict[str, Any]]]] = {
    "index": (index.FOLDER, index.run_index),
    "fetch": (fetch.FOLDER, fetch.run_fetch),
    "extract": (extract.FOLDER, extract.run_extract),
    "clean": (clean.FOLDER, clean.run_clean),
    "sentences": (sentences.FOLDER, corpus_sentences.run),
    "store": (store.FOLDER, store.run_store),
}
"""The stages in their order: folder, and function."""
STORE = "store"
"""The stage after which the report is written."""
LOCK_FILE = "lock"
LOOK_S = 0.2


@dataclass(frozen=True)
class Executor:
    """What makes the shards instead of processes of this command."""

    name: str
    tasks: int
    site: Path | None = None
    memory_gib: int | None = None


def corpus_command(
    path: Path, *, only: str | None, workers: int | None, as_json: bool, executor: Executor | None = None
) -> int:
    """Run the stages that are not done yet; return the exit code.

    Args:
        path: The settings.
        only: A stage to run anew, and no other.
        workers: Processes, instead of those of the settings.
        as_json: Whether the result is printed as JSON.
        executor: One of datatrove's, for stages that ask no archive.

    Raises:
        ParatuneError: The settings are wrong, a file cannot be read, or the folder is in use.
    """
    corpus = read_settings(path)
    if only is not None and only not in STAGES:
        raise option_error(
            "--only",
            only,
            f"there is no such stage{did_you_mean(only, STAGES)} ({', '.join(STAGES)})",
            code="cli.unknown_name",
        )
    if workers is not None and workers < 1:
        raise option_error("--workers", workers, "at least 1", code="cli.out_of_range")
    check_named(corpus, list(STAGES) if only is None else [only])
    outlive_readers()
    set_up_logging(speaks=True)
    work = Path(corpus.work)
    spread = None if executor is None else _spread(work, executor, workers or corpus.workers)
    lock = _take(work)
    try:
        delete_remains(work, is_locked=True)
        with ProgressPage(work, [folder for folder, _ in STAGES.values()]) as page, naming_damage(work):
            totals = {}
            for name, (folder, run) in STAGES.items():
                if only in (None, name):
                    if only is not None and (work / folder / STAGE_FILE).exists():
                        delete_folder(work / folder)
                    with nullcontext() if spread is None or name in AT_HOME else spread_by(spread):
                        totals[name] = run(corpus, workers or corpus.workers, Display(speaks=True, heard=page.hear))
        if STORE in totals:
            with naming_damage(work):
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
        print_result(_table(work, totals))
    return EXIT_OK


def _spread(work: Path, executor: Executor, workers: int) -> ExecutorSpread:
    found = spread_of(
        work,
        executor=executor.name,
        tasks=executor.tasks,
        workers=workers,
        site=executor.site,
        memory_gib=executor.memory_gib,
    )
    log.info("%s: %s make no use of it: they may ask an archive, from one machine", executor.name, ", ".join(AT_HOME))
    return found


def _take(work: Path) -> FileLock:
    lock = FileLock(work / LOCK_FILE)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOOK_S)
    except Timeout as error:
        raise CheckpointError(
            f"{work} is in use by another process; change work, or wait for it", code="run.in_use", folder=work
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{work} cannot be used: {error.strerror or error}; change work", code="corpus.not_writable", folder=work
        ) from error
    return lock


def _table(work: Path, totals: Mapping[str, dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("stage", "shards", "kept", "dropped", "folder"):
        table.add_column(head, justify="right" if head in ("shards", "kept") else "left", overflow="fold")
    for name, each in totals.items():
        dropped = dict(each.get("read", {}).get("dropped", {})) | each["dropped"]
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        table.add_row(
            *(name, str(each["shards"]), str(each["kept"])), Text(plain(reasons)), Text(plain(work / STAGES[name][0]))
        )
    return table
