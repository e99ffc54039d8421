"""Which essays a person should read: signals of uncertain predictions, and the agreement that a share of them gives.

Dimensions: `N` rows, `C` classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paratune.metrics.regression import quadratic_weighted_kappa
from paratune.records.predictions import NumberScale

Floats = npt.NDArray[np.float64]
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
NUM_RANDOM = 200
SIGNALS = {
    "extreme": "distance of the prediction from the median prediction",
    "border": "closeness of the prediction to the border between two bands",
    "probability": "probability that is left to other classes",
}


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with a prediction and a label."""

    predicted: Floats
    """(N,), in the unit of the labels."""
    labels: Floats
    """(N,)."""
    doubt: Floats | None = None
    """(N,): 1 minus the probability of the predicted class; None for numbers."""

    @property
    def residuals(self) -> Floats:
        """(N,): label minus prediction."""
        return self.labels - self.predicted


def signals(predicted: Floats, doubt: Floats | None, scale: NumberScale, centre: float) -> dict[str, Floats]:
    """Return the signals of rows, (N,) by name; the larger, the sooner should a person read the row.

    Args:
        predicted: (N,).
        doubt: As `Scored.doubt`.
        centre: Median prediction of the validation set.
    """
    found = {"extreme": np.abs(predicted - centre)}
    if doubt is not None:
        found["probability"] = doubt
    elif scale.step is not None:
        found["border"] = np.abs(predicted / scale.step - np.rint(predicted / scale.step))
    return found


def choose_signal(validation: Scored, scale: NumberScale, centre: float) -> tuple[str, float | None]:
    """Return the signal that follows the absolute residuals of the validation set best, and Spearman's correlation."""
    from paratune.verdicts.scoring import rank_correlation

    errors = np.abs(validation.residuals)
    found = signals(validation.predicted, validation.doubt, scale, centre)
    correlations = {name: rank_correlation(values, errors) for name, values in found.items()}
    best = max(correlations, key=lambda name: -2.0 if correlations[name] is None else float(correlations[name] or 0.0))
    return best, correlations[best]


@dataclass(frozen=True)
class ShareSent:
    """The agreement with the labels when a share of the rows is read by a person, who gives the label."""

    share: float
    num_sent: int
    qwk: float | None
    """Quadratic weighted kappa over all rows."""
    random: tuple[float, float, float] | None
    """Mean, and 2.5% and 97.5% quantiles, over random choices of as many rows."""

    @property
    def is_better(self) -> bool:
        """Whether the signal chooses better than chance."""
        return self.qwk is not None and self.random is not None and self.qwk > self.random[2]


def share_table(scored: Scored, signal: Floats, grades: NumberScale | None, seed: int = 0) -> tuple[ShareSent, ...]:
    """Return the agreement for each of `SHARES`.

    Args:
        signal: (N,).
        grades: Scale of the kappa; None where it is unknown, and so is kappa.
        seed: Determines the random choices.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(-signal, kind="stable")
    lines = []
    for share in SHARES:
        count = round(share * len(order))
        random = None
        if count:
            draws = [_agreement(scored, rng.permutation(len(order))[:count], grades) for _ in range(NUM_RANDOM)]
            known = [value for value in draws if value is not None]
            if known:
                low, high = np.quantile(known, [0.025, 0.975]).tolist()
                random = float(np.mean(known)), low, high
        lines.append(ShareSent(share, count, _agreement(scored, order[:count], grades), random))
    return tuple(lines)


def _agreement(scored: Scored, sent: npt.NDArray[np.int64], grades: NumberScale | None) -> float | None:
    given = scored.predicted.copy()
    given[sent] = scored.labels[sent]
    return quadratic_weighted_kappa(given, scored.labels, grades)


@dataclass(frozen=True)
class HumanRule:
    """The rule that sends essays to a person."""

    signal: str
    correlation: float | None
    """Spearman's correlation of signal and absolute residual on the validation set."""
    wanted: float | None
    """Wanted agreement; None: without a rule."""
    share: float | None
    """Smallest share with this agreement on the validation set; None where no share of `SHARES` has it, or where the
    signal does not follow the errors (`is_known`)."""
    threshold: float | None
    """Rows whose signal is at least this are sent; None where none or no share is."""
    tables: Mapping[str, tuple[ShareSent, ...]]
    """By split: validation, test."""

    @property
    def is_known(self) -> bool:
        """Whether the signal grows with the errors on the validation set."""
        return self.correlation is not None and self.correlation > 0

    @property
    def beats_chance(self) -> bool:
        """Whether on the test set (without one, on validation) more than half of the shares are better than chance."""
        lines = (self.tables.get("test") or self.tables["validation"])[1:]
        return self.is_known and 2 * sum(line.is_better for line in lines) > len(lines)


def make_rule(
    splits: Mapping[str, Scored], scale: NumberScale, grades: NumberScale | None, wanted: float | None
) -> HumanRule:
    """Return the rule, chosen on the validation set.

    Args:
        splits: `validation`, and `test` if there is one.
        scale: Of reported numbers.
        grades: As for `share_table`.
        wanted: Quadratic weighted kappa to reach.
    """
    validation = splits["validation"]
    centre = float(np.median(validation.predicted))
    name, correlation = choose_signal(validation, scale, centre)
    values = {split: signals(scored.predicted, scored.doubt, scale, centre)[name] for split, scored in splits.items()}
    tables = {split: share_table(scored, values[split], grades) for split, scored in splits.items()}
    is_followed = correlation is not None and correlation > 0
    enough = []
    if is_followed and wanted is not None:
        enough = [line for line in tables["validation"] if line.qwk is not None and line.qwk >= wanted]
    share = enough[0].share if enough else None
    # A threshold instead of a share of the given essays, so that the rule also applies to a single essay.
    threshold = None
    if enough and enough[0].num_sent:
        threshold = float(np.sort(values["validation"])[::-1][enough[0].num_sent - 1])
    return HumanRule(name, correlation, wanted, share, threshold, tables)
