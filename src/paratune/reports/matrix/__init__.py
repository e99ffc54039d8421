"""The report of a matrix of runs."""

from paratune.reports.matrix.make import make_sweep
from paratune.reports.matrix.outcomes import SweepReport

__all__ = ["SweepReport", "make_sweep"]
