"""`paratune corpus`: builds a corpus, and shows its content."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Group
from rich.text import Text

from paratune.base.text import plain, plain_lines
from paratune.commands.options import Json
from paratune.console import print_json, print_result
from paratune.errors import CheckpointError, ConfigError, require_at_least

StageName = Literal["index", "fetch", "extract", "clean", "sentences", "store"]
_MAX_CHARACTERS = 1000
"""Characters of one text in a terminal."""


def stats(path: Path, /, *, json: Json = False) -> None:
    """Show what each stage kept and dropped, and the languages, years, hosts and lengths of the kept texts.

    PATH is the configuration of a corpus, or its work folder.
    """
    from paratune.corpus.contents import corpus_figures
    from paratune.reports.corpus import corpus_tables
    from paratune.reports.terminal import TextBlock, TextScreen

    work = work_folder(path)
    figures = corpus_figures(work)
    if json:
        print_json(figures)
        return
    print_result(TextScreen([TextBlock("line", table) for table in corpus_tables(figures)]))


def sample(
    path: Path,
    /,
    *,
    num: Annotated[int, Parameter(alias="-n")] = 10,
    seed: int = 0,
    stage: str | None = None,
    dropped: bool = False,
    reason: str | None = None,
    json: Json = False,
) -> None:
    """Show random texts of a corpus, or random texts that a stage dropped, with the reasons.

    PATH is the configuration of a corpus, or its work folder.

    Args:
        num: number of texts
        seed: seed; the same seed shows the same texts
        stage: stage that kept or dropped the texts, such as clean/quality or store/sentences; default: the documents of
            the finished corpus
        dropped: show dropped texts
        reason: show only texts that were dropped for this reason
    """
    from paratune.corpus.contents import draw_dropped, draw_kept

    require_at_least("--num", num)
    work = work_folder(path)
    if dropped or reason is not None:
        rows = draw_dropped(work, stage=stage, reason=reason, num=num, seed=seed)
    else:
        rows = draw_kept(work, stage=stage, num=num, seed=seed)
    if json:
        print_json(rows)
    elif rows:
        print_result(Group(*(part for row in rows for part in _shown(row))), is_prose=True)
    else:
        print_result(Text("nothing found"))


def work_folder(path: Path) -> Path:
    """Return the work folder: `path` itself, or the one that the configuration in `path` names.

    Raises:
        ParatuneError: `path` is neither a folder nor a configuration, or the folder does not exist.
    """
    from paratune.corpus.settings import read_settings

    work = path if path.is_dir() else Path(read_settings(path).work)
    if not work.is_dir():
        message = f"{plain(work)} does not exist yet; run paratune corpus {plain(path)} first"
        raise CheckpointError(message, code="corpus.not_finished", folder=work, path=path)
    return work


def _shown(row: Mapping[str, Any]) -> Iterator[Text]:
    from paratune.reports.text import shorten

    yield Text(plain(row.get("url") or "n/a"), style="bold")
    known = [row.get(name) for name in ("stage", "reason", "timestamp", "language", "variety")]
    about = [plain(value) for value in known if value is not None]
    if row.get("reason") is not None and row.get("detail"):
        about.append(shorten(row["detail"], _MAX_CHARACTERS))
    yield Text("  ".join(about), style="dim")
    if text := row.get("text"):
        yield Text(plain_lines(text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"))
    yield Text()


corpus_app = App(name="corpus")
for _command in (stats, sample):
    corpus_app.command(_command)


@corpus_app.default
def corpus(
    config: Path,
    /,
    *,
    only: StageName | None = None,
    workers: int | None = None,
    executor: Literal["local", "slurm", "ray"] | None = None,
    tasks: int | None = None,
    site: Path | None = None,
    task_gib: int | None = None,
    json: Json = False,
) -> None:
    """Build the corpus in CONFIG from a web archive, stage by stage.

    After a crash, repeat the command: finished work is kept. Dropped texts are kept with the reason. The files are the
    same for every number of workers.

    Args:
        only: repeat only this stage
        workers: number of processes, instead of that of CONFIG
        executor: executor of datatrove that makes the shards, on many machines
        tasks: with --executor: maximum number of tasks of a stage
        site: with --executor slurm: file that describes the cluster
        task_gib: with --executor slurm or ray: memory of a task in GiB; default: 2
    """
    # Arrow, which is imported below, returns memory that malloc has freed; its own pool keeps some 40 MiB.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from paratune.commands.corpus_run import build_corpus

    if (executor is None) != (tasks is None) or (executor is None and (site, task_gib) != (None, None)):
        message = "--executor and --tasks go together; --site and --task-gib need them"
        raise ConfigError(message, code="cli.required")
    spread = {} if executor is None else {"tasks": tasks, "site": site, "memory_gib": task_gib}
    build_corpus(config, only=only, workers=workers, as_json=json, executor=executor, **spread)
