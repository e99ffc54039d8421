"""Records of a study on 1 to 8 devices for tests, written from its own matrix file; nothing is trained.

Each run says what its function makes of its cell, so that a test can choose times and write out what follows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from make_run import SHARES, make_run

from paratune.config.glue import headline_metrics
from paratune.records.sweep import cell_run_folder, write_sweep
from paratune.reports.matrix import make_sweep
from paratune.reports.outcomes import SweepReport
from paratune.reports.tables.table import Table, TableCell
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of

CONFIGS = Path(__file__).parents[3] / "configs"
NUM_ROWS = 512
"""Training rows: multiples of all global batches of the studies."""


@dataclass(frozen=True)
class Told:
    """What a run measured."""

    train_s: float
    memory_bytes: float = 8e9
    """Peak of each device."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """On validation and, if the study has one, on test."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all steps; shares of `train_s` when absent."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Changes to summary.json by dotted path."""


def make_study(
    folder: Path, study: str, tell: Callable[[Cell], Told], *, host: str = "node", gpu: str = "A100-SXM4-40GB",
    link: str = "NV12", keep: Callable[[Cell], bool] = lambda cell: True, **record: Any,
) -> Path:  # fmt: skip
    """Write a matrix of `configs`, such as `studies/evora/scaling`, with a finished run for each kept cell."""
    matrix = replace(read_matrix(CONFIGS / f"{study}.yaml"), folder=folder)
    cells = [cell for cell in cells_of(matrix, here=False, need_files=False) if keep(cell)]
    sweep = plan_of(matrix, cells, ["paratune"]).record
    for cell in cells:
        _write(
            cell_run_folder(folder, cell.name),
            cell,
            tell(cell),
            host,
            {"name": gpu, "link": link if cell.record.num_processes > 1 else None},
        )
    finished = tuple(replace(cell, state="finished") for cell in sweep.cells)
    write_sweep(folder, replace(sweep, cells=finished, **record))
    return folder


def tables_of(report: SweepReport) -> dict[str, Table]:
    return {table.key: table for section in report.sections for table in section.tables}


def study_tables(folder: Path | Sequence[Path], layout: str | None = None) -> dict[str, Table]:
    """Return the tables of the report by their keys."""
    return tables_of(make_sweep(folder, None, layout=layout))


def column(table: Table, name: str) -> list[TableCell]:
    """Return the cells of a column by its key."""
    at = [each.name for each in table.columns].index(name)
    return [line[at] for line in table.lines]


def texts(table: Table, name: str) -> list[str]:
    return [cell.text for cell in column(table, name)]


def grid(table: Table) -> list[list[str]]:
    """Return the texts of a table with its header, without marks."""
    return [list(table.header), *([cell.text for cell in line] for line in table.lines)]


def _batch(cell: Cell) -> int:
    """Return the global batch size."""
    batch = cell.config.batch
    if batch.global_ is not None:
        return batch.global_
    assert batch.per_device is not None
    return batch.per_device * (batch.grad_accum_steps or 1) * cell.record.num_processes


def _write(folder: Path, cell: Cell, told: Told, host: str, gpu: Mapping[str, Any]) -> None:
    assert cell.loaded is not None
    size, batch, num_nodes, task = cell.record.num_processes, _batch(cell), cell.record.num_nodes or 1, cell.config.task
    epochs = cell.config.train.epochs or 1
    num_steps = math.ceil(NUM_ROWS * epochs / batch)
    per_node = [{**gpu, "memory_bytes": 40 * 10**9}] * (size // num_nodes)
    node = {
        "cpu_model": "CPU",
        "num_physical_cores": 64,
        "num_logical_cores": 128,
        "ram_bytes": 2**40,
        "gpus": per_node,
    }
    run = {
        "config": cell.loaded.values,
        "strategy.kind": cell.config.strategy.kind,
        "environment": dict(cell.record.environment),
        "hardware": [{"hostname": f"{host}-{number}", **node, "gpus": per_node} for number in range(1, num_nodes + 1)],
        "device": "cuda",
        "batch.global_batch_size": batch,
        "batch.micro_batch_size": batch // size,
        "plan": {"num_steps": num_steps, "steps_per_epoch": num_steps / epochs, "num_epochs": epochs},
        "task": {"kind": task.kind},
    }
    phases = {phase: told.phases_s.get(phase, share * told.train_s) for phase, share in SHARES.items()}
    defaults = dict.fromkeys(headline_metrics(task), 0.5)
    scores = {"loss": 0.4, **defaults, **told.scores}
    data = cell.config.data
    has_test = data.test is not None or (data.split is not None and data.split.test is not None)
    summary = {
        "time.train_s": told.train_s,
        "time.total_s": told.train_s + 20,
        "throughput.samples_per_s": NUM_ROWS * epochs / told.train_s,
        "memory": {"kind": "cuda_allocated", "largest_bytes": told.memory_bytes, "sum_bytes": size * told.memory_bytes},
        "ranks": [{"rank": rank, "phases_total_s": phases, "device": "cuda"} for rank in range(size)],
        "scores": {"validation": scores, **({"test": scores} if has_test else {})},
        "confusion": None,
        **told.summary,
    }
    make_run(
        folder, kind="ddp", world_size=size, task="classification", seed=cell.config.run.seed,
        step_ms=1000 * told.train_s / num_steps, num_steps=num_steps, run_changes=run, summary_changes=summary,
    )  # fmt: skip
