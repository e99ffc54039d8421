"""Comparisons of runs with a baseline: how much faster they are and whether their quality is equal, or "cannot tell".

Four functions lead from two lists of numbers, such as the accuracy of each seed of two configurations, to a verdict:

1. `estimate.change_of_means` takes the difference of their means, and the sample variance of each (`Side`).
2. `estimate.Estimate.parts` makes them the variance of the difference, with degrees of freedom (Welch, Satterthwaite).
3. `estimate.Estimate.tail` is the t test: how probable a difference at this distance is. `p_different` measures the
   distance from "no change", `p_equal` that from the margin; `interval` is the same test the other way round.
4. `finding.decide` corrects both p-values for repeated looks (at the first one they are divided by 0.7) and for the
   number of configurations, compares them with 5%, and returns "equal", "different" or "cannot tell".

`finding.plan` then tells how many more runs would decide it.

Around them, `judge.judge` asks this of the speed and of each score. `scores` takes seeds in pairs and adds the variance
over samples (`scoring`, `jackknife`); `speeds` takes logarithms of rates, pools variances, adjusts for the order of the
runs (`order`), and adds what configurations differ by that cannot differ (`groups.negative_control`).

Imports the lowest layers and `metrics`, with which it computes scores again; imports no torch.
"""

from paratune.verdicts.finding import MeasureComparison
from paratune.verdicts.groups import Differs, Group, Margin, default_margin, read_margins
from paratune.verdicts.judge import Verdict, judge
from paratune.verdicts.sequential import LookHistory

__all__ = [
    "Differs", "Group", "LookHistory", "Margin", "MeasureComparison", "Verdict", "default_margin", "judge",
    "read_margins",
]  # fmt: skip
