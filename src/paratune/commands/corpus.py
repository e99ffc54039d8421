"""`paratune corpus`: builds a corpus, and shows its content."""

from pathlib import Path
from typing import Literal

from cyclopts import App

from paratune.commands.corpus_look import sample, stats
from paratune.commands.options import Json
from paratune.errors import ConfigError

corpus_app = App(name="corpus")
for _command in (stats, sample):
    corpus_app.command(_command)


@corpus_app.default
def corpus(
    config: Path,
    *,
    only: str | None = None,
    workers: int | None = None,
    executor: Literal["local", "slurm", "ray"] | None = None,
    tasks: int | None = None,
    site: Path | None = None,
    task_gib: int | None = None,
    json: Json = False,
) -> int:
    """Build the corpus in CONFIG from a web archive, stage by stage.

    After a crash, repeat the command: finished work is kept. Dropped texts are kept with the reason. The files are the
    same for every number of workers.

    Args:
        only: repeat only this stage: index, fetch, extract, clean, sentences, store
        workers: number of processes, instead of that of CONFIG
        executor: executor of datatrove that makes the shards, on many machines
        tasks: with --executor: maximum number of tasks of a stage
        site: with --executor slurm: file that describes the cluster
        task_gib: with --executor slurm or ray: memory of a task in GiB; default: 2
    """
    from paratune.corpus.memory import save_memory

    save_memory()  # before pyarrow is imported
    from paratune.commands.corpus_run import Executor, build_corpus

    if (executor is None) != (tasks is None) or (executor is None and (site, task_gib) != (None, None)):
        message = "--executor and --tasks go together; --site and --task-gib need them"
        raise ConfigError(message, code="cli.option_missing")
    chosen = None if executor is None or tasks is None else Executor(executor, tasks, site, task_gib)
    return build_corpus(config, only=only, workers=workers, as_json=json, executor=chosen)
