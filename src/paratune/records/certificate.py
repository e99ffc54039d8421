"""Compares strategies with one process, from the files that their processes wrote, and gives a verdict.

`paratune.training.certify` writes the files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paratune import records
from paratune.base.text import listing

FILE = "certificate.json"
SUFFIX = ".certificate"  # suffix of the folder's name, after the name of the run

Status = Literal["holds", "differs", "cannot run"]


@dataclass(frozen=True)
class Tolerance:
    """Largest relative differences that rounding can cause; `losses` also of gradient norms."""

    gradients: float
    losses: float


BF16_ROUNDOFF = 2.0**-8  # largest relative error of rounding to bf16, with significands of 8 bits, one of them hidden
TOLERANCES = {
    "fp64": Tolerance(gradients=1e-9, losses=1e-9),
    "fp32": Tolerance(gradients=1e-3, losses=1e-4),
    "bf16": Tolerance(gradients=32 * BF16_ROUNDOFF, losses=8 * BF16_ROUNDOFF),
}
"""fp64 has 16 digits, and the order of sums costs some of them; fp32 has seven, and AdamW amplifies the error.

bf16 is for `strategy.param_dtype: bf16`. n roundings in sequence cause about sqrt(n) times the error of one. A gradient
passes all blocks twice, with about nine roundings in each: 12 blocks cause sqrt(216) = 15, 24 blocks 21 and 57 blocks
32. Losses are means of many numbers that pass the blocks once.

Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019."""


@dataclass(frozen=True)
class TrainedTolerance:
    """Largest differences between the precision that trains and the reference that rounding can cause."""

    gradients: float
    """Norm of the difference of all gradients of the first step, over their norm; also for the norms of all steps,
    which differ by more than rounding: AdamW changes a weight by the sign of its first gradient, however small."""
    length: float  # relative, in their own direction, where the rounding of many entries averages out
    tensor: float  # norm of the difference of one tensor's gradient, over its norm
    losses: float  # Relative, of all steps


TRAINED_TOLERANCES = {
    precision: TrainedTolerance(16 * roundoff, 4 * roundoff, 32 * roundoff, 8 * roundoff)
    for precision, roundoff in {"bf16": 2**-8, "fp16": 2**-11, "tf32": 2**-11, "fp32": 2**-17}.items()
}
"""Multiples of the unit roundoff, half the distance from 1 to the next number: 2^-8 with the 8 bits of bf16, 2^-11 with
the 11 of fp16 and TF32. In fp32 it is 2^-24, times 128 for the order of its sums; the others sum in fp32 too.

Measured on nine encoders of 2 to 24 layers in bf16: at most 2.5, 0.6, 5.4 and 0.4 times the unit roundoff
(docs/explanation/strategies.md#in-the-precision-that-trains).
"""
SMALLEST_TENSOR = 0.01  # of all gradients: the least norm by which the difference of a tensor is divided


@dataclass(frozen=True)
class Part:
    precision: str
    rows: tuple[tuple[int, ...], ...]  # the samples of each step over all ranks, in ascending order
    losses: tuple[float, ...]  # of each step, over all ranks, as the norms, which are those before clipping
    grad_norms: tuple[float, ...]
    weights: Mapping[str, str]  # SHA-256 of each tensor before the first step
    gradients: Mapping[str, Any]  # from the reference: largest (relative), tensor, missing, unexpected
    batch_layout: str = ""  # packed, bucketed or padded


@dataclass(frozen=True)
class StrategyDifference:
    """Differences of one strategy from the reference; None where they are unknown."""

    strategy: str  # name on the command line
    kind: str
    options: Mapping[str, Any]
    world_size: int
    precision: str | None
    status: Status
    reason: str | None = None
    same_samples: bool | None = None  # all steps together have the same samples
    same_order: bool | None = None  # each step has the same samples
    same_weights: bool | None = None
    gradient_difference: float | None = None  # largest in a tensor over its largest entry, first step
    gradient_tensor: str | None = None
    loss_difference: float | None = None  # largest relative difference over all steps
    norm_difference: float | None = None
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    trained: Mapping[str, Any] | None = None  # of `compare` in the precision that trains, if another one


COLUMNS = ("strategy", "ranks", "samples", "order", "weights", "gradients", "losses", "trained", "verdict")
"""Headings of a table of findings; `cells` returns the cells from samples to trained."""


def cells(finding: StrategyDifference) -> tuple[str, ...]:
    """Return the comparison as texts; a difference that is not finite (null in a file) is "inf"."""
    trained = "-"
    if finding.trained is not None and finding.trained["status"] != "cannot run":
        trained = f"{_number(finding.trained['gradient_difference']):.1e}"
    if finding.same_samples is None:
        return (*("-",) * 5, trained)
    same = ("same" if it else "differ" for it in (finding.same_samples, finding.same_order, finding.same_weights))
    return (*same, f"{_number(finding.gradient_difference):.1e}", f"{_number(finding.loss_difference):.1e}", trained)


def trained_words(tolerances: Mapping[str, Mapping[str, float]]) -> str:
    """Return an explanation of the column `trained` with the tolerances; "" without a tolerance."""
    allowed = "; ".join(
        f"{precision}: gradients {tolerance['gradients']:.1e}, their length {tolerance['length']:.1e}, "
        f"a tensor {tolerance['tensor']:.1e}, losses {tolerance['losses']:.1e}"
        for precision, tolerance in tolerances.items()
    )
    return allowed and (
        "trained: in the precision that trains, the norm of the gradients' difference to the reference over their norm "
        f"(allowed: {allowed})"
    )


def read_part(folder: Path, world_size: int) -> Part:
    """Return the joined results of all processes of one strategy.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    ranks = [records.read_json(folder / records.rank_file("outcome", rank)) for rank in range(world_size)]
    # The stages of a pipeline have the same samples, which count once.
    by_data_rank = {rank["data_rank"]: rank["rows"] for rank in ranks}
    steps = zip(*by_data_rank.values(), strict=True)
    rows = tuple(tuple(sorted(row for rows in step for row in rows)) for step in steps)
    precision, losses, norms, weights, gradients, batch_layout = (
        ranks[0][key] for key in ("precision", "losses", "grad_norms", "weights", "gradients", "batch_layout")
    )
    return Part(precision, rows, tuple(losses), tuple(norms), weights, gradients, batch_layout)


def compare(reference: Part, part: Part, *, trained: str | None = None) -> dict[str, Any]:
    """Return precision, status, reason and differences of a strategy from the reference: fields of a finding.

    Of a strategy that cannot run in the precision that trains, `gradient_difference` is the only difference, and None.

    Args:
        trained: The precision that trains, in which `part` ran: the differences of gradients are then those of
            `TrainedTolerance`.
    """
    gradients, precision = part.gradients, trained or part.precision
    difference, length, worst, largest = (
        _number(gradients[key]) for key in ("difference", "length", "worst_tensor", "largest")
    )
    loss = largest_difference(part.losses, reference.losses)
    norm = largest_difference(part.grad_norms, reference.grad_norms)
    rows = [sorted(row for step in run.rows for row in step) for run in (part, reference)]
    same_samples, same_order = rows[0] == rows[1], part.rows == reference.rows
    expected, weights = reference.weights, part.weights
    other = [name for name in sorted({*expected, *weights}) if expected.get(name) != weights.get(name)]
    missing, unexpected = gradients["missing"], gradients["unexpected"]
    reasons = [
        *([] if same_samples else ["it trains on other samples"]),
        *(["a step has other samples"] if same_samples and not same_order else []),
        *([f"it starts with other weights ({listing(other, 1)})"] if other else []),
        *([f"gradients of {listing(missing, 1)} are missing"] if missing else []),
        *([f"it has gradients of {listing(unexpected, 1)}, which one process does not have"] if unexpected else []),
    ]
    found: dict[str, Any]
    limits: list[tuple[str, float, float, str | None]]
    if trained is None:
        tolerance = TOLERANCES[precision]
        allowed_loss, allowed_norm = tolerance.losses, tolerance.losses
        found = {"same_samples": same_samples, "same_order": same_order, "same_weights": not other}
        found |= {"gradient_difference": largest, "gradient_tensor": gradients["tensor"]}
        limits = [("gradients of the first step differ", largest, tolerance.gradients, gradients["tensor"])]
    else:
        allowed_loss, allowed_norm = TRAINED_TOLERANCES[precision].losses, TRAINED_TOLERANCES[precision].gradients
        found = {"gradient_difference": difference, "length_difference": length, "tensor_difference": worst}
        found["gradient_tensor"], limits = gradients["worst_name"], []
    # With 16-bit weights the largest entries alone do not show a small tensor that is wrong.
    if trained or precision == "bf16":
        norms = TRAINED_TOLERANCES[precision]
        limits += [
            ("gradients of the first step differ", difference, norms.gradients, None),
            ("the length of the gradients differs", length, norms.length, None),
            ("the gradient of a tensor differs", worst, norms.tensor, gradients["worst_name"]),
        ]
    limits += [("gradient norms differ", norm, allowed_norm, None), ("losses differ", loss, allowed_loss, None)]
    reasons += [
        f"{differs} by {by:.1e}{f' in {tensor}' if tensor else ''}, more than {allowed:.0e}"
        for differs, by, allowed, tensor in limits
        if by > allowed
    ]
    return {
        "precision": precision,
        "status": "differs" if reasons else "holds",
        "reason": "; ".join(reasons) or None,
        **found,
        "loss_difference": loss,
        "norm_difference": norm,
        "losses": part.losses,
        "grad_norms": part.grad_norms,
    }


def largest_difference(values: Sequence[float | None], expected: Sequence[float | None]) -> float:
    """Return the largest |value - expected| / |expected| of pairs; infinite where one is not finite or is missing."""
    # JSON has no NaN; it is null in the file.
    known = [
        (value, other)
        for value, other in zip(values, expected, strict=False)
        if value is not None and other is not None and math.isfinite(value) and math.isfinite(other)
    ]
    if len(known) < max(len(values), len(expected)):
        return math.inf
    apart = (abs(value - other) / abs(other) if other else (math.inf if value else 0.0) for value, other in known)
    return max(apart, default=0.0)


def _number(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value
