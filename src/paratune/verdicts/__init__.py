"""Comparisons of runs with a baseline: how much faster they are and whether their quality is equal, or "cannot tell".

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
