"""Figures of the data for the report of a matrix; the data is read again, as in `paratune data --figures`."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paratune.commands.data_figures import check_kind, data_view, read_splits, readable
from paratune.config.load import load_config
from paratune.console import Display, stdout_for_results
from paratune.errors import CheckpointError, ConfigError, coded, require_installed
from paratune.records.sweep import CONFIGS_FOLDER, read_sweep
from paratune.reports.data.figures import data_drawings
from paratune.reports.document import ReportSection
from paratune.reports.matrix import SweepReport

log = logging.getLogger(__name__)


def check_matrices(matrices: Sequence[Path]) -> None:
    """Raise an error before any work if there are no figures of the data.

    Raises:
        ConfigError: Not exactly one matrix is given, or its task has no single label for each row.
        MissingDependency: matplotlib is not installed.
    """
    if len(matrices) != 1:
        message = (
            f"--data-figures draws the data of one matrix, and {len(matrices)} are given; for a run use "
            "paratune data CONFIG --figures FOLDER"
        )
        raise ConfigError(message, code="cli.no_effect", option="--data-figures", num_matrices=len(matrices))
    require_installed("matplotlib", extra="plots")
    check_kind(load_config(_config_of(matrices[0], read_sweep(matrices[0]).cells[0].name)).config.task)


def data_section(report: SweepReport) -> ReportSection:
    """Return the figures of the data of the first finished run; the heading names the run if runs differ in their data.

    Raises:
        CheckpointError: No run is finished.
        ConfigError, DataError: The files that training read cannot be read again.
    """
    runs = report.runs
    if not runs:
        message = "--data-figures: no run of the matrix is finished; train one first"
        raise CheckpointError(message, code="report.no_run", folder=report.folder)
    loaded = load_config(_config_of(report.folder, runs[0].name))
    config, not_imported = readable(loaded, run_code=False)
    if not_imported:
        log.warning(
            "--data-figures: not imported: %s; with it: paratune data %s --figures FOLDER --run-code",
            "; ".join(not_imported),
            loaded.source,
            extra=coded("code.not_imported"),
        )
    with stdout_for_results():
        _, splits, max_length = read_splits(config)
    labelled = {name: split for name, split in splits.items() if name not in config.data.predict}
    with Display(speaks=True).bar("draw", 1):
        figures = data_drawings(data_view(config, labelled, max_length))
        drawings = tuple(replace(figure, key=f"data-{figure.key}") for figure in figures)
    fingerprints = {run.data("train").fingerprint for run in runs}
    heading = "The data" if len(fingerprints) == 1 else f"The data of {runs[0].name}"
    return ReportSection("data", heading, drawings)


def _config_of(folder: Path, cell: str) -> Path:
    return folder / CONFIGS_FOLDER / f"{cell}.yaml"
