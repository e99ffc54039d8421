"""Runs the stages of a corpus in their order, and writes its report, for `paratune corpus`."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paratune.base.atomic import delete_folder, delete_remains, write_text
from paratune.base.text import plain
from paratune.base.units import counted
from paratune.commands.corpus_executor import LOCAL_STAGES, executor_spread
from paratune.console import Display, outlive_readers, print_json, print_result, print_table, set_up_logging
from paratune.corpus import store
from paratune.corpus.clean import run as clean
from paratune.corpus.clean.language import check_languages
from paratune.corpus.clean.personal import check_region
from paratune.corpus.contents import corpus_figures, draw_dropped, draw_kept, finished_stages
from paratune.corpus.extract import run as extract
from paratune.corpus.fetch import run as fetch
from paratune.corpus.index import run as index
from paratune.corpus.inputs import find_files
from paratune.corpus.sentences import run as sentences
from paratune.corpus.sentences.ngram import clean_text_files
from paratune.corpus.settings import Corpus, read_settings
from paratune.corpus.shard import writing
from paratune.corpus.stage import SMALL_BYTES, STAGE_FILE, Processes, Workers
from paratune.errors import CheckpointError, ConfigError, DataError, coded, require_at_least
from paratune.reports.corpus import corpus_html, perplexity_page

log = logging.getLogger(__name__)


def _run_store(corpus: Corpus, workers: Workers, display: Display) -> dict[str, Any]:
    totals = store.run_store(corpus, workers, display)
    if corpus.store.tokens is None:
        return totals
    # Imported here: transformers takes seconds.
    from paratune.data.token_shards import finish_tokens
    from paratune.tasks.corpus_tokens import TokenWriter

    tokens = store.store_tokens(corpus, workers, display, make_writer=TokenWriter, finish_tokens=finish_tokens)
    return totals | {"tokens": tokens}


STAGES: dict[str, tuple[str, Callable[[Corpus, Workers, Display], dict[str, Any]]]] = {
    "index": (index.FOLDER, index.run_index),
    "fetch": (fetch.FOLDER, fetch.run_fetch),
    "extract": (extract.FOLDER, extract.run_extract),
    "clean": (clean.FOLDER, clean.run_clean),
    "sentences": (sentences.FOLDER, partial(sentences.run_sentences, page=perplexity_page)),
    "store": (store.FOLDER, _run_store),
}
"""Name of a stage -> its folder and function, in order; the report is written after the last one."""
EXAMPLE_CONTACTS = ("name@your.institution.pt", "name@institution.pt")
"""Placeholders in the example configurations; no archive can write to them."""
PAGE, SEED = "report.html", 0
_NUM_KEPT, _NUM_DROPPED = 8, 3
"""Number of texts in the report: of the corpus, and for each reason."""
_MAX_REASONS = 6
"""The most frequent reasons of a stage are shown, at most this many."""
LOCK_FILE = "lock"
LOCK_TIMEOUT_S = 0.2


def build_corpus(
    path: Path, *, only: str | None, workers: int | None, as_json: bool, executor: str | None = None, **spread: Any
) -> None:
    """Run the unfinished stages, or again the stage `only`.

    Args:
        executor: For stages that send no requests to an archive, with its options `spread`; see `executor_spread`.

    Raises:
        ParatuneError: The configuration is wrong, a file cannot be read, or the folder is in use.
    """
    corpus = read_settings(path)
    require_at_least("--workers", workers)
    check_inputs(corpus, list(STAGES) if only is None else [only])
    outlive_readers()
    set_up_logging(speaks=True)
    work, num_workers = Path(corpus.work), workers or corpus.workers
    here = Processes(num_workers, small_bytes=SMALL_BYTES)
    shards: Workers = here
    if executor is not None:
        shards = executor_spread(work, executor, workers=num_workers, **spread)
        log.info("%s run on this machine, because they may send requests to an archive", ", ".join(LOCAL_STAGES))
    with _locked(work), here:
        delete_remains(work, is_locked=True)
        totals = {}
        for name, (folder, run) in STAGES.items():
            if only in (None, name):
                if only is not None and (work / folder / STAGE_FILE).exists():
                    delete_folder(work / folder)
                totals[name] = run(corpus, here if name in LOCAL_STAGES else shards, Display(speaks=True))
        if "store" in totals:
            write_report(work)
    if (why := _why_empty(corpus, totals)) is not None:
        log.warning(
            "nothing is left: %s; paratune corpus stats %s shows more", why, plain(path), extra=coded("corpus.empty")
        )
    fetched = totals.get("fetch", {"dropped": {}, "other_digest": 0})
    if num := fetched["dropped"].get("no way to it", 0):
        row, *_ = draw_dropped(work, stage="fetch", reason="no way to it", num=1, seed=SEED)
        extra = coded("corpus.no_source", num=num, url=row["url"])
        example = plain(f"{row['url']}: {row['detail']}")
        log.warning("fetch: no source for %s, such as %s", counted(num, "capture"), example, extra=extra)
    if as_json:
        print_json(totals)
        return
    rows = []
    for name, counts in totals.items():
        rows.append((name, counts["shards"], counts["kept"], _reasons(counts), work / STAGES[name][0]))
    print_table(("stage", "shards", "kept", "dropped", "folder"), rows, right=("shards", "kept"))
    for num, done, remedy in (
        (fetched["dropped"].get("digest", 0), "dropped", "keep keeps them"),
        (fetched["other_digest"], "kept", "drop drops them"),
    ):
        if num:
            digests = f"{counted(num, 'capture')} without the digest of the index"
            print_result(f"{digests}: {done} (fetch.other_digest: {remedy})", is_prose=True)


def _why_empty(corpus: Corpus, totals: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return which stage or step dropped the last documents, and what decides that; None where some are left."""
    stages: list[tuple[str, Mapping[str, Any]]] = []
    for name, counts in totals.items():
        stages += counts["steps"].items() if name == "clean" else [(name, counts)] if name != "sentences" else []
    if not stages or stages[-1][1]["kept"]:
        return None
    name, counts = next(stage for stage in stages if not stage[1]["kept"])
    why = f"{name} kept none ({_reasons(counts) or 'nothing to read'})"
    if name in ("language", "variety"):
        section = getattr(corpus.clean, name)
        default = "" if "keep" in section.model_fields_set else ", the default"
        why += f"; clean.{name}.keep is {', '.join(section.keep)}{default}"
    return why


def _reasons(counts: Mapping[str, Any]) -> str:
    """Return the numbers of dropped rows of a stage by reason, those of the lists that `index` reads included."""
    dropped = dict(counts.get("read", {}).get("dropped", {})) | counts["dropped"]
    return ", ".join(f"{reason} {count}" for reason, count in dropped.items())


def _locked(work: Path) -> AbstractContextManager[object]:
    with writing("used", folder=work):
        work.mkdir(parents=True, exist_ok=True)
        try:
            return FileLock(work / LOCK_FILE).acquire(timeout=LOCK_TIMEOUT_S)
        except Timeout as error:
            message = f"{work} is in use by another process; change work, or wait for the process"
            raise CheckpointError(message, code="run.in_use", folder=work) from error


def check_inputs(corpus: Corpus, stages: Collection[str]) -> None:
    """Check that input files of some stages exist, that languages and region are known, and that the contact is real.

    Raises:
        DataError: Names or patterns match no file (the message lists all), or a file has an unsupported format.
        ConfigError: A language or region is unknown, or the contact is a placeholder.
        MissingDependency: A package of the cleaning is not installed.
    """
    variety, decontaminate = corpus.clean.variety, corpus.clean.decontaminate
    inputs = [
        ("index", "index.files", corpus.index.files),
        ("index", "index.warcs", corpus.index.warcs),
        ("fetch", "index.warcs", corpus.index.warcs),
        ("fetch", "fetch.warcs", corpus.fetch.warcs),
    ]
    for source in variety.sources if corpus.clean.runs("variety") else []:
        inputs.append(("clean", f"clean.variety.sources: {source.name}", [*source.brazilian, *source.european]))
    for evaluation_set in decontaminate.sets if corpus.clean.runs("decontaminate") else []:
        inputs.append(("clean", f"clean.decontaminate.sets: {evaluation_set.name}", evaluation_set.files))
    inputs.append(("sentences", "sentences.clean.files", corpus.sentences.clean.files))
    wanted = ((key, pattern) for stage, key, patterns in inputs if stage in stages for pattern in patterns)
    missing = []
    for key, pattern in dict.fromkeys(wanted):
        try:
            find_files([pattern], key)
        except DataError as error:
            missing.append(str(error))
    if missing:
        heading = [f"{len(missing)} problems"] if len(missing) > 1 else []
        raise DataError("\n  ".join([*heading, *missing]), code="data.not_found")
    if "sentences" in stages:
        clean_text_files(corpus.sentences)
    if "clean" in stages and corpus.clean.runs("language"):
        check_languages(corpus.clean.language)
    if "clean" in stages and corpus.clean.runs("personal"):
        check_region(corpus.clean.personal)
    uses_network = {"index": corpus.index.servers, "fetch": corpus.fetch.ranges or corpus.fetch.replay}
    contact = corpus.network.contact
    if contact in EXAMPLE_CONTACTS and any(uses_network.get(stage) for stage in stages):
        message = f"network.contact is {contact}, a placeholder; set an address that the archive can write to"
        raise ConfigError(message, code="config.placeholder", key="network.contact", value=contact)


def write_report(work: Path) -> None:
    """Write the report of a finished corpus, with figures and samples, which are always the same.

    Raises:
        CheckpointError: The store is not finished, or the files cannot be written.
    """
    figures = corpus_figures(work)
    samples: list[tuple[str, Iterable[Mapping[str, Any]]]] = []
    for unit in ("documents", "sentences") if figures["sentences"] is not None else ("documents",):
        samples.append((f"Samples of the {unit}", draw_kept(work, stage=f"store/{unit}", num=_NUM_KEPT, seed=SEED)))
    for stage in finished_stages(work):
        dropped = stage.totals["dropped"]
        reasons = sorted(dropped, key=lambda reason: (-dropped[reason], reason))[:_MAX_REASONS]
        if reasons and not stage.is_stale:
            draw = partial(draw_dropped, work, stage=stage.name, num=_NUM_DROPPED, seed=SEED)
            samples.append((f"Dropped by {stage.name}", [row for reason in reasons for row in draw(reason=reason)]))
    with writing(path=work / PAGE):
        write_text(work / PAGE, corpus_html(f"Corpus {work.resolve().name}", figures, samples))
