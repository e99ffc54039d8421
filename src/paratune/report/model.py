"""What a report holds, before it is written in any format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.records import ALL_PHASES
from paratune.report.baseline import Against, against
from paratune.report.certificates import Certificate, find_certificates
from paratune.report.compare import Difference, Sameness, SeedSpread, compare, config_differences, seed_groups, spread
from paratune.report.device_rows import unknown_reasons
from paratune.report.efficiency_rows import why_unknown
from paratune.report.read import FoundRuns, RunRecord, Unfinished
from paratune.report.rows import ReportRow
from paratune.report.table import ARROW, build_rows
from paratune.verdicts import Verdict

GENERATOR = "paratune report"
REPORT_SCHEMA_VERSION = 1
MAX_CLASSES = 24
"""Confusion matrices of more classes than this are not printed whole."""
_MAY_CHANGE = {
    "strategy": "run.strategy.kind",
    "world size": "run.world_size",
    "device": "run.device",
    "precision": "run.config.precision",
    "micro-batch": "run.batch.micro_batch_size",
}
"""What a run may be gone on with otherwise, and where run.json has it."""
_SPREAD_KEYS = ("train_s", "epoch_s", "samples_per_s", "tokens_per_s", "step_median_ms", "peak_memory_largest_bytes")


@dataclass(frozen=True)
class SeedGroup:
    """Runs that are equal but for their seed, and the spread of their figures by row key."""

    runs: tuple[str, ...]
    spreads: dict[str, SeedSpread]


@dataclass(frozen=True)
class Report:
    """Finished runs beside each other."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    rows: tuple[ReportRow, ...]
    sameness: Sameness
    differences: tuple[Difference, ...]
    seed_groups: tuple[SeedGroup, ...]
    certificates: tuple[Certificate, ...]
    notes: tuple[str, ...]
    """What a reader has to know of the figures: how they were taken, and what was left out."""
    against: Against | None = None
    """The changes against a baseline, when one was named."""
    verdicts: tuple[Verdict, ...] = ()
    """Of each configuration but the baseline's."""
    verdict_notes: tuple[str, ...] = ()
    """Why there is no verdict, where there is none."""
    files: tuple[Path, ...] = field(default=())
    """What was written; empty when no folder was given."""

    @property
    def title(self) -> str:
        return f"Run {self.runs[0].name}" if len(self.runs) == 1 else f"{len(self.runs)} runs compared"

    @property
    def shown_rows(self) -> tuple[ReportRow, ...]:
        """The rows of the printed table, without those in which nothing is known of any run."""
        return tuple(row for row in self.rows if row.shown and any(cell.says_something for cell in row.cells))

    @property
    def footnotes(self) -> tuple[str, ...]:
        """What marks in the labels of the printed table refer to."""
        return tuple(row.footnote for row in self.shown_rows if row.footnote)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in report.json; unknown values are None."""
        return {
            "generator": GENERATOR,
            "schema_version": REPORT_SCHEMA_VERSION,
            "runs": [_run_dict(run, self.rows, position) for position, run in enumerate(self.runs)],
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "same_experiment": {
                "verdict": self.sameness.verdict,
                "sentence": self.sameness.sentence,
                "differ": {one.key: dict(one.values) for one in self.sameness.differ},
                "not_recorded": list(self.sameness.unknown),
            },
            "config_differences": {one.key: dict(one.values) for one in self.differences},
            "seed_groups": [_group_dict(group) for group in self.seed_groups],
            "certificates": [one.as_dict() for one in self.certificates],
            "baseline": None if self.against is None else self.against.as_dict(),
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }


def build_report(
    found: FoundRuns, baseline: Path | None = None, targets: Sequence[ScoreTarget] = (), price: float | None = None
) -> Report:
    """Return the report of runs that were read; writes nothing.

    Args:
        found: The runs.
        baseline: Folder of the one that the others are compared with in per cent.
        targets: Scores; when they were reached is shown.
        price: Of a device-hour, where it has one.

    Raises:
        CheckpointError: The baseline is not finished, or no run beside it is.
        ConfigError: No run was evaluated by the metric of a target.
    """
    certificates, of_others = find_certificates(found.runs, found.certificates)
    base = None if baseline is None else _name_of(baseline, found)
    reference = next((run for run in found.runs if run.name == base), found.runs[0])
    rows = build_rows(found.runs, certificates, reference=reference, targets=targets, price=price)
    return Report(
        runs=found.runs,
        unfinished=found.unfinished,
        rows=rows,
        sameness=compare(found.runs),
        differences=config_differences(found.runs),
        seed_groups=tuple(_seed_group(group, rows) for group in seed_groups(found.runs)),
        certificates=certificates,
        notes=(*_notes(found.runs), *found.notes, *of_others),
        against=None if base is None else against(base, rows),
    )


def _name_of(folder: Path, found: FoundRuns) -> str:
    """Return what the report calls the run in a folder."""
    name = next((run.name for run in found.runs if run.folder.resolve() == folder.resolve()), None)
    if name is None:
        raise CheckpointError(
            f"--baseline {plain(folder)} is not a finished run, and there is nothing to compare with",
            code="report.no_baseline",
            option="--baseline",
            value=folder,
        )
    if len(found.runs) == 1:
        raise CheckpointError(
            f"--baseline {plain(folder)}: no other finished run is given; add its folder, or leave out --baseline",
            code="report.no_baseline",
            option="--baseline",
            value=folder,
        )
    return name


def split_shown(run: RunRecord) -> str | None:
    """Return the split whose predictions are drawn: test, or validation where a run has no test scores."""
    return next((split for split in ("test", "validation") if run.get(f"summary.scores.{split}")), None)


def _seed_group(group: Sequence[RunRecord], rows: Sequence[ReportRow]) -> SeedGroup:
    names = {run.name for run in group}
    spreads = {}
    for row in rows:
        if row.key in _SPREAD_KEYS or row.group.endswith(" scores"):
            values = {cell.run: cell.value for cell in row.cells if cell.run in names and cell.value is not None}
            if len(values) > 1:
                spreads[row.key] = spread(values)
    return SeedGroup(tuple(run.name for run in group), spreads)


def _notes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield what a reader has to know; what is true of several runs is said once."""
    said: dict[str, list[str]] = {}
    for run, unknown in zip(runs, why_unknown(runs), strict=True):
        for text in (*_notes_of(run), *unknown):
            said.setdefault(text, []).append(run.name)
    cost, of = _cost_of_measuring(runs)
    if of:
        said[cost] = of
    for text, names in said.items():
        who = "" if len(runs) == 1 else "All runs: " if len(names) == len(runs) else f"{', '.join(names)}: "
        yield f"{who}{text}" if who else text[0].upper() + text[1:]
    if len({run.get("summary.memory.kind") for run in runs}) > 1:
        yield "Peak memory is of different kinds, which do not compare: see the row Kind."
    if len({run.task for run in runs}) > 1:
        yield "The runs have different tasks; their scores and losses cannot be compared."


def _cost_of_measuring(runs: Sequence[RunRecord]) -> tuple[str, list[str]]:
    """Return what it cost, from the least to the most, and the names of the runs that know."""
    found = [
        (run.name, cost, 100 * share)
        for run in runs
        if (cost := run.number("summary.recorder.cost_ms_per_step")) is not None
        and (share := run.number("summary.recorder.cost_share")) is not None
    ]
    if not found:
        return "", []
    names, costs, shares = zip(*found, strict=True)
    of_step = " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(costs), max(costs))))
    of_time = " to ".join(dict.fromkeys(f"{value:.2f}%" for value in (min(shares), max(shares))))
    return f"measuring itself cost {of_step} ms a step ({of_time}).", list(names)


def _how_fitted(run: RunRecord) -> str:
    """Return what a baseline is, which has no steps, and how it was chosen."""
    name, features, c = (run.get(f"summary.fitted.{key}") for key in ("estimator", "num_features", "c"))
    metric, tried = run.get("summary.fitted.chosen_by.metric"), run.get("summary.fitted.candidates")
    among = f", the best {metric} on validation of {len(tried)} values" if isinstance(tried, list) and tried[1:] else ""
    return f"no model was trained: {name} of {_count(features)} features, with C = {c}{among}."


def _notes_of(run: RunRecord) -> Iterator[str]:
    measured, steps = run.number("summary.throughput.num_steps_measured"), run.number("summary.num_steps")
    warm_up = run.number("run.config.measure.warmup_steps")
    if run.is_baseline:
        yield _how_fitted(run)
    elif not measured:
        yield f"no step was measured: all {_count(steps)} were warm-up, so rates and phases are n/a."
    else:
        first = "" if warm_up is None else f" (the first {_count(warm_up)}, and as many after each resume)"
        profiled = run.number("summary.profile.num_steps") or run.number("summary.communication.num_steps")
        too = f"; so are {_count(profiled)} steps under the profiler" if profiled else ""
        yield f"{_count(measured)} of {_count(steps)} steps measured; warm-up is left out{first}{too}."
    stops = run.number("summary.num_interruptions")
    if stops:
        times = "once" if stops == 1 else f"{_count(stops)} times"
        yield f"interrupted {times}; steps trained again after a resume count once."
    requeued = run.number("summary.num_requeued")
    if requeued:
        yield f"its job was queued again {'once' if requeued == 1 else f'{_count(requeued)} times'} by Slurm."
    restarts = run.number("summary.num_restarts")
    if restarts:
        times = "once" if restarts == 1 else f"{_count(restarts)} times"
        yield f"its processes were started again {times} by torchrun."
    changes = [
        f"{name} {ARROW.join(str(value) for value in run.course(source))}"
        for name, source in _MAY_CHANGE.items()
        if len(run.course(source)) > 1
    ]
    if changes:
        steps_taken = ", ".join(_count(one.number("run.step")) for one in run.sessions[1:])
        yield (
            f"resumed with other settings (after step {steps_taken}): {', '.join(changes)}. Times, rates and "
            f"phases are "
            "those of all its sessions together, memory is that of the last."
        )
    yield from unknown_reasons(run)
    if run.get("summary.stop_reason") == "early_stopping":
        yield f"stopped early, after {_count(steps)} steps, because validation did not improve."


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"


def _run_dict(run: RunRecord, rows: Sequence[ReportRow], position: int) -> dict[str, Any]:
    cells = {row.key: row.cells[position] for row in rows}
    confusion = run.get("summary.confusion")
    return {
        "run": run.name,
        "run_id": run.get("run.run_id"),
        "folder": str(run.folder),
        "task": run.get("run.task"),
        "values": {key: cell.value for key, cell in cells.items()},
        "sources": {key: cell.source for key, cell in cells.items()},
        "phases_contain": {phase: run.get(f"run.strategy.traits.phases.{phase}") for phase in ALL_PHASES[:-1]},
        "peak_memory_bytes_by_rank": rank_memory(run),
        "confusion": confusion if isinstance(confusion, dict) else None,
        "slices": dict(run.slices),
        "hardware": run.get("run.hardware"),
        "versions": run.get("run.versions"),
        "code": run.get("run.code"),
        "command": run.get("run.command"),
        "sessions": [_session_dict(session) for session in run.sessions] if len(run.sessions) > 1 else [],
    }


def _session_dict(session: RunRecord) -> dict[str, Any]:
    names = ("began", "step", "world_size", "device", "batch", "loader", "hardware", "versions", "code", "command")
    return {
        **{name: session.get(f"run.{name}") for name in names},
        "strategy": session.get("run.strategy.kind"),
        "precision": session.get("run.config.precision"),
    }


def rank_memory(run: RunRecord) -> list[float | None]:
    """Return the peak memory of each rank in bytes, in rank order; empty when it was not recorded."""
    ranks = run.get("summary.ranks")
    if not isinstance(ranks, list):
        return []
    values = [rank.get("peak_memory_bytes") if isinstance(rank, dict) else None for rank in ranks]
    return [value if isinstance(value, int | float) and not isinstance(value, bool) else None for value in values]


def confusion_of(run: RunRecord) -> tuple[str, list[list[int]] | None]:
    """Return split and confusion matrix (rows true, columns predicted) of test, else of validation; None if neither."""
    for split in ("test", "validation"):
        value = run.get(f"summary.confusion.{split}")
        if isinstance(value, list) and value and all(_is_row(row, len(value)) for row in value):
            return split, value
    return "test", None


def _is_row(row: object, size: int) -> bool:
    return isinstance(row, list) and len(row) == size and all(type(count) is int and count >= 0 for count in row)


def class_names(run: RunRecord, size: int) -> list[str]:
    """Return the names of the classes, their ids where the record names another number of them."""
    return run.labels if len(run.labels) == size else [str(number) for number in range(size)]


def _group_dict(group: SeedGroup) -> dict[str, Any]:
    spreads = {
        key: {
            "mean": one.mean,
            "standard_deviation": one.deviation,
            "min": one.low,
            "max": one.high,
            "num_runs": len(one.runs),
        }
        for key, one in group.spreads.items()
    }
    return {"runs": list(group.runs), "spread": spreads}
