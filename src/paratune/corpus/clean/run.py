"""The chain of the steps: each reads what the one before it kept. A step that is left out takes no part in it.

WORK/4_clean/<n>_<step>/   a stage of its own, see `paratune.corpus.stage`
WORK/4_clean/stage.json    which steps there were, the totals of all, and the folder of the last; written last
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paratune.base.atomic import delete_folder
from paratune.console import Display
from paratune.corpus.clean.decontaminate import run_decontaminate
from paratune.corpus.clean.duplicates import run_duplicates
from paratune.corpus.clean.language import run_language
from paratune.corpus.clean.lines import run_lines
from paratune.corpus.clean.personal import run_personal
from paratune.corpus.clean.quality import run_quality
from paratune.corpus.clean.variety.run import run_variety
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import writing
from paratune.corpus.stage import BEGUN_FILE, STAGE_FILE, finished_record
from paratune.errors import CheckpointError
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "4_clean"
BEFORE = "3_extract"

Run = Callable[[Corpus, Path, Path, int, Display], dict[str, Any]]
"""Settings, folder of the stage before, folder of the step, processes, and where progress is shown; gives totals."""

STEPS: list[tuple[str, Run]] = [
    ("lines", run_lines),
    ("language", run_language),
    ("variety", run_variety),
    ("quality", run_quality),
    ("duplicates", run_duplicates),
    ("decontaminate", run_decontaminate),
    ("personal", run_personal),
]
"""All steps in their order."""


def is_on(corpus: Corpus, name: str) -> bool:
    """Return whether a step takes part: it is not skipped, and has what it works with."""
    works_with = {"variety": corpus.clean.variety.sources, "decontaminate": corpus.clean.decontaminate.sets}
    return name not in corpus.clean.skip and bool(works_with.get(name, True))


def steps_of(corpus: Corpus) -> list[tuple[str, Run, str]]:
    """Return name, function and name of the folder of the steps that take part, in their order."""
    return [(name, run, f"{n}_{name}") for n, (name, run) in enumerate(STEPS, start=1) if is_on(corpus, name)]


def output_folder(corpus: Corpus) -> Path:
    """Return the folder of what the cleaning kept: that of the last step, or of the stage before if there is none."""
    work = Path(corpus.work)
    steps = steps_of(corpus)
    return work / FOLDER / steps[-1][2] if steps else work / BEFORE


def run_clean(corpus: Corpus, workers: int, display: Display) -> dict[str, Any]:
    """Run the steps that are not done yet.

    Returns:
        Totals of all: shards and kept of the last step, dropped by reason in all of them, output; and those of each
        in `steps`.

    Raises:
        DataError: A table of documents cannot be read, or a process dies of one.
        CheckpointError: The stage before is not finished, or a folder cannot be written.
    """
    work = Path(corpus.work)
    folder, before = work / FOLDER, work / BEFORE
    chain = steps_of(corpus)
    _begin(folder, [step_folder for _, _, step_folder in chain])
    steps: dict[str, dict[str, Any]] = {}
    for name, run, step_folder in chain:
        steps[name] = run(corpus, before, folder / step_folder, workers, display)
        before = folder / step_folder
    dropped = Counter[str]()
    for totals in steps.values():
        dropped.update(totals["dropped"])
    last = finished_record(before)
    totals = {
        "stage": "clean",
        "folder": before.relative_to(work).as_posix(),
        "shards": last["shards"],
        "kept": last["kept"],
        "dropped": dict(sorted(dropped.items())),
        "output": last["output"],
        "steps": steps,
    }
    write_json(folder / STAGE_FILE, totals)
    return totals


def _begin(folder: Path, wanted: Sequence[str]) -> None:
    """Make the folder; what steps left in it that take no part any more is deleted, which is said."""
    if not (folder / BEGUN_FILE).exists() and folder.exists() and any(folder.iterdir()):
        raise CheckpointError(
            f"{folder} holds other files; choose another work", code="run.folder_taken", folder=folder
        )
    (folder / STAGE_FILE).unlink(missing_ok=True)
    for path in sorted(folder.glob("*_*")):
        if path.name not in wanted and (path / BEGUN_FILE).exists():
            log.info("clean: %s takes no part any more; deleted", path.name)
            delete_folder(path)
    with writing("made", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / BEGUN_FILE, {"steps": wanted})
