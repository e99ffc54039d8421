"""A matrix of synthetic records for tests: each run says what its function makes of the values of its axes."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from make_run import make_run

from paratune.records.sweep import Axis, CellRecord, SweepRecord, cell_run_folder, write_sweep

SEED = Axis("run.seed", "seed", {"seed-1": "1", "seed-2": "2"}, is_seed=True, keys=("run.seed",))
NPROC = Axis("nproc", "nproc", {f"nproc-{size}": str(size) for size in (1, 2, 4)}, keys=("nproc",))
STRATEGY = Axis("strategy", "strategy", {"ddp": "ddp", "zero3": "zero3"}, keys=("strategy.kind",))


@dataclass(frozen=True)
class Made:
    """What a run of a cell measured; a step of `step_ms` has the shares of phases of `make_run.SHARES`."""

    step_ms: float = 80.0
    world_size: int = 1
    batch: int = 32
    num_steps: int = 225
    kind: str = "single"
    run: Mapping[str, Any] = field(default_factory=dict)
    """Changes to run.json by dotted path."""
    summary: Mapping[str, Any] = field(default_factory=dict)


def make_matrix(
    folder: Path,
    axes: Sequence[Axis],
    tell: Callable[[Mapping[str, str]], Made],
    *,
    states: Mapping[str, tuple[str, str | None]] | None = None,
    changes: Callable[[CellRecord], CellRecord] = lambda cell: cell,
    **record: Any,
) -> Path:
    """Write a matrix with a run in each finished cell.

    Args:
        folder: Of the matrix.
        axes: Its axes.
        tell: What the run with these values measured.
        states: State and reason of cells that are not finished, by name.
        changes: Changes a cell before it is written.
        record: More of sweep.json.
    """
    cells = []
    for names in itertools.product(*(axis.values for axis in axes)):
        values = {axis.label: name for axis, name in zip(axes, names, strict=True)}
        made = tell(values)
        state, reason = (states or {}).get("_".join(names), ("finished", None))
        cell = changes(
            CellRecord(
                name="_".join(names),
                values=values,
                num_processes=made.world_size,
                task="classification",
                metric="accuracy",
                metrics=("accuracy", "f1"),
                fingerprint="_".join(names),
                state=state,
                reason=reason,
            )
        )
        cells.append(cell)
        if state == "finished":
            seed = next((int(name.rpartition("-")[2]) for label, name in values.items() if label == "seed"), 42)
            _run(cell_run_folder(folder, cell.name), made, seed)
    folder.mkdir(parents=True, exist_ok=True)
    matrix = SweepRecord("m", "2026-11-21", "m.yaml", ("paratune",), tuple(axes), (), tuple(cells))
    write_sweep(folder, replace(matrix, **record))
    return folder


def _run(folder: Path, made: Made, seed: int) -> None:
    per_s = 1000 * made.batch / made.step_ms
    run = {
        "batch.global_batch_size": made.batch,
        "batch.micro_batch_size": max(1, made.batch // made.world_size),
        "config.batch.global": made.batch,
        "config.run.seed": seed,
        "environment": {},
    }
    summary = {"throughput.samples_per_s": per_s, "throughput.tokens_per_s": 30 * per_s}
    make_run(
        folder,
        kind=made.kind if made.kind in ("single", "ddp") else "ddp",
        world_size=made.world_size,
        seed=seed,
        step_ms=made.step_ms,
        num_steps=made.num_steps,
        run_changes={**run, "config.strategy.kind": made.kind, "strategy.kind": made.kind, **made.run},
        summary_changes={**summary, **made.summary},
    )


def write_raw(folder: Path, record: SweepRecord, **changes: Any) -> None:
    """Write sweep.json as it would be with other values, which need not make sense."""
    (folder / "sweep.json").write_text(json.dumps({"schema_version": 1, **asdict(record), **changes}))
