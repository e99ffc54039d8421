"""Smaller forms of the finished runs of a matrix (`compress:` in a matrix file), made and measured in turn."""

import logging
from collections.abc import Collection
from typing import Protocol

from paratune.base.text import plain
from paratune.errors import EXIT_OK
from paratune.records.sweep import LOGS_FOLDER, SweepRecord, cell_run_folder
from paratune.sweeps.matrix import Matrix, is_compressed
from paratune.sweeps.run import Start

log = logging.getLogger(__name__)


class Starter(Protocol):
    """Starts commands until a signal comes."""

    @property
    def is_stopped(self) -> bool: ...
    @property
    def start(self) -> Start: ...


def compress_runs(matrix: Matrix, record: SweepRecord, names: Collection[str], starter: Starter) -> tuple[str, ...]:
    """Run `paratune compress` for each finished run of these names; return the runs for which it did not succeed.

    A run that has all its measurements is left out, so that an interrupted sweep continues here. The output of the
    command is in the log of the run. It has the variables of `env`, but not those of axes: all runs are
    measured alike.

    Args:
        matrix: The file, whose folder this process has locked.
    """
    compress = matrix.options.compress
    if compress is None:
        return ()
    folders = {cell.name: cell_run_folder(matrix.folder, cell.name) for cell in record.cells}
    cells = [cell for cell in record.cells if cell.name in names and is_compressed(folders[cell.name], cell)]
    todo = [cell.name for cell in cells if not compress.is_done(folders[cell.name])]
    failed = list(todo)
    for number, name in enumerate(todo, start=1):
        if starter.is_stopped:
            break
        log.info("%s", plain(f"compress [{number}/{len(todo)}] {name}: {', '.join(compress.forms)}"))
        output = matrix.folder / LOGS_FOLDER / f"{name}.txt"
        output.parent.mkdir(exist_ok=True)
        code = starter.start(compress.words(folders[name]), output, matrix.environment)
        if code == EXIT_OK:
            failed.remove(name)
        elif not starter.is_stopped:
            log.info("%s", plain(f"compress: {name} failed with exit code {code}; its output is in {output}"))
    return tuple(failed)
