"""What may be said of runs beside each other: how much faster, as good or not, or that it cannot be told.

Side room: rests on the lowest floors and on `metrics`, whose scores it computes again; imports no torch.
"""

from paratune.verdicts.finding import MeasureComparison
from paratune.verdicts.groups import Differs, Group
from paratune.verdicts.judge import Verdict, judge
from paratune.verdicts.margins import Margin, default_margin, read_margins
from paratune.verdicts.ratios import change_of
from paratune.verdicts.rows import ComparedRun

__all__ = [
    "ComparedRun",
    "Differs",
    "Group",
    "Margin",
    "MeasureComparison",
    "Verdict",
    "change_of",
    "default_margin",
    "judge",
    "read_margins",
]
