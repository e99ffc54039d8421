"""`paratune plan --goal`: selects the options that meet a goal, by predictions and measured runs, and writes probes."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.config.layers import Layer, read_overrides
from paratune.config.load import LoadedConfig
from paratune.config.metric_names import METRICS
from paratune.config.plain import yaml_lines
from paratune.errors import ConfigError, did_you_mean, os_error_as

if TYPE_CHECKING:
    from paratune.commands.plan import PlanArguments
    from paratune.config.targets import ScoreTarget
    from paratune.planning.goal import Goal, GoalVerdict
    from paratune.planning.predict import Prediction
    from paratune.planning.table import Plan


@dataclass(frozen=True)
class Aimed:
    """The options of a plan judged by a goal."""

    verdicts: tuple["GoalVerdict", ...]
    lines: tuple[str, ...]
    chosen: "Prediction | None"
    """The recommended option that meets the goal, or that may meet it; None without one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the verdicts as JSON values, in the order of the options."""
        return {
            "verdicts": [{"state": verdict.state, "reason": verdict.reason} for verdict in self.verdicts],
            "lines": list(self.lines),
        }


def check_goal(
    wanted: "PlanArguments", runs: Sequence[Path], task_kind: str, price_of: Callable[[], float | None]
) -> "Goal | None":
    """Return the goal; None without --goal.

    Args:
        price_of: Returns the price of a device-hour from --price or the file of the machine.

    Raises:
        ConfigError: The goal is invalid, or an option needs --goal.
    """
    if wanted.goal is None:
        needs_goal = [name for name, value in (("--measured", runs), ("--write-probes", wanted.write_probes)) if value]
        if needs_goal:
            message = f'{" and ".join(needs_goal)}: only with --goal, such as --goal "f1>=0.88 within 2h"'
            raise ConfigError(message, code="cli.option_missing", options=needs_goal, option="--goal")
        return None
    from paratune.planning.goal import parse_goal

    goal = parse_goal(wanted.goal)
    known = METRICS[task_kind]
    for target in goal.targets:
        if target.metric not in known:
            near = did_you_mean(target.metric, known)
            message = f"--goal: {target.metric} is not a metric of {task_kind}{near}; allowed: {', '.join(known)}"
            raise ConfigError(message, code="metric.unknown", option="--goal", value=target.metric)
        _check_scale(target, task_kind)
    if goal.price is not None and price_of() is None:
        message = "--goal: for PRICE needs the price of a device-hour: --price, or price_per_hour in its file"
        raise ConfigError(message, code="cli.option_missing", option="--price")
    if wanted.write_probes is not None and wanted.nodes not in (None, "1"):
        message = f"--write-probes: probes run on one machine; leave out --nodes {wanted.nodes}"
        raise ConfigError(message, code="cli.no_effect", option="--nodes", nodes=wanted.nodes)
    if runs and not goal.targets:
        raise ConfigError(
            "--measured needs a score in --goal, such as f1>=0.88", code="metric.unknown", option="--goal"
        )
    return goal


def _check_scale(target: "ScoreTarget", task_kind: str) -> None:
    """Raise an error for a score in percent if the maximum is 1, or the reverse; scores of SQuAD are in percent."""
    in_percent = task_kind == "qa"
    maximum = 100 if in_percent else 1
    if (
        not target.is_higher_better
        or target.value <= 0
        or (1 < target.value <= 100 if in_percent else target.value <= 1)
    ):
        return
    corrected = min(target.value * 100 if in_percent else target.value / 100, maximum)
    message = (
        f"--goal: {target.text}, and a score of {task_kind} is at most {maximum}; write {target.metric}>={corrected:g}"
    )
    raise ConfigError(message, code="metric.scale", option="--goal", most=maximum, metric=target.metric)


def aim(goal: "Goal", plan: "Plan", measured: Sequence[Path]) -> Aimed:
    """Judge the options of a plan.

    Raises:
        ParatuneError: A measured folder is not a run, or no run has a metric of the goal.
    """
    from paratune.planning.advice import recommended
    from paratune.planning.goal import goal_lines, judge

    steps_until, num_missed = _steps_until(goal, measured) if measured else ({}, 0)
    verdicts = judge(goal, plan.predictions, steps_until)
    chosen = None
    for state in ("meets it", "may meet it"):
        chosen = chosen or recommended([verdict.prediction for verdict in verdicts if verdict.state == state])
    lines = list(goal_lines(goal, verdicts, steps_until, num_missed))
    if chosen is not None:
        lines.append(f"For the goal run {chosen.in_words}.")
    return Aimed(tuple(verdicts), tuple(f"- {line}" for line in lines), chosen)


def _steps_until(goal: "Goal", folders: Sequence[Path]) -> tuple[dict[int, list[int]], int]:
    """Return the numbers of steps until runs met all targets, by global batch, and the number of runs that did not."""
    from paratune.commands.plan_score import runs_of
    from paratune.reports.runs.read import read_runs
    from paratune.reports.runs.targets import check_known, evaluate_targets

    runs = read_runs([run for folder in folders for run in runs_of(folder)]).runs
    results = [evaluate_targets(run, goal.targets) for run in runs]
    check_known(goal.targets, results)
    steps: dict[int, list[int]] = {}
    num_missed = 0
    for run, result in zip(runs, results, strict=True):
        reached = [point.step for point in result]
        size = run.run.batch.global_batch_size
        num_missed += None in reached
        if size is not None and None not in reached:
            steps.setdefault(int(size), []).append(max(step for step in reached if step is not None))
    return steps, num_missed


def write_probes(path: Path, loaded: LoadedConfig, overrides: Sequence[str], aimed: Aimed) -> str:
    """Write the matrix of probes; return a sentence about the file.

    Raises:
        ConfigError: There is nothing to probe, or the file cannot be written.
    """
    from paratune.planning.goal import probe_matrix

    base = Path(os.path.relpath(loaded.source, path.parent)).as_posix()
    values: Mapping[str, Any] = read_overrides(Layer(), overrides).values
    rate = loaded.config.train.learning_rate
    matrix = probe_matrix(base, values, aimed.verdicts, learning_rate=rate)
    lines = [line.removesuffix("  # ") for line in yaml_lines(matrix, lambda key: "")]
    with (
        os_error_as(
            ConfigError,
            f"--write-probes {path}: it cannot be written",
            code="output.not_writable",
            option="--write-probes",
            value=path,
        ),
        path.open("x", encoding="utf-8") as file,
    ):
        file.write("\n".join([f"# paratune plan {loaded.source} --goal", *lines]) + "\n")
    return f"{path}: {len(matrix['axes']['try'])} short runs; start them with: paratune sweep {path}"
