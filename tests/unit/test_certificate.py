"""The verdict on strategies: what counts as the same, and what is said when it is not."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from paratune import certificate
from paratune.certificate import Finding, Part, compare, largest_difference, read_part, verdict
from paratune.errors import CheckpointError

REFERENCE = Part(
    precision="fp64",
    rows=((0, 3), (1, 2)),
    losses=(0.5, 0.25),
    grad_norms=(2.0, 1.0),
    weights={"a": "11", "b": "22"},
    gradients={"largest": 0.0, "tensor": None, "missing": [], "unexpected": []},
)
GRADIENTS = REFERENCE.gradients


def test_what_differs_by_rounding_holds():
    # 0.25 * (1 + 4e-16) is the next double or the one after.
    found = compare(REFERENCE, replace(REFERENCE, losses=(0.5, 0.25 * (1 + 4e-16))))
    assert (found["status"], found["reason"]) == ("holds", None)
    assert (found["same_samples"], found["same_order"], found["same_weights"]) == (True, True, True)
    assert 0 < found["loss_difference"] < 1e-15


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rows": ((1, 2), (0, 3))}, "a step takes other samples"),
        ({"rows": ((0, 3), (1, 1))}, "it trains on other samples"),
        ({"weights": {"a": "11", "b": "23"}}, "it begins with other weights (b)"),
        ({"weights": {"a": "11", "b": "22", "c": "33", "d": "44"}}, "it begins with other weights (c and 1 more)"),
        # Twice the loss: |1 - 0.5| / 0.5.
        ({"losses": (1.0, 0.25)}, "losses differ by 1.0e+00, more than 1e-09"),
        ({"grad_norms": (1.0, 1.0)}, "gradient norms differ by 5.0e-01, more than 1e-09"),
        (
            {"gradients": {**GRADIENTS, "largest": 0.5, "tensor": "a"}},
            "gradients of the first step differ by 5.0e-01 in a, more than 1e-09",
        ),
        ({"gradients": {**GRADIENTS, "missing": ["a", "b"]}}, "it shows no gradient of a and 1 more"),
        ({"gradients": {**GRADIENTS, "unexpected": ["z"]}}, "it has gradients of z, which one process has not"),
        # NaN is null in JSON.
        ({"losses": (0.5, None)}, "losses differ by inf"),
        (
            {"gradients": {**GRADIENTS, "largest": None, "tensor": "a"}},
            "gradients of the first step differ by inf in a",
        ),
    ],
)
def test_each_difference_is_named(changed, said):
    found = compare(REFERENCE, replace(REFERENCE, **changed))
    assert found["status"] == "differs"
    assert said in found["reason"]


def test_fp32_is_held_to_what_fp32_can_do():
    part = replace(REFERENCE, losses=(0.5 * (1 + 5e-5), 0.25), precision="fp32")
    assert compare(REFERENCE, part)["status"] == "holds"
    assert compare(REFERENCE, replace(part, precision="fp64"))["status"] == "differs"


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


def test_a_part_is_put_together_of_its_ranks(tmp_path: Path):
    """Ranks 0 and 1 are the stages of one pipeline, 2 and 3 of another: their samples count once."""
    for rank, (data_rank, rows) in enumerate([(0, [[4], [2]]), (0, [[4], [2]]), (1, [[1], [9]]), (1, [[1], [9]])]):
        values = {
            "precision": "fp64",
            "data_rank": data_rank,
            "rows": rows,
            "losses": [1.0, 0.5],
            "grad_norms": [1.0, 1.0],
            "weights": {"a": "11"} if rank == 0 else {},
            "gradients": GRADIENTS,
        }
        (tmp_path / certificate.rank_file(rank)).write_text(json.dumps(values))
    part = read_part(tmp_path, 4)
    assert part.rows == ((1, 4), (2, 9))
    assert part.weights == {"a": "11"}


def test_fingerprints_follow_what_they_are_of():
    other_order = replace(REFERENCE, rows=((1, 2), (0, 3)))
    assert certificate.order_fingerprint(REFERENCE) != certificate.order_fingerprint(other_order)
    assert certificate.weights_fingerprint(REFERENCE) == certificate.weights_fingerprint(other_order)
    assert len(certificate.weights_fingerprint(REFERENCE)) == 64


def test_one_strategy_that_differs_decides():
    holds = Finding("ddp", "ddp", {}, 2, "fp64", "holds")
    differs, cannot = replace(holds, status="differs"), replace(holds, status="cannot run")
    assert verdict([holds, holds]) == "holds"
    assert verdict([holds, cannot]) == "incomplete"
    assert verdict([cannot, differs, holds]) == "differs"


def test_the_folder_stands_beside_the_run_and_takes_no_others_place(tmp_path: Path):
    folder = certificate.folder_beside(tmp_path / "runs" / "imdb")
    assert folder == tmp_path / "runs" / "imdb.certificate"
    folder.mkdir(parents=True)
    assert certificate.folder_beside(tmp_path / "runs" / "imdb") == folder
    (folder / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"imdb.certificate is in the way"):
        certificate.folder_beside(tmp_path / "runs" / "imdb")
