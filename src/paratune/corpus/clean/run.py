"""Runs the cleaning steps; each reads the kept rows of the previous step. Steps can be left out.

WORK/4_clean/<n>_<step>/   a separate stage, see `paratune.corpus.stage`
WORK/4_clean/stage.json    the steps, their totals, and the folder of the last step; written last
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from paratune.base.atomic import delete_folder
from paratune.console import Display
from paratune.corpus.clean.duplicates import run_decontaminate, run_duplicates
from paratune.corpus.clean.language import run_language, run_variety
from paratune.corpus.clean.personal import run_personal
from paratune.corpus.clean.quality import run_lines, run_quality
from paratune.corpus.settings import Corpus
from paratune.corpus.stage import BEGUN_FILE, STAGE_FILE, RunStage, Workers, finished_record, run_stage, write_begun
from paratune.records import write_json

log = logging.getLogger(__name__)

FOLDER = "4_clean"
BEFORE = "3_extract"

Run = Callable[[Corpus, Path, Path, RunStage], dict[str, Any]]
"""Takes settings, folder of the previous stage, folder of the step, and `run_stage`; returns totals."""

STEPS: list[tuple[str, Run]] = [
    ("lines", run_lines),
    ("language", run_language),
    ("variety", run_variety),
    ("quality", run_quality),
    ("duplicates", run_duplicates),
    ("decontaminate", run_decontaminate),
    ("personal", run_personal),
]
"""All steps in order."""


def enabled_steps(corpus: Corpus) -> list[tuple[str, Run, str]]:
    """Return name, function and folder name of the steps that run, in order."""
    return [(name, run, f"{n}_{name}") for n, (name, run) in enumerate(STEPS, start=1) if corpus.clean.runs(name)]


def output_folder(corpus: Corpus) -> Path:
    """Return the folder of the last step, or that of the previous stage if no step runs."""
    work = Path(corpus.work)
    steps = enabled_steps(corpus)
    return work / FOLDER / steps[-1][2] if steps else work / BEFORE


def run_clean(corpus: Corpus, workers: Workers, display: Display) -> dict[str, Any]:
    """Run the steps that are not finished.

    Returns:
        Totals: `shards`, `kept` and `output` of the last step, `dropped` by reason of all, and `steps`: totals of each.

    Raises:
        DataError: A table of documents is unreadable, or kills the processes that read it.
        CheckpointError: The previous stage is not finished, or a folder is not writable.
    """
    work = Path(corpus.work)
    folder, before = work / FOLDER, work / BEFORE
    chain = enabled_steps(corpus)
    wanted = [step_folder for _, _, step_folder in chain]
    write_begun(folder, {"steps": wanted})
    (folder / STAGE_FILE).unlink(missing_ok=True)
    for path in sorted(folder.glob("*_*")):
        if path.name not in wanted and (path / BEGUN_FILE).exists():
            log.info("clean: %s no longer runs; deleted", path.name)
            delete_folder(path)
    steps: dict[str, dict[str, Any]] = {}
    for name, run, step_folder in chain:
        steps[name] = run(corpus, before, folder / step_folder, partial(run_stage, workers=workers, display=display))
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
