"""Goals in one line, their verdicts, and probes for undecided options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raised import raises_code
from tiny import tiny_config

from paratune.config.load import load_config
from paratune.config.targets import ScoreTarget
from paratune.config.traits import Traits
from paratune.models.task_model import PackedEntry
from paratune.planning.enumerate import PlanRequest, list_options
from paratune.planning.goal import Goal, goal_lines, judge, parse_goal, probe_matrix
from paratune.planning.job import PlannedJob
from paratune.planning.lengths import lengths_of_rows
from paratune.planning.machine import find_machine
from paratune.planning.memory import Memory
from paratune.planning.predict import Prediction
from paratune.planning.time import StepTime

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
GIB = 2**30


def _no_traits(kind: str) -> Traits:
    raise AssertionError(kind)


def ways(*settings: str, fits: bool = True, price: float | None = None) -> list[Prediction]:
    """Return ddp on 1, 2 and 4 devices: 12 steps of 100, 60 and 40 ms, twice as long at most, half at least."""
    loaded = load_config(CONFIG, ["train.epochs=3", *settings])
    machine = replace(find_machine("a100-40gb"), price_per_hour=price)
    job = PlannedJob(loaded.config, tiny_config(), lengths_of_rows(np.array([8] * 100)), 100, PackedEntry(), None)
    options, _ = list_options(job, loaded, machine, PlanRequest((1, 2, 4), ("ddp",), ("fp32",)), _no_traits)
    predictions = []
    for option, step in zip(options, (0.1, 0.06, 0.04), strict=True):
        memory = Memory({"activations": GIB * option.setup.micro_batch_size}, {}, "backward")
        time = StepTime({}, step, step / 2, step * 2, "compute", (), {})
        predictions.append(Prediction(option, memory, fits, 0, 32, time, None, 100 / 32, 12, machine))
    return predictions


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        (
            "f1>=0.88 within 2h under 24GB",
            Goal((ScoreTarget("f1", 0.88),), within_s=7200, under_bytes=24e9),
        ),
        ("f1>=0.8 and loss<=0.3", Goal((ScoreTarget("f1", 0.8), ScoreTarget("loss", 0.3)))),
        ("under 24 GiB within 1.5h", Goal(within_s=5400, under_bytes=24 * GIB)),
        ("within 90min for 20", Goal(within_s=5400, price=20)),
        ("accuracy>=.9 within 2d", Goal((ScoreTarget("accuracy", 0.9),), within_s=172800)),
    ],
)
def test_goal_is_parsed(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("", ("target.syntax", "--goal")),
        ("soon", ("target.syntax", "soon")),
        ("f1>=0.8 within soon", ("target.syntax", "within", "soon", "2")),
        ("within 2", ("target.syntax", "within", "2")),
        ("within -2h", ("target.syntax", "within", "-2h")),
        ("under 24", ("target.syntax", "under", "24")),
        ("under 0GB", ("target.syntax", "under", "0GB")),
        ("for 5EUR", ("target.syntax", "for", "5EUR")),
        ("within 1h within 2h", ("target.syntax", "within")),
        ("f1<=0.5", ("metric.unknown", "f1")),
    ],
)
def test_invalid_goal_is_refused(text: str, refused: tuple[str, ...]) -> None:
    with raises_code(*refused):
        parse_goal(text)


def states(goal: str, **how: Any) -> list[str]:
    return [verdict.state for verdict in judge(parse_goal(goal), ways(**how), {})]


def test_time_memory_and_price_are_compared_with_the_goal() -> None:
    # The runs take 1.2, 0.72 and 0.48 s: 0.6 to 2.4, 0.36 to 1.44 and 0.24 to 0.96.
    assert states("within 0.5s") == ["does not", "may meet it", "may meet it"]
    assert states("within 1s") == ["may meet it", "may meet it", "meets it"]
    assert states("under 17GiB within 1h") == ["does not", "meets it", "meets it"]
    assert states("within 1h", fits=False) == ["does not"] * 3
    # 36 an hour is 0.01 a second: 0.012 on one device, 0.0144 on two, 0.0192 on four.
    assert states("for 0.0111", price=36.0) == ["may meet it", "may meet it", "may meet it"]
    assert states("for 0.0065", price=36.0) == ["may meet it", "does not", "does not"]
    assert states("under 100GB") == ["meets it"] * 3


def test_measured_runs_give_the_number_of_steps() -> None:
    goal = parse_goal("f1>=0.8 within 1s")
    measured = {32: [4, 8]}  # 6 steps on average: 0.6 s, 0.2 to 1.6
    verdicts = judge(goal, ways(), measured)
    assert [verdict.state for verdict in verdicts] == ["may meet it", "meets it", "meets it"]
    lines = list(goal_lines(goal, verdicts, measured))
    assert lines[0].startswith("Goal: 2 of 3 meet it: ddp on 4 devices")
    assert lines[-1] == "Measured runs reached f1 ≥ 0.8 after 4 to 8 steps with a global batch of 32."
    *_, last = goal_lines(goal, verdicts, measured, 1)
    assert last.endswith("global batch of 32; 1 more never did, which these times leave out.")
    *_, last = goal_lines(goal, judge(goal, ways(), {}), {}, 2)
    assert "No measured run reached f1 ≥ 0.8 (of 2)" in last
    other = judge(goal, ways(), {64: [4]})
    assert [verdict.state for verdict in other] == ["may meet it", "may meet it", "meets it"]


def test_without_measured_runs_quality_is_open() -> None:
    goal = parse_goal("f1>=0.8 within 1s")
    lines = list(goal_lines(goal, judge(goal, ways(), {}), {}))
    assert "A prediction does not include whether f1 ≥ 0.8 is reached" in lines[-1]


def test_probes_time_undecided_options_and_try_learning_rates() -> None:
    matrix = probe_matrix(
        "base.yaml", {"train": {"epochs": 3}}, judge(parse_goal("within 0.5s"), ways(), {}), learning_rate=4e-5
    )
    assert matrix["base"] == {"extends": "base.yaml", "train": {"epochs": 3}}
    tries = matrix["axes"]["try"]
    assert list(tries) == [
        *("time-ddp-on-4-devices", "time-ddp-on-2-devices"),
        *(f"quality-{name}-learning-rate" for name in ("half", "same", "twice")),
    ]
    assert tries["time-ddp-on-2-devices"]["probe"] == {"steps": 20}
    assert tries["time-ddp-on-2-devices"]["nproc"] == 2
    assert tries["quality-half-learning-rate"]["train.learning_rate"] == 2e-5
    assert tries["quality-half-learning-rate"]["nproc"] == 4
    with raises_code("plan.nothing_to_write", option="--write-probes"):
        probe_matrix("base.yaml", {}, judge(parse_goal("within 0.01s"), ways(), {}), learning_rate=4e-5)


def test_quality_probes_end_after_their_last_evaluation() -> None:
    steps = ("evaluate.every=steps", "evaluate.steps=51", "checkpoint.every=steps", "checkpoint.steps=50")
    warmup = ("train.warmup_ratio=", "train.warmup_steps=6")
    matrix = probe_matrix("base.yaml", {}, judge(Goal(), ways(*steps, *warmup), {}), learning_rate=4e-5)
    probe = matrix["axes"]["try"]["quality-same-learning-rate"]
    # 50 steps: a warm-up of 6 in 12 steps is one of half of them, and checkpoints every 50 come at the end.
    assert probe["train.max_steps"] == 50
    assert probe["train.warmup_steps"] == 25
    assert probe["evaluate.steps"] == 50
    assert "checkpoint.steps" not in probe
