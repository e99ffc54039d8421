"""`paratune plan --goal`: which ways meet it, by predictions and measured runs, and probes for the rest."""

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
    from paratune.plan.goal import Goal, GoalVerdict
    from paratune.plan.predict import Prediction
    from paratune.plan.table import Plan


@dataclass(frozen=True)
class Aimed:
    """What the goal comes to."""

    verdicts: tuple["GoalVerdict", ...]
    lines: tuple[str, ...]
    chosen: "Prediction | None"
    """What is advised among the ways that meet it, else among those that may; None where none does."""

    def as_dict(self) -> dict[str, Any]:
        """Return the verdicts in the order of the plan's options."""
        return {
            "verdicts": [{"state": each.state, "reason": each.reason} for each in self.verdicts],
            "lines": list(self.lines),
        }


def check_goal(wanted: "PlanArguments", task_kind: str, price_of: Callable[[], float | None]) -> "Goal | None":
    """Return the goal, if there is one.

    Args:
        wanted: The options.
        task_kind: Decides on its metrics.
        price_of: Gives the price of a device-hour, which --price or the machine's file may say.

    Raises:
        ConfigError: It means nothing, or an option that belongs to one stands alone.
    """
    if wanted.goal is None:
        alone = [
            name for name, value in (("--measured", wanted.measured), ("--write-probes", wanted.write_probes)) if value
        ]
        if alone:
            raise ConfigError(
                f'{" and ".join(alone)}: only with --goal, such as --goal "f1>=0.88 within 2h"',
                code="cli.option_missing",
                options=alone,
                option="--goal",
            )
        return None
    from paratune.plan.goal import parse_goal

    goal = parse_goal(wanted.goal)
    known = METRICS[task_kind]
    for target in goal.targets:
        if target.metric not in known:
            near = did_you_mean(target.metric, known)
            raise ConfigError(
                f"--goal: {target.metric} is not a metric of {task_kind}{near}; allowed: {', '.join(known)}",
                code="metric.unknown",
                option="--goal",
                value=target.metric,
            )
        _check_scale(target, task_kind)
    if goal.price is not None and price_of() is None:
        raise ConfigError(
            "--goal: for PRICE needs the price of a device-hour: --price, or price_per_hour in its file",
            code="cli.option_missing",
            option="--price",
        )
    if wanted.write_probes is not None and wanted.nodes > 1:
        raise ConfigError(
            f"--write-probes: probes run on one machine; leave out --nodes {wanted.nodes}",
            code="cli.no_effect",
            option="--nodes",
            nodes=wanted.nodes,
        )
    if wanted.measured and not goal.targets:
        raise ConfigError(
            "--measured needs a score in --goal, such as f1>=0.88",
            code="metric.unknown",
            option="--goal",
        )
    return goal


def _check_scale(target: "ScoreTarget", task_kind: str) -> None:
    """Refuse a score in percent where scores go to 1, and the reverse: SQuAD's are in percent."""
    in_percent = task_kind == "qa"
    most = 100 if in_percent else 1
    if not target.rises or target.value <= 0 or (1 < target.value <= 100 if in_percent else target.value <= 1):
        return
    meant = min(target.value * 100 if in_percent else target.value / 100, most)
    raise ConfigError(
        f"--goal: {target.text}, and scores of {task_kind} go up to {most}; write {target.metric}>={meant:g}",
        code="metric.scale",
        option="--goal",
        most=most,
        metric=target.metric,
    )


def aim(goal: "Goal", plan: "Plan", measured: Sequence[Path]) -> Aimed:
    """Judge the ways of a plan.

    Raises:
        ParatuneError: A measured run is none, or none was evaluated by a metric of the goal.
    """
    from paratune.plan.advice import recommended
    from paratune.plan.goal import goal_lines, judge

    steps_until, num_missed = _steps_until(goal, measured) if measured else ({}, 0)
    verdicts = judge(goal, plan.predictions, steps_until)
    chosen = None
    for state in ("meets it", "may meet it"):
        chosen = chosen or recommended([each.prediction for each in verdicts if each.state == state])
    lines = list(goal_lines(goal, verdicts, steps_until, num_missed))
    if chosen is not None:
        lines.append(f"For the goal run {chosen.in_words}.")
    return Aimed(tuple(verdicts), tuple(f"- {line}" for line in lines), chosen)


def _steps_until(goal: "Goal", folders: Sequence[Path]) -> tuple[dict[int, list[int]], int]:
    """Return after how many steps runs met all targets, by their global batch, and how many runs never did."""
    from paratune.commands.plan_score import runs_of
    from paratune.report.read import read_runs
    from paratune.report.targets import check_known, look_at

    runs = read_runs([run for folder in folders for run in runs_of(folder)]).runs
    found = [look_at(run, goal.targets) for run in runs]
    check_known(goal.targets, found)
    steps: dict[int, list[int]] = {}
    num_missed = 0
    for run, each in zip(runs, found, strict=True):
        reached = [one.step for one in each.reached]
        size = run.number("run.batch.global_batch_size")
        num_missed += None in reached
        if size is not None and None not in reached:
            steps.setdefault(int(size), []).append(max(step for step in reached if step is not None))
    return steps, num_missed


def write_probes(path: Path, loaded: LoadedConfig, overrides: Sequence[str], aimed: Aimed) -> str:
    """Write the matrix of probes; return what was written, in words.

    Raises:
        ConfigError: There is nothing to probe, or the file cannot be written.
    """
    from paratune.plan.goal import probe_matrix

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
