import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from paratune.config.sections import Train
from paratune.engine.schedules import SCHEDULES, schedule_factor, warmup_steps

NUM_STEPS = 40
PEAK = 1e-3
CASES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"schedule": "linear"}, "linear", {}),
    ({"schedule": "cosine"}, "cosine", {}),
    ({"schedule": "constant"}, "constant_with_warmup", {}),
    ({"schedule": "inverse_sqrt"}, "inverse_sqrt", {}),
    ({"schedule": "cosine", "schedule_end_ratio": 0.1}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
    ({"schedule": "cosine_with_restarts"}, "cosine_with_restarts", {}),
    ({"schedule": "cosine_with_restarts", "schedule_cycles": 3}, "cosine_with_restarts", {"num_cycles": 3}),
    ({"schedule": "polynomial"}, "polynomial", {"lr_end": 0.0}),
    (
        {"schedule": "polynomial", "schedule_power": 2.5, "schedule_end_ratio": 0.2},
        "polynomial",
        {"power": 2.5, "lr_end": 0.2 * PEAK},
    ),
]


@pytest.mark.parametrize("num_warmup_steps", [0, 1, 7, 40])
@pytest.mark.parametrize(("ours", "name", "options"), CASES, ids=str)
def test_schedules_are_those_of_transformers_step_by_step(ours, name, options, num_warmup_steps):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=PEAK)
    theirs = get_scheduler(name, optimizer, num_warmup_steps, NUM_STEPS, options).lr_lambdas[0]
    train = Train(learning_rate=PEAK, warmup_steps=num_warmup_steps, **ours)
    for step in range(NUM_STEPS):
        factor = schedule_factor(train, step, num_steps=NUM_STEPS)
        assert factor == pytest.approx(theirs(step), rel=1e-12, abs=1e-12), step


@pytest.mark.parametrize(("end", "ratio", "num_decay_steps"), [(None, None, 4), (0.1, 0.3, 11), (None, 1.0, 36)])
def test_the_stable_phase_ends_as_in_transformers(end, ratio, num_decay_steps):
    # 36 steps follow the warm-up of 4; 0.1, 0.3 and all of them decay: 3.6, 10.8 and 36, rounded up.
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=PEAK)
    options = {"num_decay_steps": num_decay_steps, "min_lr_ratio": end or 0.0}
    theirs = get_scheduler("warmup_stable_decay", optimizer, 4, NUM_STEPS, options).lr_lambdas[0]
    options = {"schedule": "warmup_stable_decay", "schedule_end_ratio": end, "decay_ratio": ratio, "warmup_steps": 4}
    train = Train(**{key: value for key, value in options.items() if value is not None})
    for step in range(4, NUM_STEPS):  # in the warm-up, transformers begins at the end ratio and not at 0
        factor = schedule_factor(train, step, num_steps=NUM_STEPS)
        assert factor == pytest.approx(theirs(step), rel=1e-12, abs=1e-12), step


def test_the_table_has_every_schedule_of_the_configuration():
    allowed = Train.model_json_schema()["properties"]["schedule"]["anyOf"][0]["enum"]
    assert set(allowed) == {*SCHEDULES, "inverse_sqrt"}


def test_a_cosine_ends_at_zero_and_never_below():
    values = [schedule_factor(Train(schedule="cosine"), step, num_steps=9) for step in range(12)]
    assert values[9] == pytest.approx(0.0, abs=1e-15)
    assert min(values) >= 0.0
    assert values[3] == pytest.approx(0.5 * (1 + math.cos(math.pi / 3)))


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (Train(), 0),
        (Train(warmup_steps=7), 7),
        (Train(warmup_ratio=0.1), 11),  # 10.1, rounded up as the Trainer does
        (Train(warmup_ratio=0.0), 0),
    ],
)
def test_warmup_is_given_in_steps_or_as_a_ratio(train: Train, expected: int):
    assert warmup_steps(train, 101) == expected
