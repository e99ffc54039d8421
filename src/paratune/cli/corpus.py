"""`paratune corpus`: making a corpus, and looking into it."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paratune.cli.options import Json
from paratune.errors import ConfigError

corpus_app = App(name="corpus")

STAGES = "index, fetch, extract, clean, sentences, store"

Language = Annotated[str | None, Parameter(help="ISO 639-1 code, such as pt")]
Variety = Annotated[str | None, Parameter(help="such as pt-PT")]
Year = Annotated[int | None, Parameter(help="year of the capture")]
Host = Annotated[str | None, Parameter(help="host, with its subdomains")]


@corpus_app.default
def corpus(
    config: Path,
    *,
    only: Annotated[str | None, Parameter(help=f"repeat only this stage: {STAGES}")] = None,
    workers: Annotated[int | None, Parameter(help="number of processes, instead of that of CONFIG")] = None,
    executor: Annotated[
        Literal["local", "slurm", "ray"] | None,
        Parameter(help="executor of datatrove that runs the shards on many machines"),
    ] = None,
    tasks: Annotated[int | None, Parameter(help="with --executor: maximum number of tasks of a stage")] = None,
    site: Annotated[Path | None, Parameter(help="with --executor slurm: file that describes the cluster")] = None,
    task_gib: Annotated[int | None, Parameter(help="with --executor: memory of a task in GiB; default: 2")] = None,
    json: Json = False,
) -> int:
    """Build the corpus in CONFIG from a web archive, stage by stage.

    After a crash, repeat the command: finished work is kept. Dropped texts are kept with the reason. The files are the
    same for every number of workers.
    """
    from paratune.corpus.memory import save_memory

    save_memory()
    from paratune.commands.corpus import Executor, corpus_command

    if (executor is None) != (tasks is None) or (executor is None and (site, task_gib) != (None, None)):
        raise ConfigError(
            "--executor and --tasks go together; --site and --task-gib need them", code="cli.option_missing"
        )
    chosen = None if executor is None or tasks is None else Executor(executor, tasks, site, task_gib)
    return corpus_command(config, only=only, workers=workers, as_json=json, executor=chosen)


@corpus_app.command
def stats(path: Path, *, json: Json = False) -> int:
    """Show what each stage kept and dropped, and the languages, years, hosts and lengths of the kept texts.

    PATH is the configuration of a corpus, or its work folder.
    """
    from paratune.commands.corpus_look import stats_command

    return stats_command(path, as_json=json)


@corpus_app.command
def sample(
    path: Path,
    *,
    num: Annotated[int, Parameter(name=["--num", "-n"], help="number of texts")] = 10,
    seed: Annotated[int, Parameter(help="seed; the same seed shows the same texts")] = 0,
    unit: Annotated[Literal["documents", "sentences"], Parameter(help="unit of the finished corpus")] = "documents",
    stage: Annotated[str | None, Parameter(help="stage that kept or dropped the texts, such as clean/quality")] = None,
    dropped: Annotated[bool, Parameter(negative=(), help="show dropped texts")] = False,
    reason: Annotated[str | None, Parameter(help="show only texts that were dropped for this reason")] = None,
    language: Language = None,
    variety: Variety = None,
    year: Year = None,
    host: Host = None,
    json: Json = False,
) -> int:
    """Show random texts of a corpus, or what a stage dropped and why.

    PATH is the configuration of a corpus, or its work folder.
    """
    from paratune.commands.corpus_look import sample_command
    from paratune.corpus.store.look import TextFilter

    wanted = TextFilter(unit, stage, language, variety, year, host)
    return sample_command(path, wanted, dropped=dropped, reason=reason, num=num, seed=seed, as_json=json)


@corpus_app.command
def search(
    path: Path,
    *words: str,
    regex: Annotated[bool, Parameter(negative=(), help="WORDS are regular expressions in the syntax of RE2")] = False,
    limit: Annotated[int, Parameter(help="maximum number of texts")] = 20,
    unit: Annotated[Literal["documents", "sentences"], Parameter(help="unit of the finished corpus")] = "documents",
    stage: Annotated[
        str | None, Parameter(help="search the texts of this stage instead of the finished corpus")
    ] = None,
    language: Language = None,
    variety: Variety = None,
    year: Year = None,
    host: Host = None,
    json: Json = False,
) -> int:
    """Show the first texts that contain all WORDS, with url and time; case and accents are ignored.

    A quoted phrase must occur as it is. PATH is the configuration of a corpus, or its work folder.
    """
    from paratune.commands.corpus_look import search_command
    from paratune.corpus.store.look import TextFilter

    wanted = TextFilter(unit, stage, language, variety, year, host)
    return search_command(path, words, wanted, is_regex=regex, limit=limit, as_json=json)
