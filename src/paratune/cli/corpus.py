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
Year = Annotated[int | None, Parameter(help="of the capture")]
Host = Annotated[str | None, Parameter(help="with all below it")]


@corpus_app.default
def corpus(
    config: Path,
    *,
    only: Annotated[str | None, Parameter(help=f"stage to run anew, and no other: {STAGES}")] = None,
    workers: Annotated[int | None, Parameter(help="processes, instead of those of CONFIG")] = None,
    executor: Annotated[
        Literal["local", "slurm", "ray"] | None, Parameter(help="datatrove's, that makes the shards on many machines")
    ] = None,
    tasks: Annotated[int | None, Parameter(help="with --executor: most tasks of a stage")] = None,
    site: Annotated[Path | None, Parameter(help="with --executor slurm: profile of the cluster")] = None,
    task_gib: Annotated[int | None, Parameter(help="with --executor: memory that a task asks for; 2 if none")] = None,
    json: Json = False,
) -> int:
    """Build what CONFIG says of a corpus from a web archive, stage by stage; start it again after a crash.

    What is done is kept, and what is dropped too, with the reason; any number of workers gives the same files.
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
    """Show what each stage kept and dropped, and languages, years, hosts and lengths of what is left.

    PATH is the configuration of a corpus, or its work folder.
    """
    from paratune.commands.corpus_look import stats_command

    return stats_command(path, as_json=json)


@corpus_app.command
def sample(
    path: Path,
    *,
    num: Annotated[int, Parameter(name=["--num", "-n"], help="texts to show")] = 10,
    seed: Annotated[int, Parameter(help="the same gives the same texts")] = 0,
    unit: Annotated[Literal["documents", "sentences"], Parameter(help="of the finished corpus")] = "documents",
    stage: Annotated[
        str | None, Parameter(help="by which the texts were kept or dropped, such as clean/quality")
    ] = None,
    dropped: Annotated[bool, Parameter(negative=(), help="of what was dropped")] = False,
    reason: Annotated[str | None, Parameter(help="of what was dropped for it")] = None,
    language: Language = None,
    variety: Variety = None,
    year: Year = None,
    host: Host = None,
    json: Json = False,
) -> int:
    """Show texts of a corpus at random, or what a stage dropped and why.

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
    regex: Annotated[bool, Parameter(negative=(), help="WORDS are regular expressions, as RE2 has them")] = False,
    limit: Annotated[int, Parameter(help="most texts to show")] = 20,
    unit: Annotated[Literal["documents", "sentences"], Parameter(help="of the finished corpus")] = "documents",
    stage: Annotated[str | None, Parameter(help="whose texts, instead of the finished corpus")] = None,
    language: Language = None,
    variety: Variety = None,
    year: Year = None,
    host: Host = None,
    json: Json = False,
) -> int:
    """Show the first texts in which all of WORDS stand, whatever their case and accents, with url and time.

    A quoted phrase is found as it is. PATH is the configuration of a corpus, or its work folder.
    """
    from paratune.commands.corpus_look import search_command
    from paratune.corpus.store.look import TextFilter

    wanted = TextFilter(unit, stage, language, variety, year, host)
    return search_command(path, words, wanted, is_regex=regex, limit=limit, as_json=json)
