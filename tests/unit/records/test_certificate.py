"""The verdict on strategies: equal trainings, and the reasons of differences."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from paratune.records import rank_file
from paratune.records.certificate import (
    TRAINED_TOLERANCES,
    Part,
    StrategyDifference,
    cells,
    compare,
    largest_difference,
    read_part,
    trained_words,
)

REFERENCE = Part(
    precision="fp64",
    rows=((0, 3), (1, 2)),
    losses=(0.5, 0.25),
    grad_norms=(2.0, 1.0),
    weights={"a": "11", "b": "22"},
    gradients={
        "largest": 0.0,
        "tensor": None,
        "missing": [],
        "unexpected": [],
        "difference": 0.0,
        "length": 0.0,
        "worst_tensor": 0.0,
        "worst_name": None,
    },
)
GRADIENTS = REFERENCE.gradients


def test_differences_within_rounding_hold():
    # 0.25 * (1 + 4e-16) is the next double or the one after.
    fields = compare(REFERENCE, replace(REFERENCE, losses=(0.5, 0.25 * (1 + 4e-16))))
    assert (fields["status"], fields["reason"]) == ("holds", None)
    assert (fields["same_samples"], fields["same_order"], fields["same_weights"]) == (True, True, True)
    assert 0 < fields["loss_difference"] < 1e-15


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rows": ((1, 2), (0, 3))}, "other samples"),
        ({"rows": ((0, 3), (1, 1))}, "it trains on other samples"),
        ({"weights": {"a": "11", "b": "23"}}, "weights (b)"),
        ({"weights": {"a": "11", "b": "22", "c": "33", "d": "44"}}, "weights (c, and 1 more)"),
        # Twice the loss: |1 - 0.5| / 0.5.
        ({"losses": (1.0, 0.25)}, "losses differ by 1.0e+00, more than 1e-09"),
        ({"grad_norms": (1.0, 1.0)}, "gradient norms differ by 5.0e-01, more than 1e-09"),
        (
            {"gradients": {**GRADIENTS, "largest": 0.5, "tensor": "a"}},
            "gradients of the first step differ by 5.0e-01 in a, more than 1e-09",
        ),
        ({"gradients": {**GRADIENTS, "missing": ["a", "b"]}}, "gradients of a, and 1 more"),
        ({"gradients": {**GRADIENTS, "unexpected": ["z"]}}, "gradients of z"),
        # NaN is null in JSON.
        ({"losses": (0.5, None)}, "losses differ by inf"),
        (
            {"gradients": {**GRADIENTS, "largest": None, "tensor": "a"}},
            "gradients of the first step differ by inf in a",
        ),
    ],
)
def test_the_reason_of_a_difference_names_it(changed, reason):
    fields = compare(REFERENCE, replace(REFERENCE, **changed))
    assert fields["status"] == "differs"
    assert reason in fields["reason"]


def test_fp32_has_a_larger_tolerance_than_fp64():
    part = replace(REFERENCE, losses=(0.5 * (1 + 5e-5), 0.25), precision="fp32")
    assert compare(REFERENCE, part)["status"] == "holds"
    assert compare(REFERENCE, replace(part, precision="fp64"))["status"] == "differs"


def test_bounds_of_the_precision_that_trains_are_multiples_of_its_unit_roundoff():
    # torch.finfo(bfloat16).eps is 2^-7, float16's 2^-10; TF32 has as many bits as float16.
    bounds = {
        name: (bound.gradients, bound.length, bound.tensor, bound.losses) for name, bound in TRAINED_TOLERANCES.items()
    }
    for name, eps in (("bf16", 2**-7), ("fp16", 2**-10), ("tf32", 2**-10)):
        assert bounds[name] == (8 * eps, 2 * eps, 16 * eps, 4 * eps)


@pytest.mark.parametrize(
    ("changed", "status", "reason"),
    [
        # What MiniLM showed in bf16 on a CPU.
        ({"gradients": GRADIENTS | {"difference": 9.6e-3, "length": 1.1e-3, "worst_tensor": 2.1e-2}}, "holds", None),
        # A gradient that is 5% too long is that far in every figure; 16 and 32 unit roundoffs would let it pass.
        (
            {"gradients": GRADIENTS | {"difference": 0.05, "length": 0.05, "worst_tensor": 0.05}},
            "differs",
            "the length of the gradients differs by 5.0e-02, more than 2e-02",
        ),
        # One tensor has half of its gradient, which is small among all.
        (
            {"gradients": GRADIENTS | {"difference": 0.01, "worst_tensor": 0.5, "worst_name": "b"}},
            "differs",
            "the gradient of a tensor differs by 5.0e-01 in b, more than 1e-01",
        ),
        ({"gradients": GRADIENTS | {"difference": 0.07}}, "differs", "gradients of the first step differ by 7.0e-02"),
        ({"gradients": GRADIENTS | {"difference": None}}, "differs", "gradients of the first step differ by inf"),
        ({"grad_norms": (2.0, 1.07)}, "differs", "gradient norms differ by 7.0e-02"),
        ({"losses": (0.5, 0.26)}, "differs", "losses differ by 4.0e-02"),
        ({"losses": (0.5, 0.2525)}, "holds", None),
        ({"weights": {"a": "11", "b": "23"}}, "differs", "weights (b)"),
        ({"rows": ((1, 2), (0, 3))}, "differs", "other samples"),
    ],
)
def test_the_precision_that_trains_has_the_tolerance_of_its_rounding(changed, status, reason):
    difference = compare(REFERENCE, replace(REFERENCE, precision="bf16", **changed), trained="bf16")
    assert (difference["precision"], difference["status"]) == ("bf16", status)
    assert reason is None or reason in str(difference["reason"])


def test_fp16_and_tf32_have_an_eighth_of_the_tolerance_of_bf16():
    part = replace(REFERENCE, gradients=GRADIENTS | {"length": 5e-3})
    statuses = {name: compare(REFERENCE, part, trained=name)["status"] for name in TRAINED_TOLERANCES}
    assert statuses == {"bf16": "holds", "fp16": "differs", "tf32": "differs", "fp32": "differs"}


def test_the_column_of_the_precision_that_trains():
    exact = StrategyDifference("ddp", "ddp", {}, 2, "fp64", "holds", same_samples=True)
    cannot = {"precision": "bf16", "status": "cannot run", "reason": "no", "gradient_difference": None}
    holds = replace(exact, trained={**cannot, "status": "holds", "reason": None, "gradient_difference": 3e-3})
    assert cells(holds)[-1] == "3.0e-03"
    assert cells(replace(exact, trained=cannot))[-1] == cells(exact)[-1] == "-"
    # As a file gives it back.
    written = json.loads(json.dumps(asdict(holds)))
    assert cells(StrategyDifference(**written))[-1] == "3.0e-03"
    assert trained_words({}) == ""


@pytest.mark.parametrize(
    ("values", "expected", "difference"),
    [
        ([], [], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([-1.0], [1.0], 2.0),
        ([0.0], [0.0], 0.0),
        ([1e-12], [0.0], math.inf),
        ([1.0], [1.0, 2.0], math.inf),
        ([math.nan], [1.0], math.inf),
        ([1.0], [None], math.inf),
    ],
)
def test_differences_are_relative(values, expected, difference):
    assert largest_difference(values, expected) == pytest.approx(difference)


def test_a_part_joins_the_results_of_its_ranks(tmp_path: Path):
    """Ranks 0 and 1 are the stages of one pipeline, 2 and 3 of another: their samples count once."""
    for rank, (data_rank, rows) in enumerate([(0, [[4], [2]]), (0, [[4], [2]]), (1, [[1], [9]]), (1, [[1], [9]])]):
        values = {
            "precision": "fp64",
            "data_rank": data_rank,
            "rows": rows,
            "losses": [1.0, 0.5],
            "grad_norms": [1.0, 1.0],
            "weights": {"a": "11"} if rank == 0 else {},
            "batch_layout": "packed",
            "gradients": GRADIENTS,
        }
        (tmp_path / rank_file("outcome", rank)).write_text(json.dumps(values))
    part = read_part(tmp_path, 4)
    assert part.rows == ((1, 4), (2, 9))
    assert part.weights == {"a": "11"}
